"""UpdateMetadata 1000 and 1001: the metadata that a controller sends to each broker, with the metadata epoch (KIP-232).

Version 1000 is that page's schema on UpdateMetadata 4. Version 1001 adds what that page could not know of, and is what
the nodes use between them.
"""

from reference_broker.wire.drafts.layout import Int8, Int16, Int32, Int64, String, Uuid, draft


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
