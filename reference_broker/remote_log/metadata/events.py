"""The events in ``__remote_log_metadata``: copies of segments, changes of their state, deletions of partitions.

The states of a remote segment and of a deleted partition are KIP-405's RemoteLogSegmentState and
RemotePartitionDeleteState. A step from a state to itself is allowed: it is a repeated event. A step that is not in the
tables changes nothing.

Values of records have Kafka's layout (RemoteLogMetadataSerde): the frame version 1, the API key and the record's
version as varints, then the record. Records have no key. CustomMetadata, which Kafka leaves to plug-ins, has the leader
epoch of the writer (int32). In the record of a segment the number of the copy (int32) and the offset of the cluster's
metadata (int64) follow. In that of an update the state that the writer expects follows (int8, or -1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import ClassVar, Final, TypeAlias, cast, get_args

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.wire.decoding import decoder
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.primitives import BAD_BYTES, error_of_bad_bytes, read_uvarint, uvarint


class RemoteLogSegmentState(IntEnum):
    """The number is the one that records carry."""

    COPY_SEGMENT_STARTED = 0
    """Some of its objects may be stored. Nobody reads it."""
    COPY_SEGMENT_FINISHED = 1
    """All its objects are stored, and it is read."""
    DELETE_SEGMENT_STARTED = 2
    """Some of its objects may be gone. Nobody reads it any more."""
    DELETE_SEGMENT_FINISHED = 3
    """All its objects are gone, and it is forgotten."""


class RemotePartitionDeleteState(IntEnum):
    """The progress of the deletion of a partition. The number is that of the records."""

    DELETE_PARTITION_MARKED = 0
    """Its topic is deleted. Nothing is added any more."""
    DELETE_PARTITION_STARTED = 1
    """Some of its objects may be gone."""
    DELETE_PARTITION_FINISHED = 2
    """All its objects are gone, and it is forgotten."""


NEXT_SEGMENT_STATES: Final[Mapping[RemoteLogSegmentState | None, tuple[RemoteLogSegmentState, ...]]] = {
    None: (RemoteLogSegmentState.COPY_SEGMENT_STARTED,),
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: (
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: (
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    ),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: (RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,),
}
"""The states that may follow each state. None: the segment is not known yet."""

NEXT_DELETE_STATES: Final[Mapping[RemotePartitionDeleteState | None, tuple[RemotePartitionDeleteState, ...]]] = {
    None: (RemotePartitionDeleteState.DELETE_PARTITION_MARKED,),
    RemotePartitionDeleteState.DELETE_PARTITION_MARKED: (
        RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
        RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
    ),
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED: (
        RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
        RemotePartitionDeleteState.DELETE_PARTITION_FINISHED,
    ),
    RemotePartitionDeleteState.DELETE_PARTITION_FINISHED: (RemotePartitionDeleteState.DELETE_PARTITION_FINISHED,),
}
"""The states that may follow each state. None: the partition is not deleted."""


LeaderEpochStarts: TypeAlias = Sequence[tuple[int, int]]
"""Leader epochs with the offsets at which they began. Both rise strictly."""

NO_ATTEMPT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """One copy of a segment (Kafka's RemoteLogSegmentMetadata). Each attempt to copy it has another ``segment_id``."""

    topic_id: bytes
    """16 bytes."""
    topic: str
    partition: int
    segment_id: bytes
    """16 bytes, random."""
    start_offset: int
    end_offset: int
    """The last offset of the segment, inclusive."""
    max_timestamp_ms: int
    broker_id: int
    """The broker that wrote its last event."""
    event_timestamp_ms: int
    """When its last event was written."""
    size_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    """The leader epochs of the segment's records, each with its first offset in the segment."""
    uploader_epoch: int
    """The leader epoch of the partition in which it is copied. (In CustomMetadata.)"""
    has_transaction_index: bool
    """Whether the segment has an object with aborted transactions."""
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    attempt: int = NO_ATTEMPT
    """The number of the copy in ``uploader_epoch``, from 1 on. ``RemoteLogMetadata.write`` sets it with the first
    event, so that an event that is in the topic twice counts once. (In CustomMetadata.)"""
    metadata_offset: int = 0
    """The offset up to which its writer knew the cluster's metadata. A node that knows more, and not the topic, knows
    that it is deleted. ``RemoteLogMetadata.write`` sets it. (In CustomMetadata.)"""

    @property
    def next_offset(self) -> int:
        return self.end_offset + 1

    def validate(self) -> None:
        """Raise ValueError if the fields do not fit together."""
        if not 0 <= self.start_offset <= self.end_offset:
            raise ValueError(f"a segment has offsets {self.start_offset} to {self.end_offset}")
        if not self.leader_epochs or self.leader_epochs[0][1] > self.start_offset:
            raise ValueError(f"leader epochs {self.leader_epochs} do not cover a segment from {self.start_offset}")
        if any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairwise(self.leader_epochs)):
            raise ValueError(f"leader epochs {self.leader_epochs} do not rise")

    def epoch_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield each leader epoch that has records here, its first offset and one past its last offset here."""
        ends = [start for _, start in self.leader_epochs[1:]] + [self.next_offset]
        for (epoch, start), end in zip(self.leader_epochs, ends, strict=True):
            first, last = max(start, self.start_offset), min(end, self.next_offset)
            if first < last:
                yield epoch, first, last


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """A segment's next state (Kafka's RemoteLogSegmentMetadataUpdate)."""

    topic_id: bytes
    topic: str
    partition: int
    segment_id: bytes
    broker_id: int
    event_timestamp_ms: int
    uploader_epoch: int
    """The leader epoch of its writer. An event with an older one than the newest known is fenced."""
    state: RemoteLogSegmentState
    expected_state: RemoteLogSegmentState | None = None
    """The state that the segment must have, None for any. In another state the event changes nothing. So a copy whose
    end was written late is not deleted as an abandoned one. (In CustomMetadata.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadata:
    """A step of the deletion of a partition (RemotePartitionDeleteMetadata)."""

    topic_id: bytes
    topic: str
    partition: int
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


RemoteLogEvent: TypeAlias = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata


def update_of(
    segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, broker_id: int, uploader_epoch: int, wall_ms: int
) -> RemoteLogSegmentMetadataUpdate:
    """Return the event that brings ``segment`` from its present state to ``state``, written by this broker as the
    leader of that epoch."""
    return RemoteLogSegmentMetadataUpdate(
        topic_id=segment.topic_id,
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=broker_id,
        event_timestamp_ms=wall_ms,
        uploader_epoch=uploader_epoch,
        state=state,
        expected_state=segment.state,
    )


def lineage_of(log: UnifiedLog) -> LeaderEpochStarts:
    """Return each leader epoch of the log with its start offset."""
    return tuple(zip(log.epochs.epochs, log.epochs.starts, strict=True))


def common_end(segment: RemoteLogSegmentMetadata, lineage: LeaderEpochStarts, log_end_offset: int) -> int:
    """Return one past the last offset that the segment shares with a log of these leader epochs.

    After an unclean election the segment may have records that the log lost. They are not read. Those before the log's
    start are gone as well, but they do not hide the rest.
    """
    starts = [start for _, start in lineage]
    ends = {epoch: end for (epoch, _), end in zip(lineage, [*starts[1:], log_end_offset], strict=True)}
    for epoch, start, end in segment.epoch_ranges():
        if ends.get(epoch, start) < end and not (starts and end <= starts[0]):
            return max(ends.get(epoch, start), start)
    return segment.next_offset


_UUID = {"kafka_type": "uuid"}
_INT8 = {"kafka_type": "int8"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_BYTES = {"kafka_type": "bytes"}
_BOOL = {"kafka_type": "bool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdPartitionEntry:
    name: str = field(metadata=_STRING)
    id: bytes = field(metadata=_UUID)
    partition: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentIdEntry:
    topic_id_partition: TopicIdPartitionEntry
    id: bytes = field(metadata=_UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLeaderEpochEntry:
    leader_epoch: int = field(metadata=_INT32)
    offset: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataRecord:
    __api_key__: ClassVar[int] = 0

    remote_log_segment_id: RemoteLogSegmentIdEntry
    start_offset: int = field(metadata=_INT64)
    end_offset: int = field(metadata=_INT64)
    broker_id: int = field(metadata=_INT32)
    max_timestamp_ms: int = field(metadata=_INT64)
    event_timestamp_ms: int = field(metadata=_INT64)
    segment_leader_epochs: tuple[SegmentLeaderEpochEntry, ...]
    segment_size_in_bytes: int = field(metadata=_INT32)
    custom_metadata: bytes | None = field(metadata=_BYTES)
    remote_log_segment_state: int = field(metadata=_INT8)
    txn_index_empty: bool = field(metadata={**_BOOL, "tag": 0}, default=False)
    """Says that there is no transaction index (KIP-1058)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdateRecord:
    __api_key__: ClassVar[int] = 1

    remote_log_segment_id: RemoteLogSegmentIdEntry
    broker_id: int = field(metadata=_INT32)
    event_timestamp_ms: int = field(metadata=_INT64)
    custom_metadata: bytes | None = field(metadata=_BYTES)
    remote_log_segment_state: int = field(metadata=_INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadataRecord:
    __api_key__: ClassVar[int] = 2

    topic_id_partition: TopicIdPartitionEntry
    broker_id: int = field(metadata=_INT32)
    event_timestamp_ms: int = field(metadata=_INT64)
    remote_partition_delete_state: int = field(metadata=_INT8)


RemoteLogRecord: TypeAlias = (
    RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord | RemotePartitionDeleteMetadataRecord
)


FRAME_VERSION: Final = 1
RECORD_VERSION: Final = 0

_OF_SEGMENT = Struct(">iiq")
_OF_UPDATE = Struct(">ib")
_ANY_STATE: Final = -1
_CLASSES: Final[Mapping[int, type]] = {cls.__api_key__: cls for cls in get_args(RemoteLogRecord)}


def encode(event: RemoteLogEvent) -> bytes:
    """Return the value of the event's record."""
    record = _record_of(event)
    kind: type = type(record)
    out = bytearray(uvarint(FRAME_VERSION) + uvarint(record.__api_key__) + uvarint(RECORD_VERSION))
    encoder(kind, kind, RECORD_VERSION)(out, record)
    return bytes(out)


def decode(data: bytes) -> RemoteLogEvent:
    """Raise DamagedRecord, also for a record that no broker of this kind has written."""
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
    if isinstance(event, RemotePartitionDeleteMetadata):
        return RemotePartitionDeleteMetadataRecord(
            topic_id_partition=partition,
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            remote_partition_delete_state=event.state,
        )
    segment_id = RemoteLogSegmentIdEntry(topic_id_partition=partition, id=event.segment_id)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return RemoteLogSegmentMetadataUpdateRecord(
            remote_log_segment_id=segment_id,
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            custom_metadata=_OF_UPDATE.pack(
                event.uploader_epoch, _ANY_STATE if event.expected_state is None else event.expected_state
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
    """Raise ValueError for a state that does not exist, or fields that do not fit together."""
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        return RemotePartitionDeleteMetadata(
            topic_id=record.topic_id_partition.id,
            topic=record.topic_id_partition.name,
            partition=record.topic_id_partition.partition,
            broker_id=record.broker_id,
            event_timestamp_ms=record.event_timestamp_ms,
            state=RemotePartitionDeleteState(record.remote_partition_delete_state),
        )
    partition = record.remote_log_segment_id.topic_id_partition
    if isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
        epoch, expected_state = _custom(_OF_UPDATE, record.custom_metadata)
        return RemoteLogSegmentMetadataUpdate(
            topic_id=partition.id,
            topic=partition.name,
            partition=partition.partition,
            segment_id=record.remote_log_segment_id.id,
            broker_id=record.broker_id,
            event_timestamp_ms=record.event_timestamp_ms,
            uploader_epoch=epoch,
            state=RemoteLogSegmentState(record.remote_log_segment_state),
            expected_state=None if expected_state == _ANY_STATE else RemoteLogSegmentState(expected_state),
        )
    epoch, attempt, metadata_offset = _custom(_OF_SEGMENT, record.custom_metadata)
    segment = RemoteLogSegmentMetadata(
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
        state=RemoteLogSegmentState(record.remote_log_segment_state),
        attempt=attempt,
        metadata_offset=metadata_offset,
    )
    segment.validate()
    return segment


def _custom(layout: Struct, data: bytes | None) -> tuple[int, ...]:
    if data is None or len(data) != layout.size:
        raise ValueError("CustomMetadata is not what this broker writes")
    return layout.unpack(data)
