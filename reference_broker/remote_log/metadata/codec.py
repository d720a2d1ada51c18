"""Values of ``__remote_log_metadata`` <-> events, in Kafka's layout (RemoteLogMetadataSerde): the frame version 1, the
API key and the record's version as varints, then the record. Records have no key.

CustomMetadata, which Kafka leaves to plug-ins, holds the leader epoch of the writer (int32). In the record of a
segment the number of the copy (int32) and the offset of the cluster's metadata (int64) follow. In that of an update
the state that the writer knows follows (int8, or -1).
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final, cast, get_args

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.remote_log.metadata.events import PartitionDelete, RemoteLogEvent, RemoteSegment, SegmentUpdate
from reference_broker.remote_log.metadata.records import (
    RemoteLogRecord,
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from reference_broker.remote_log.metadata.states import DeleteState, SegmentState
from reference_broker.wire.decoding import decoder
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.primitives import BAD_BYTES, error_of_bad_bytes, read_uvarint, uvarint

FRAME_VERSION: Final = 1
RECORD_VERSION: Final = 0

_OF_SEGMENT = Struct(">iiq")
_OF_UPDATE = Struct(">ib")
_ANY_STATE: Final = -1
_CLASSES: Final[Mapping[int, type]] = {cls.__api_key__: cls for cls in get_args(RemoteLogRecord)}


def encode(event: RemoteLogEvent) -> bytes:
    """Returns the value of the record that tells the event."""
    record = _record_of(event)
    kind: type = type(record)
    out = bytearray(uvarint(FRAME_VERSION) + uvarint(record.__api_key__) + uvarint(RECORD_VERSION))
    encoder(kind, kind, RECORD_VERSION)(out, record)
    return bytes(out)


def decode(data: bytes) -> RemoteLogEvent:
    """Raises DamagedRecord, also for a record that no broker of this kind has written."""
    try:
        frame, position = read_uvarint(data, 0)
        key, position = read_uvarint(data, position)
        version, position = read_uvarint(data, position)
        kind = _CLASSES.get(key)
        if frame != FRAME_VERSION or version != RECORD_VERSION or kind is None:
            raise DamagedRecord(f"type {key} version {version} (frame {frame}) is not known here")
        record, position = decoder(kind, kind, version)(data, position)
    except BAD_BYTES as failure:
        raise DamagedRecord(str(error_of_bad_bytes("a record", failure))) from None
    except ProtocolError as damage:
        raise DamagedRecord(str(damage)) from None
    if position != len(data):
        raise DamagedRecord(f"{kind.__name__} is followed by {len(data) - position} bytes too many")
    try:
        return _event_of(cast(RemoteLogRecord, record))
    except ValueError as wrong:
        raise DamagedRecord(str(wrong)) from None


def _record_of(event: RemoteLogEvent) -> RemoteLogRecord:
    partition = TopicIdPartitionEntry(name=event.topic, id=event.topic_id, partition=event.partition)
    if isinstance(event, PartitionDelete):
        return RemotePartitionDeleteMetadataRecord(
            topic_id_partition=partition,
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            remote_partition_delete_state=event.state,
        )
    segment_id = RemoteLogSegmentIdEntry(topic_id_partition=partition, id=event.segment_id)
    if isinstance(event, SegmentUpdate):
        return RemoteLogSegmentMetadataUpdateRecord(
            remote_log_segment_id=segment_id,
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            custom_metadata=_OF_UPDATE.pack(
                event.uploader_epoch, _ANY_STATE if event.known_as is None else event.known_as
            ),
            remote_log_segment_state=event.state,
        )
    return RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id,
        start_offset=event.start_offset,
        end_offset=event.end_offset,
        broker_id=event.broker_id,
        max_timestamp_ms=event.max_timestamp_ms,
        event_timestamp_ms=event.event_timestamp_ms,
        segment_leader_epochs=tuple(
            SegmentLeaderEpochEntry(leader_epoch=epoch, offset=offset) for epoch, offset in event.leader_epochs
        ),
        segment_size_in_bytes=event.size_bytes,
        custom_metadata=_OF_SEGMENT.pack(event.uploader_epoch, event.attempt, event.metadata_offset),
        remote_log_segment_state=event.state,
        txn_index_empty=not event.has_transaction_index,
    )


def _event_of(record: RemoteLogRecord) -> RemoteLogEvent:
    """Raises ValueError for a state that does not exist, or fields that do not fit together."""
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        return PartitionDelete(
            topic_id=record.topic_id_partition.id,
            topic=record.topic_id_partition.name,
            partition=record.topic_id_partition.partition,
            broker_id=record.broker_id,
            event_timestamp_ms=record.event_timestamp_ms,
            state=DeleteState(record.remote_partition_delete_state),
        )
    partition = record.remote_log_segment_id.topic_id_partition
    if isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
        epoch, known_as = _custom(_OF_UPDATE, record.custom_metadata)
        return SegmentUpdate(
            topic_id=partition.id,
            topic=partition.name,
            partition=partition.partition,
            segment_id=record.remote_log_segment_id.id,
            broker_id=record.broker_id,
            event_timestamp_ms=record.event_timestamp_ms,
            uploader_epoch=epoch,
            state=SegmentState(record.remote_log_segment_state),
            known_as=None if known_as == _ANY_STATE else SegmentState(known_as),
        )
    epoch, attempt, metadata_offset = _custom(_OF_SEGMENT, record.custom_metadata)
    segment = RemoteSegment(
        topic_id=partition.id,
        topic=partition.name,
        partition=partition.partition,
        segment_id=record.remote_log_segment_id.id,
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        max_timestamp_ms=record.max_timestamp_ms,
        broker_id=record.broker_id,
        event_timestamp_ms=record.event_timestamp_ms,
        size_bytes=record.segment_size_in_bytes,
        leader_epochs=tuple((each.leader_epoch, each.offset) for each in record.segment_leader_epochs),
        uploader_epoch=epoch,
        has_transaction_index=not record.txn_index_empty,
        state=SegmentState(record.remote_log_segment_state),
        attempt=attempt,
        metadata_offset=metadata_offset,
    )
    segment.validate()
    return segment


def _custom(layout: Struct, data: bytes | None) -> tuple[int, ...]:
    if data is None or len(data) != layout.size:
        raise ValueError("CustomMetadata is not what this broker writes")
    return layout.unpack(data)
