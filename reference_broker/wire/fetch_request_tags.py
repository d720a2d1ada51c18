"""The tagged fields of Fetch requests.

Schema: FetchRequest.json. A request has ClusterId from version 12 and ReplicaState from 15 (KIP-903). A partition has
ReplicaDirectoryId from 17 (KIP-853) and HighWatermark from 18 (KIP-1166). A field is written only if the version has it
and its value is not the default. In an older version its tag is unknown and is skipped.
"""

from dataclasses import replace
from struct import Struct
from typing import Final

from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import NO_DIRECTORY_ID, NO_HIGH_WATERMARK, FetchPartition, FetchRequest
from reference_broker.wire.reading import (
    Frame,
    end_of,
    read_compact_nullable_string,
    read_tag,
    read_uvarint,
    skip_tagged_fields,
)
from reference_broker.wire.writing import compact_string, tag_buffer, tagged

_REPLICA_STATE: Final = Struct(">iq")
_REPLICA_STATE_AND_NO_TAGS: Final = Struct(">iqB")
_INT64: Final = Struct(">q")


def with_request_tags(version: int, request: FetchRequest, frame: Frame, offset: int) -> tuple[FetchRequest, int]:
    """Returns the request with the fields of the tag buffer at ``offset``, and the offset behind that buffer."""
    count, offset = read_uvarint(frame, offset)
    for _ in range(count):
        tag, start, offset = read_tag(frame, offset)
        if tag == 0:
            cluster_id, stop = read_compact_nullable_string(frame, start)
            request = replace(request, cluster_id=cluster_id)
        elif tag == 1 and version >= 15:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(frame, start)
            request = replace(request, replica_id=replica_id, replica_epoch=replica_epoch)
            stop = skip_tagged_fields(frame, start + 12)
        else:
            continue
        _check_size(tag, start, stop, offset)
    return request, offset


def with_partition_tags(
    version: int, partition: FetchPartition, frame: Frame, offset: int
) -> tuple[FetchPartition, int]:
    """Returns the partition with the fields of the tag buffer at ``offset``, and the offset behind that buffer."""
    count, offset = read_uvarint(frame, offset)
    for _ in range(count):
        tag, start, offset = read_tag(frame, offset)
        if tag == 0 and version >= 17:
            stop = end_of(frame, start, 16, "a directory ID")
            partition = replace(partition, replica_directory_id=bytes(frame[start:stop]))
        elif tag == 1 and version >= 18:
            (high_watermark,) = _INT64.unpack_from(frame, start)
            partition = replace(partition, high_watermark=high_watermark)
            stop = start + 8
        else:
            continue
        _check_size(tag, start, stop, offset)
    return partition, offset


def _check_size(tag: int, start: int, stop: int, end: int) -> None:
    if stop != end:
        raise ProtocolError(f"tagged field {tag} has {end - start} bytes, its value {stop - start}")


def write_request_tags(version: int, request: FetchRequest) -> bytes:
    """The tag buffer at the end of the body."""
    fields = []
    if request.cluster_id is not None:
        fields.append(tagged(0, compact_string(request.cluster_id)))
    if version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1):
        state = _REPLICA_STATE_AND_NO_TAGS.pack(request.replica_id, request.replica_epoch, 0)
        fields.append(tagged(1, state))
    return tag_buffer(fields)


def write_partition_tags(version: int, partition: FetchPartition) -> bytes:
    """The tag buffer of one partition, versions from 17 on."""
    fields = []
    if partition.replica_directory_id != NO_DIRECTORY_ID:
        fields.append(tagged(0, partition.replica_directory_id))
    if version >= 18 and partition.high_watermark != NO_HIGH_WATERMARK:
        fields.append(tagged(1, _INT64.pack(partition.high_watermark)))
    return tag_buffer(fields)
