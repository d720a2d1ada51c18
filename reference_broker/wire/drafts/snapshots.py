"""FetchSnapshot 1000: KIP-630's snapshots as its page had them before the release (S-17)."""

from reference_broker.wire.drafts.layout import Bool, Bytes, Int16, Int32, Int64, String, draft


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
