"""Layouts of the private drafts in ``apis.DRAFTS``. Kafka's design pages described them, but no release shipped them.

Most draft requests carry a subset of a released version's fields. They are decoded to the class that the API's
handler sees in every other version. The requests in ``OWN_REQUESTS`` carry more, so they have a class of their own.
Every draft response has a class of its own too. The classes are written like kio's, so the same codecs read their
fields. They are never flexible. Error codes are plain numbers because kio's ``ErrorCode`` cannot hold private ones.

The metadata epoch (KIP-232) is an int64 in Metadata, UpdateMetadata, OffsetCommit and OffsetFetch 1000, at the place
where that page's schemas have it. It is -1 when no epoch is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final
from uuid import UUID

from reference_broker.wire.apis import ApiKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    """Identifies a snapshot by the offset after its last record and by that record's epoch."""

    __flexible__: ClassVar[bool] = False
    end_offset: int = field(metadata={"kafka_type": "int64"})
    epoch: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotPartition1000:
    """``position`` is the first byte wanted. ``current_leader_epoch`` is -1 if it is not known."""

    __flexible__: ClassVar[bool] = False
    partition: int = field(metadata={"kafka_type": "int32"})
    current_leader_epoch: int = field(metadata={"kafka_type": "int32"})
    snapshot_id: SnapshotId
    position: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotTopic1000:
    """One topic of a request."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[FetchSnapshotPartition1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest1000:
    """The untagged fields of FetchSnapshot 0, so there is no cluster ID."""

    __flexible__: ClassVar[bool] = False
    replica_id: int = field(metadata={"kafka_type": "int32"}, default=-1)
    max_bytes: int = field(metadata={"kafka_type": "int32"}, default=0x7FFFFFFF)
    topics: tuple[FetchSnapshotTopic1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshots:
    """A piece of a snapshot that starts at byte ``position``.

    ``more`` (the page's Continue) is True if bytes remain after this piece. ``media_type`` describes the whole
    snapshot. Only the first piece carries it; it is empty in the others (S-17).
    """

    __flexible__: ClassVar[bool] = False
    partition_index: int = field(metadata={"kafka_type": "int32"})
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    media_type: str = field(metadata={"kafka_type": "string"}, default="")
    more: bool = field(metadata={"kafka_type": "bool"}, default=False)
    position: int = field(metadata={"kafka_type": "int64"}, default=0)
    data: bytes = field(metadata={"kafka_type": "bytes"}, default=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshots:
    """One topic of a response."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[PartitionSnapshots, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse1000:
    """KIP-630's response as its page had it before Size replaced Continue."""

    __flexible__: ClassVar[bool] = False
    throttle_time_ms: int = field(metadata={"kafka_type": "int32"}, default=0)
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    topics: tuple[TopicSnapshots, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic1000:
    """One topic asked for."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest1000:
    """The layout of Metadata 5. Handlers and clients see Metadata's ordinary request. ``topics`` None asks for all."""

    __flexible__: ClassVar[bool] = False
    topics: tuple[MetadataRequestTopic1000, ...] | None
    allow_auto_topic_creation: bool = field(metadata={"kafka_type": "bool"}, default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBroker1000:
    """A live broker."""

    __flexible__: ClassVar[bool] = False
    node_id: int = field(metadata={"kafka_type": "int32"})
    host: str = field(metadata={"kafka_type": "string"})
    port: int = field(metadata={"kafka_type": "int32"})
    rack: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPartition1000:
    """One partition. ``leader_id`` is -1 while it has no leader."""

    __flexible__: ClassVar[bool] = False
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    partition_index: int = field(metadata={"kafka_type": "int32"})
    leader_id: int = field(metadata={"kafka_type": "int32"})
    replica_nodes: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    isr_nodes: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    offline_replicas: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic1000:
    """One topic, or the error that explains why it is not described."""

    __flexible__: ClassVar[bool] = False
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)
    name: str = field(metadata={"kafka_type": "string"})
    is_internal: bool = field(metadata={"kafka_type": "bool"}, default=False)
    partitions: tuple[MetadataPartition1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse1000:
    """Metadata 5's layout plus ``metadata_epoch``, that of the last update that the serving broker applied (M-4)."""

    __flexible__: ClassVar[bool] = False
    throttle_time_ms: int = field(metadata={"kafka_type": "int32"}, default=0)
    brokers: tuple[MetadataBroker1000, ...]
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    controller_id: int = field(metadata={"kafka_type": "int32"}, default=-1)
    metadata_epoch: int = field(metadata={"kafka_type": "int64"}, default=-1)
    topics: tuple[MetadataTopic1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataPartition1000:
    """``leader`` is -1 while there is none, and -2 if the partition is deleted. ``zk_version`` is KRaft's partition
    epoch.

    ``topic_id`` is not in version 4. It was added because a broker gets its metadata only from these updates and has
    to report the ID in Metadata from version 10 on (KIP-516).
    """

    __flexible__: ClassVar[bool] = False
    topic: str = field(metadata={"kafka_type": "string"})
    partition: int = field(metadata={"kafka_type": "int32"})
    controller_epoch: int = field(metadata={"kafka_type": "int32"})
    leader: int = field(metadata={"kafka_type": "int32"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})
    isr: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    zk_version: int = field(metadata={"kafka_type": "int32"})
    replicas: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    offline_replicas: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataEndpoint1000:
    """``security_protocol`` 0 is PLAINTEXT."""

    __flexible__: ClassVar[bool] = False
    port: int = field(metadata={"kafka_type": "int32"})
    host: str = field(metadata={"kafka_type": "string"})
    listener: str = field(metadata={"kafka_type": "string"})
    security_protocol: int = field(metadata={"kafka_type": "int16"}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataBroker1000:
    """A live broker."""

    __flexible__: ClassVar[bool] = False
    id: int = field(metadata={"kafka_type": "int32"})
    endpoints: tuple[UpdateMetadataEndpoint1000, ...]
    rack: str | None = field(metadata={"kafka_type": "string"}, default=None)


INCREMENTAL_UPDATE = 1
FULL_UPDATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataRequest1000:
    """UpdateMetadata 4's layout plus ``metadata_epoch`` (M-3). Each request lists all live brokers, but only the
    partitions that changed.

    The last two fields come from versions 5 and 8. ``broker_epoch`` names the incarnation of the broker that is
    addressed (KIP-380). ``type`` is FULL_UPDATE in the first request that a broker gets from a controller; that
    request replaces everything the broker was told before.
    """

    __flexible__: ClassVar[bool] = False
    controller_id: int = field(metadata={"kafka_type": "int32"})
    controller_epoch: int = field(metadata={"kafka_type": "int32"})
    metadata_epoch: int = field(metadata={"kafka_type": "int64"})
    partition_states: tuple[UpdateMetadataPartition1000, ...]
    live_brokers: tuple[UpdateMetadataBroker1000, ...]
    broker_epoch: int = field(metadata={"kafka_type": "int64"}, default=-1)
    type: int = field(metadata={"kafka_type": "int8"}, default=FULL_UPDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataResponse1000:
    """The error is STALE_CONTROLLER_EPOCH if the broker has applied an update of a newer controller. It is
    STALE_BROKER_EPOCH if the request addresses another incarnation of the broker. It is INVALID_REQUEST if the update
    is incremental and the broker has had no full one to build on."""

    __flexible__: ClassVar[bool] = False
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition1000:
    """``metadata_epoch`` is that of the last metadata that the consumer accepted (M-6)."""

    __flexible__: ClassVar[bool] = False
    partition_index: int = field(metadata={"kafka_type": "int32"})
    committed_offset: int = field(metadata={"kafka_type": "int64"})
    metadata_epoch: int = field(metadata={"kafka_type": "int64"}, default=-1)
    committed_metadata: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic1000:
    """One topic."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[OffsetCommitRequestPartition1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest1000:
    """OffsetCommit 3's layout plus an epoch per partition. ``retention_time_ms`` is ignored, as it is since KIP-211."""

    __flexible__: ClassVar[bool] = False
    group_id: str = field(metadata={"kafka_type": "string"})
    generation_id_or_member_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    member_id: str = field(metadata={"kafka_type": "string"}, default="")
    retention_time_ms: int = field(metadata={"kafka_type": "int64"}, default=-1)
    topics: tuple[OffsetCommitRequestTopic1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition1000:
    """This is where INVALID_METADATA_EPOCH (M-7) is reported."""

    __flexible__: ClassVar[bool] = False
    partition_index: int = field(metadata={"kafka_type": "int32"})
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic1000:
    """One topic."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[OffsetCommitResponsePartition1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse1000:
    """The layout of OffsetCommit 3."""

    __flexible__: ClassVar[bool] = False
    throttle_time_ms: int = field(metadata={"kafka_type": "int32"}, default=0)
    topics: tuple[OffsetCommitResponseTopic1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic1000:
    """One topic."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partition_indexes: tuple[int, ...] = field(metadata={"kafka_type": "int32"}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest1000:
    """The layout of OffsetFetch 3, for one group. ``topics`` None asks for all topics that have offsets."""

    __flexible__: ClassVar[bool] = False
    group_id: str = field(metadata={"kafka_type": "string"})
    topics: tuple[OffsetFetchRequestTopic1000, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition1000:
    """``committed_offset`` is -1 if none is committed. ``metadata_epoch`` is -1 if none is recorded (M-9, M-11)."""

    __flexible__: ClassVar[bool] = False
    partition_index: int = field(metadata={"kafka_type": "int32"})
    committed_offset: int = field(metadata={"kafka_type": "int64"}, default=-1)
    metadata_epoch: int = field(metadata={"kafka_type": "int64"}, default=-1)
    metadata: str | None = field(metadata={"kafka_type": "string"}, default="")
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic1000:
    """One topic."""

    __flexible__: ClassVar[bool] = False
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[OffsetFetchResponsePartition1000, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse1000:
    """OffsetFetch 3's layout plus an epoch per partition."""

    __flexible__: ClassVar[bool] = False
    throttle_time_ms: int = field(metadata={"kafka_type": "int32"}, default=0)
    topics: tuple[OffsetFetchResponseTopic1000, ...]
    error_code: int = field(metadata={"kafka_type": "int16"}, default=0)


LAYOUTS: Final[Mapping[tuple[int, int], tuple[type, type]]] = {
    (ApiKey.METADATA, 1000): (MetadataRequest1000, MetadataResponse1000),
    (ApiKey.UPDATE_METADATA, 1000): (UpdateMetadataRequest1000, UpdateMetadataResponse1000),
    (ApiKey.OFFSET_COMMIT, 1000): (OffsetCommitRequest1000, OffsetCommitResponse1000),
    (ApiKey.OFFSET_FETCH, 1000): (OffsetFetchRequest1000, OffsetFetchResponse1000),
    (ApiKey.FETCH_SNAPSHOT, 1000): (FetchSnapshotRequest1000, FetchSnapshotResponse1000),
}
"""The class of the request and that of the response, by API key and version."""

OWN_REQUESTS: Final = frozenset(
    {(ApiKey.UPDATE_METADATA, 1000), (ApiKey.OFFSET_COMMIT, 1000), (ApiKey.OFFSET_FETCH, 1000)}
)
"""Drafts whose request's layout is also the class that handlers see."""
