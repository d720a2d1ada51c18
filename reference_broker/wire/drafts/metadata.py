"""Metadata 1000 and 1001, which carry the metadata epoch (KIP-232).

The epoch is an int64 at the place where that page's schemas have it. It is -1 when no epoch is known. Version 1001 adds
what that page could not know of: leader epochs (KIP-320) and topic IDs (KIP-516).
"""

from reference_broker.wire.drafts.layout import Bool, Int16, Int32, Int64, String, Uuid, draft


@draft
class MetadataRequestTopic1000:
    """One topic asked for."""

    name: String


@draft
class MetadataRequest1000:
    """The layout of Metadata 5. Handlers and clients see Metadata's ordinary request. ``topics`` None asks for all."""

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
