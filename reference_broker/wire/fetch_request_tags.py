"""The tagged fields of Fetch requests.

Schema: FetchRequest.json. A request has ClusterId from version 12 and ReplicaState from 15 (KIP-903). A partition has
ReplicaDirectoryId from 17 (KIP-853) and HighWatermark from 18 (KIP-1166). A field is written only if the version has it
and its value is not the default. In an older version its tag is unknown and is skipped.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from reference_broker.wire.fetch import NO_DIRECTORY_ID, NO_HIGH_WATERMARK, FetchPartition, FetchRequest
from reference_broker.wire.reading import (
    Frame,
    Reader,
    end_of,
    read_compact_nullable_string,
    skip_tagged_fields,
)
from reference_broker.wire.writing import compact_string, tag_buffer, tagged

_INT64: Final = Struct(">q")
_REPLICA_STATE: Final = Struct(">iq")
_REPLICA_STATE_AND_NO_TAGS: Final = Struct(">iqB")


def _read_replica_state(frame: Frame, offset: int) -> tuple[tuple[int, int], int]:
    """The replica's ID and epoch."""
    replica_id, replica_epoch = _REPLICA_STATE.unpack_from(frame, offset)
    return (replica_id, replica_epoch), skip_tagged_fields(frame, offset + _REPLICA_STATE.size)


def _read_directory_id(frame: Frame, offset: int) -> tuple[bytes, int]:
    end = end_of(frame, offset, 16, "a directory ID")
    return bytes(frame[offset:end]), end


def _read_high_watermark(frame: Frame, offset: int) -> tuple[int, int]:
    return _INT64.unpack_from(frame, offset)[0], offset + _INT64.size


REQUEST_TAGS_12: Final[Mapping[int, Reader]] = {0: read_compact_nullable_string}
REQUEST_TAGS_15: Final[Mapping[int, Reader]] = {**REQUEST_TAGS_12, 1: _read_replica_state}
"""The readers of a request's tagged fields, by tag, from version 12 and from version 15 on."""
PARTITION_TAGS: Final[Mapping[int, Mapping[int, Reader]]] = {
    17: {0: _read_directory_id},
    18: {0: _read_directory_id, 1: _read_high_watermark},
}
"""The readers of a partition's tagged fields, by version and tag. Versions before 17 have none."""


def write_request_tags(version: int, request: FetchRequest) -> bytes:
    """Returns the tag buffer at the end of the body."""
    fields = []
    if request.cluster_id is not None:
        fields.append(tagged(0, compact_string(request.cluster_id)))
    if version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1):
        state = _REPLICA_STATE_AND_NO_TAGS.pack(request.replica_id, request.replica_epoch, 0)
        fields.append(tagged(1, state))
    return tag_buffer(fields)


def write_partition_tags(version: int, partition: FetchPartition) -> bytes:
    """Returns the tag buffer of one partition. ``version`` is 17 or later."""
    fields = []
    if partition.replica_directory_id != NO_DIRECTORY_ID:
        fields.append(tagged(0, partition.replica_directory_id))
    if version >= 18 and partition.high_watermark != NO_HIGH_WATERMARK:
        fields.append(tagged(1, _INT64.pack(partition.high_watermark)))
    return tag_buffer(fields)
