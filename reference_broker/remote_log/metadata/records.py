"""The records of ``__remote_log_metadata``, declared as ``wire`` codes them.

The source is Apache Kafka's storage/src/main/resources/message: RemoteLogSegmentMetadataRecord,
RemoteLogSegmentMetadataUpdateRecord and RemotePartitionDeleteMetadataRecord (4.1). UUIDs are 16 raw bytes.
"""

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

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
