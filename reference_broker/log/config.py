"""Settings of one log: Kafka's topic configurations, with underscores for dots."""

from dataclasses import dataclass
from zlib import crc32

UNBOUNDED = 0x7FFFFFFFFFFFFFFF
AS_RETENTION = -2


@dataclass(slots=True, frozen=True)
class LogConfig:
    """Defaults are Kafka's. Units are bytes and milliseconds. -1 in a retention means without limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    """Largest time by which a segment is rolled before ``max_segment_ms``. Each segment has its own."""
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 7 * 24 * 3_600_000
    max_message_bytes: int = 1_048_588
    compression_type: str = "producer"
    """``producer``: batches stay as they come. Else the codec with which they are stored, or ``uncompressed``."""
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    """The levels with which batches are compressed here, by Kafka's numbers."""
    message_timestamp_type: str = "CreateTime"
    """``CreateTime`` or ``LogAppendTime``."""
    message_timestamp_before_max_ms: int = UNBOUNDED
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: str = "delete"
    """``delete``, ``compact`` or both, separated by a comma; empty: no record goes by age or size."""
    delete_retention_ms: int = 24 * 3_600_000
    """How long a tombstone stays after the first cleaning that finds it."""
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNBOUNDED
    remote_storage_enable: bool = False
    """Closed segments are copied to the remote tier. It is false where the broker has no tier
    (``remote.log.storage.system.enable``)."""
    remote_log_copy_disable: bool = False
    """Nothing is added to the tier. What is in it can be read."""
    remote_log_delete_on_disable: bool = False
    local_retention_bytes: int = AS_RETENTION
    local_retention_ms: int = AS_RETENTION
    """-2 means as in ``retention_bytes`` and ``retention_ms``."""
    flush_messages: int = UNBOUNDED
    """A produce is acknowledged only once at most this many records are not durable."""
    flush_ms: int = UNBOUNDED
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    producer_id_expiration_ms: int = 86_400_000
    """The broker setting ``producer.id.expiration.ms`` (P-7)."""
    producer_id_expiration_check_interval_ms: int = 600_000
    unknown_producer_id_policy: str = "accept"
    """The broker setting ``crucible.unknown.producer.id.policy`` (P-5): ``accept`` or ``reject``."""

    transaction_verification_enable: bool = False
    """The broker setting ``transaction.partition.verification.enable``: the coordinator of a transaction must know the
    partition before the first batch is appended (X-9). Brokers have it on."""

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy.split(",")

    @property
    def has_delete_policy(self) -> bool:
        return "delete" in self.cleanup_policy.split(",")

    @property
    def is_remote_copy_enabled(self) -> bool:
        """Whether segments are copied to the remote tier, and so deleted locally only when they are listed there."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def effective_local_retention_bytes(self) -> int:
        """The bytes of segments that stay on this disk, or -1: ``local.retention.bytes`` of a log that is copied to the
        remote tier, else ``retention.bytes``."""
        local = self.local_retention_bytes
        return local if self.is_remote_copy_enabled and local != AS_RETENTION else self.retention_bytes

    @property
    def effective_local_retention_ms(self) -> int:
        """The time that a segment stays on this disk, or -1."""
        local = self.local_retention_ms
        return local if self.is_remote_copy_enabled and local != AS_RETENTION else self.retention_ms

    @property
    def max_segment_ms(self) -> int:
        """The age at which the active segment is rolled. In a compacted log it is at most ``max.compaction.lag.ms``,
        because only closed segments are cleaned."""
        longest_ms = self.max_compaction_lag_ms
        return min(self.segment_ms, longest_ms) if self.is_compacted and longest_ms > 0 else self.segment_ms

    def roll_jitter_ms(self, segment: str) -> int:
        """By how many ms the segment of this file is rolled early. Kafka draws the number; here it is that of the
        file's name, so that a run can be repeated."""
        most_ms = min(self.segment_jitter_ms, self.segment_ms)
        return crc32(segment.encode()) % most_ms if most_ms > 0 else 0

    @property
    def compression_level(self) -> int | None:
        """The level of ``compression_type``, or None if the codec has no levels."""
        levels = {"gzip": self.compression_gzip_level, "lz4": self.compression_lz4_level}
        return {**levels, "zstd": self.compression_zstd_level}.get(self.compression_type)

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"
