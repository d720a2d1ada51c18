"""The layouts of the private drafts in ``apis.DRAFTS``. Kafka's design pages had them, but no release shipped them.

The annotation of a field names its Kafka type, from which ``schema`` reads the layout. Drafts are never flexible. Error
codes are plain numbers because kio's ``ErrorCode`` cannot hold private ones.

Most draft requests carry a subset of a released version's fields. They are decoded to the class that the API's
handler sees in every other version. The requests in ``OWN_REQUESTS`` carry more, so they have a class of their own.
Every draft response has a class of its own too.

- Metadata, OffsetCommit and OffsetFetch 1000 and 1001 carry the metadata epoch (KIP-232). It is an int64 at the place
  where that page's schemas have it, and -1 when no epoch is known. Version 1001 adds what that page could not know of:
  leader epochs (KIP-320), topic IDs (KIP-516), group.instance.id (KIP-345) and stable offsets (KIP-447).
- UpdateMetadata 1000 and 1001 is the metadata that a controller sends to each broker, with the metadata epoch
  (KIP-232). Version 1000 is that page's schema on UpdateMetadata 4. Version 1001 adds what that page could not know of,
  and is what the nodes use between them.
- FetchSnapshot 1000 is KIP-630's snapshots as its page had them before the release (S-17).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, TypeVar, dataclass_transform
from uuid import UUID

from reference_broker.wire.apis import WITH_LEADER_EPOCHS, ApiKey

DraftT = TypeVar("DraftT")

Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]
Bool: TypeAlias = Annotated[bool, "bool"]
String: TypeAlias = Annotated[str, "string"]
Bytes: TypeAlias = Annotated[bytes, "bytes"]
Uuid: TypeAlias = Annotated[UUID, "uuid"]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def draft(cls: type[DraftT]) -> type[DraftT]:
    """Declare one struct of a draft. Its fields stand in the order of the wire."""
    cls.__flexible__ = False  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@draft
class MetadataRequestTopic1000:
    """One requested topic."""

    name: String


@draft
class MetadataRequest1000:
    """The layout of Metadata 5. Handlers and clients see Metadata's ordinary request. ``topics`` None requests all."""

    topics: tuple[MetadataRequestTopic1000, ...] | None
    allow_auto_topic_creation: Bool = True


@draft
class MetadataBroker1000:
    """A live broker."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


@draft
class MetadataPartition1000:
    """One partition. ``leader_id`` is -1 while it has no leader."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    offline_replicas: tuple[Int32, ...] = ()


@draft
class MetadataTopic1000:
    """One topic, or the error that explains why it is not described."""

    error_code: Int16 = 0
    name: String
    is_internal: Bool = False
    partitions: tuple[MetadataPartition1000, ...]


@draft
class MetadataResponse1000:
    """Metadata 5's layout plus ``metadata_epoch``, that of the last update that the serving broker applied (M-4). While
    the metadata epoch is switched off it is the last one that there was, or -1 if there was none."""

    throttle_time_ms: Int32 = 0
    brokers: tuple[MetadataBroker1000, ...]
    cluster_id: String | None = None
    controller_id: Int32 = -1
    metadata_epoch: Int64 = -1
    topics: tuple[MetadataTopic1000, ...]


@draft
class MetadataPartition1001:
    """As in 1000, with the leader's epoch, -1 if it is not known."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    offline_replicas: tuple[Int32, ...] = ()


@draft
class MetadataTopic1001:
    """As in 1000, with the topic's ID. It is all zero for a topic that does not exist."""

    error_code: Int16 = 0
    name: String
    topic_id: Uuid | None = None
    is_internal: Bool = False
    partitions: tuple[MetadataPartition1001, ...]


@draft
class MetadataResponse1001:
    """As 1000, with topic IDs and leader epochs."""

    throttle_time_ms: Int32 = 0
    brokers: tuple[MetadataBroker1000, ...]
    cluster_id: String | None = None
    controller_id: Int32 = -1
    metadata_epoch: Int64 = -1
    topics: tuple[MetadataTopic1001, ...]


@draft
class OffsetCommitRequestPartition1000:
    """``metadata_epoch`` is that of the last metadata that the consumer accepted (M-6)."""

    partition_index: Int32
    committed_offset: Int64
    metadata_epoch: Int64 = -1
    committed_metadata: String | None = None


@draft
class OffsetCommitRequestTopic1000:
    """One topic."""

    name: String
    partitions: tuple[OffsetCommitRequestPartition1000, ...]


@draft
class OffsetCommitRequest1000:
    """OffsetCommit 3's layout plus an epoch per partition. ``retention_time_ms`` replaces the broker's retention; -1
    leaves it."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    retention_time_ms: Int64 = -1
    topics: tuple[OffsetCommitRequestTopic1000, ...]


@draft
class OffsetCommitResponsePartition1000:
    """This is where INVALID_METADATA_EPOCH (M-7) is reported."""

    partition_index: Int32
    error_code: Int16 = 0


@draft
class OffsetCommitResponseTopic1000:
    """One topic."""

    name: String
    partitions: tuple[OffsetCommitResponsePartition1000, ...]


@draft
class OffsetCommitResponse1000:
    """The layout of OffsetCommit 3."""

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetCommitResponseTopic1000, ...]


@draft
class OffsetFetchRequestTopic1000:
    """One topic."""

    name: String
    partition_indexes: tuple[Int32, ...] = ()


@draft
class OffsetFetchRequest1000:
    """The layout of OffsetFetch 3, for one group. ``topics`` None requests all topics that have offsets."""

    group_id: String
    topics: tuple[OffsetFetchRequestTopic1000, ...] | None


@draft
class OffsetFetchResponsePartition1000:
    """``committed_offset`` is -1 if none is committed. ``metadata_epoch`` is -1 if none is recorded (M-9, M-11)."""

    partition_index: Int32
    committed_offset: Int64 = -1
    metadata_epoch: Int64 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


@draft
class OffsetFetchResponseTopic1000:
    """One topic."""

    name: String
    partitions: tuple[OffsetFetchResponsePartition1000, ...]


@draft
class OffsetFetchResponse1000:
    """OffsetFetch 3's layout plus an epoch per partition."""

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetFetchResponseTopic1000, ...]
    error_code: Int16 = 0


@draft
class OffsetCommitRequestPartition1001:
    """As in 1000, with the epoch of the last record read, -1 if it is not known."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata_epoch: Int64 = -1
    committed_metadata: String | None = None


@draft
class OffsetCommitRequestTopic1001:
    """One topic."""

    name: String
    partitions: tuple[OffsetCommitRequestPartition1001, ...]


@draft
class OffsetCommitRequest1001:
    """OffsetCommit 7's layout plus an epoch per partition. The response is that of 1000."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: String | None = None
    topics: tuple[OffsetCommitRequestTopic1001, ...]


@draft
class OffsetFetchRequest1001:
    """The layout of OffsetFetch 7, for one group. ``topics`` None requests all topics that have offsets."""

    group_id: String
    topics: tuple[OffsetFetchRequestTopic1000, ...] | None
    require_stable: Bool = False


@draft
class OffsetFetchResponsePartition1001:
    """As in 1000, with the epoch of the last record before the offset, -1 if it is not known."""

    partition_index: Int32
    committed_offset: Int64 = -1
    committed_leader_epoch: Int32 = -1
    metadata_epoch: Int64 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


@draft
class OffsetFetchResponseTopic1001:
    """One topic."""

    name: String
    partitions: tuple[OffsetFetchResponsePartition1001, ...]


@draft
class OffsetFetchResponse1001:
    """OffsetFetch 7's layout plus a metadata epoch per partition."""

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetFetchResponseTopic1001, ...]
    error_code: Int16 = 0


@draft
class SnapshotId:
    """Identifies a snapshot by the offset after its last record and by that record's epoch."""

    end_offset: Int64
    epoch: Int32


@draft
class FetchSnapshotPartition1000:
    """``position`` is the first byte wanted. ``current_leader_epoch`` is -1 if it is not known."""

    partition: Int32
    current_leader_epoch: Int32
    snapshot_id: SnapshotId
    position: Int64


@draft
class FetchSnapshotTopic1000:
    """One topic of a request."""

    name: String
    partitions: tuple[FetchSnapshotPartition1000, ...]


@draft
class FetchSnapshotRequest1000:
    """The untagged fields of FetchSnapshot 0, so there is no cluster ID."""

    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFFFFFF
    topics: tuple[FetchSnapshotTopic1000, ...]


@draft
class PartitionSnapshots:
    """A piece of a snapshot that starts at byte ``position``.

    ``more`` (the page's Continue) is True if bytes remain after this piece. ``media_type`` describes the whole
    snapshot. Only the first piece carries it; it is empty in the others (S-17).
    """

    partition_index: Int32
    error_code: Int16 = 0
    media_type: String = ""
    more: Bool = False
    position: Int64 = 0
    data: Bytes = b""


@draft
class TopicSnapshots:
    """One topic of a response."""

    name: String
    partitions: tuple[PartitionSnapshots, ...]


@draft
class FetchSnapshotResponse1000:
    """KIP-630's response as its page had it before Size replaced Continue."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: tuple[TopicSnapshots, ...]


@draft
class UpdateMetadataPartition1000:
    """``leader`` is -1 while there is none, and -2 if the partition is deleted. ``zk_version`` is KRaft's partition
    epoch."""

    topic: String
    partition: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...] = ()
    zk_version: Int32
    replicas: tuple[Int32, ...] = ()
    offline_replicas: tuple[Int32, ...] = ()


@draft
class UpdateMetadataPartition1001:
    """As in 1000, with the topic's ID, which a broker has to report in Metadata from version 10 on (KIP-516)."""

    topic: String
    partition: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...] = ()
    zk_version: Int32
    replicas: tuple[Int32, ...] = ()
    offline_replicas: tuple[Int32, ...] = ()
    topic_id: Uuid | None = None


@draft
class UpdateMetadataEndpoint1000:
    """``security_protocol`` 0 is PLAINTEXT."""

    port: Int32
    host: String
    listener: String
    security_protocol: Int16 = 0


@draft
class UpdateMetadataBroker1000:
    """A live broker."""

    id: Int32
    endpoints: tuple[UpdateMetadataEndpoint1000, ...]
    rack: String | None = None


INCREMENTAL_UPDATE = 1

FULL_UPDATE = 2


@draft
class UpdateMetadataRequest1000:
    """UpdateMetadata 4's layout plus ``metadata_epoch`` (M-3). Each request lists all live brokers, but only the
    partitions that changed. A controller's first request lists all partitions."""

    controller_id: Int32
    controller_epoch: Int32
    metadata_epoch: Int64
    partition_states: tuple[UpdateMetadataPartition1000, ...]
    live_brokers: tuple[UpdateMetadataBroker1000, ...]


@draft
class UpdateMetadataRequest1001:
    """As 1000, with two fields that come from versions 5 and 8.

    ``broker_epoch`` names the incarnation of the broker that is addressed (KIP-380). ``type`` is FULL_UPDATE in the
    first request that a broker gets from a controller; that request replaces everything the broker was sent before.
    """

    controller_id: Int32
    controller_epoch: Int32
    metadata_epoch: Int64
    partition_states: tuple[UpdateMetadataPartition1001, ...]
    live_brokers: tuple[UpdateMetadataBroker1000, ...]
    broker_epoch: Int64 = -1
    type: Int8 = FULL_UPDATE


@draft
class UpdateMetadataResponse1000:
    """The error is STALE_CONTROLLER_EPOCH if the broker has applied an update of a newer controller. It is
    STALE_BROKER_EPOCH if the request addresses another incarnation of the broker. It is INVALID_REQUEST if the update
    is incremental and the broker has had no full one to build on."""

    error_code: Int16 = 0


LAYOUTS: Final[Mapping[tuple[int, int], tuple[type, type]]] = {
    (ApiKey.METADATA, 1000): (MetadataRequest1000, MetadataResponse1000),
    (ApiKey.UPDATE_METADATA, 1000): (UpdateMetadataRequest1000, UpdateMetadataResponse1000),
    (ApiKey.OFFSET_COMMIT, 1000): (OffsetCommitRequest1000, OffsetCommitResponse1000),
    (ApiKey.OFFSET_FETCH, 1000): (OffsetFetchRequest1000, OffsetFetchResponse1000),
    (ApiKey.FETCH_SNAPSHOT, 1000): (FetchSnapshotRequest1000, FetchSnapshotResponse1000),
    (ApiKey.METADATA, WITH_LEADER_EPOCHS): (MetadataRequest1000, MetadataResponse1001),
    (ApiKey.UPDATE_METADATA, WITH_LEADER_EPOCHS): (UpdateMetadataRequest1001, UpdateMetadataResponse1000),
    (ApiKey.OFFSET_COMMIT, WITH_LEADER_EPOCHS): (OffsetCommitRequest1001, OffsetCommitResponse1000),
    (ApiKey.OFFSET_FETCH, WITH_LEADER_EPOCHS): (OffsetFetchRequest1001, OffsetFetchResponse1001),
}
"""The class of the request and that of the response, by API key and version."""

OWN_REQUESTS: Final = frozenset(
    {
        (key, version)
        for key in (ApiKey.UPDATE_METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
        for version in (1000, WITH_LEADER_EPOCHS)
    }
)
"""Drafts whose request's layout is also the class that handlers see."""
