"""OffsetCommit and OffsetFetch 1000 and 1001, which carry a metadata epoch per partition (KIP-232).

The epoch is an int64 at the place where that page's schemas have it. It is -1 when no epoch is known. Version 1001 adds
what that page could not know of: leader epochs (KIP-320), group.instance.id (KIP-345) and stable offsets (KIP-447).
"""

from reference_broker.wire.drafts.layout import Bool, Int16, Int32, Int64, String, draft


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
    """The layout of OffsetFetch 3, for one group. ``topics`` None asks for all topics that have offsets."""

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
    """The layout of OffsetFetch 7, for one group. ``topics`` None asks for all topics that have offsets."""

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
