"""The records of the metadata log, declared as kio declares schemas (kio itself lacks them).

The source is Apache Kafka's metadata/src/main/resources/common/metadata/*.json (4.1). ``__version__`` is the version
that is written, and ``__versions__`` is the highest that is read. ``since`` is the first version that has the field,
and ``tag`` marks a tagged field. UUIDs are 16 raw bytes. The reader skips tagged fields that are not declared here.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

NO_UUID = bytes(16)

_BOOL: dict[str, Any] = {"kafka_type": "bool"}
_INT8: dict[str, Any] = {"kafka_type": "int8"}
_INT16: dict[str, Any] = {"kafka_type": "int16"}
_INT32: dict[str, Any] = {"kafka_type": "int32"}
_INT64: dict[str, Any] = {"kafka_type": "int64"}
_UINT16: dict[str, Any] = {"kafka_type": "uint16"}
_UUID: dict[str, Any] = {"kafka_type": "uuid"}
_STRING: dict[str, Any] = {"kafka_type": "string"}
_NULLABLE_STRING: dict[str, Any] = {"kafka_type": "string", "nullable": True}
_INT32S: dict[str, Any] = {"kafka_type": "[]int32"}
_NULLABLE_INT32S: dict[str, Any] = {"kafka_type": "[]int32", "nullable": True}
_UUIDS: dict[str, Any] = {"kafka_type": "[]uuid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    name: str = field(metadata=_STRING)
    host: str = field(metadata=_STRING)
    port: int = field(metadata=_UINT16)
    security_protocol: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFeature:
    name: str = field(metadata=_STRING)
    min_supported_version: int = field(metadata=_INT16)
    max_supported_version: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    __api_key__: ClassVar[int] = 0
    __version__: ClassVar[int] = 3
    __versions__: ClassVar[int] = 3
    broker_id: int = field(metadata=_INT32)
    is_migrating_zk_broker: bool = field(metadata={**_BOOL, "since": 2}, default=False)
    incarnation_id: bytes = field(metadata=_UUID)
    broker_epoch: int = field(metadata=_INT64)
    end_points: tuple[BrokerEndpoint, ...] = field(metadata={"kafka_type": "[]", "of": BrokerEndpoint})
    features: tuple[BrokerFeature, ...] = field(metadata={"kafka_type": "[]", "of": BrokerFeature})
    rack: str | None = field(metadata=_NULLABLE_STRING, default=None)
    fenced: bool = field(metadata=_BOOL, default=True)
    in_controlled_shutdown: bool = field(metadata={**_BOOL, "since": 1}, default=False)
    log_dirs: tuple[bytes, ...] = field(metadata={**_UUIDS, "since": 3, "tag": 0}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    __api_key__: ClassVar[int] = 1
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    __api_key__: ClassVar[int] = 2
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    name: str = field(metadata=_STRING)
    topic_id: bytes = field(metadata=_UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    __api_key__: ClassVar[int] = 3
    __version__: ClassVar[int] = 1
    __versions__: ClassVar[int] = 2
    partition_id: int = field(metadata=_INT32, default=-1)
    topic_id: bytes = field(metadata=_UUID)
    replicas: tuple[int, ...] = field(metadata=_INT32S)
    isr: tuple[int, ...] = field(metadata=_INT32S)
    removing_replicas: tuple[int, ...] = field(metadata=_INT32S, default=())
    adding_replicas: tuple[int, ...] = field(metadata=_INT32S, default=())
    leader: int = field(metadata=_INT32, default=-1)
    leader_recovery_state: int = field(metadata={**_INT8, "tag": 0}, default=0)
    leader_epoch: int = field(metadata=_INT32, default=-1)
    partition_epoch: int = field(metadata=_INT32, default=-1)
    directories: tuple[bytes, ...] = field(metadata={**_UUIDS, "since": 1}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A ``value`` of None deletes the setting."""

    __api_key__: ClassVar[int] = 4
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    resource_type: int = field(metadata=_INT8)
    resource_name: str = field(metadata=_STRING)
    name: str = field(metadata=_STRING)
    value: str | None = field(metadata=_NULLABLE_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """A field that is None is not changed. For ``leader`` this is -2, and for ``leader_recovery_state`` it is -1."""

    __api_key__: ClassVar[int] = 5
    __version__: ClassVar[int] = 1
    __versions__: ClassVar[int] = 2
    partition_id: int = field(metadata=_INT32, default=-1)
    topic_id: bytes = field(metadata=_UUID)
    isr: tuple[int, ...] | None = field(metadata={**_NULLABLE_INT32S, "tag": 0}, default=None)
    leader: int = field(metadata={**_INT32, "tag": 1}, default=-2)
    replicas: tuple[int, ...] | None = field(metadata={**_NULLABLE_INT32S, "tag": 2}, default=None)
    removing_replicas: tuple[int, ...] | None = field(metadata={**_NULLABLE_INT32S, "tag": 3}, default=None)
    adding_replicas: tuple[int, ...] | None = field(metadata={**_NULLABLE_INT32S, "tag": 4}, default=None)
    leader_recovery_state: int = field(metadata={**_INT8, "tag": 5}, default=-1)
    directories: tuple[bytes, ...] | None = field(
        metadata={**_UUIDS, "nullable": True, "since": 1, "tag": 8}, default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    __api_key__: ClassVar[int] = 9
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    topic_id: bytes = field(metadata=_UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    __api_key__: ClassVar[int] = 12
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    name: str = field(metadata=_STRING)
    feature_level: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    __api_key__: ClassVar[int] = 15
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64, default=-1)
    next_producer_id: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """``fenced`` is -1 for unfenced, 0 for no change, and 1 for fenced. ``in_controlled_shutdown`` is 0 for no change,
    and 1 for yes."""

    __api_key__: ClassVar[int] = 17
    __version__: ClassVar[int] = 2
    __versions__: ClassVar[int] = 2
    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)
    fenced: int = field(metadata={**_INT8, "tag": 0}, default=0)
    in_controlled_shutdown: int = field(metadata={**_INT8, "since": 1, "tag": 1}, default=0)
    log_dirs: tuple[bytes, ...] = field(metadata={**_UUIDS, "since": 2, "tag": 2}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataEpoch:
    """The content of KIP-232's znode ``/metadata_epoch``."""

    version: int = field(metadata=_INT32, default=0)
    metadata_epoch: int = field(metadata=_INT64)


METADATA_EPOCH_TAG = 10000
"""It is far above Kafka's own tags, so that Kafka's tools skip it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord:
    """``metadata_epoch`` is not in Kafka's record. The metadata epoch is a tagged field of a record that otherwise
    changes nothing (M-1)."""

    __api_key__: ClassVar[int] = 20
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    metadata_epoch: MetadataEpoch | None = field(
        metadata={"kafka_type": "struct", "struct": MetadataEpoch, "tag": METADATA_EPOCH_TAG, "nullable": True},
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord:
    __api_key__: ClassVar[int] = 23
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    name: str | None = field(metadata={**_NULLABLE_STRING, "tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord:
    __api_key__: ClassVar[int] = 24
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord:
    __api_key__: ClassVar[int] = 25
    __version__: ClassVar[int] = 0
    __versions__: ClassVar[int] = 0
    reason: str | None = field(metadata={**_NULLABLE_STRING, "tag": 0}, default=None)


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)

MARKERS = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
"""The markers of metadata transactions (KIP-868)."""

LISTENER_NAME = "PLAINTEXT"
SECURITY_PROTOCOL_PLAINTEXT = 0
"""Every endpoint that a broker registers has this protocol and name, because each node has one listener."""
