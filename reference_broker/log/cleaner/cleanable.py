"""Finds the part of a log that may be cleaned now, and how much of the log is dirty (Kafka's LogCleanerManager)."""

from dataclasses import dataclass

from reference_broker.log.partition_log import PartitionLog
from reference_broker.ports.now import Now


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a log that may be cleaned.

    Everything below ``first_dirty_offset`` has been cleaned before. ``end_offset`` is the base offset of the first
    segment that must not be cleaned. ``clean_bytes`` and ``dirty_bytes`` are the sizes of the segments before and in
    the dirty part. ``overdue`` says that a dirty record has waited longer than ``max.compaction.lag.ms``.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def dirty_percent(self) -> int:
        return self.dirty_bytes * 100 // max(self.clean_bytes + self.dirty_bytes, 1)

    def is_due(self, min_dirty_ratio: float) -> bool:
        """Whether to clean the log now. As in Kafka, the dirty share must exceed ``min.cleanable.dirty.ratio``, or a
        record must be overdue."""
        dirty, total = self.dirty_bytes, self.clean_bytes + self.dirty_bytes
        return dirty > 0 and (self.overdue or dirty > min_dirty_ratio * total)


def cleanable(log: PartitionLog, now: Now) -> Cleanable | None:
    """Returns the part of the log that may be cleaned, or None if nothing in it is dirty.

    It ends before the active segment, before the last stable offset (and so the high watermark), and before any segment
    with a record younger than ``min.compaction.lag.ms``. For a log at rest the answer costs a comparison.
    """
    if len(log.segments) < 2 or log.bases[-1] <= log.cleaned_offset <= log.log_end_offset:
        return None
    first_dirty = log.cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    end = _end(log, first_dirty, now)
    if end <= first_dirty:
        return None
    at = log.segments.index_of(first_dirty)
    clean = sum(segment.size_bytes for segment in log.segments[:at])
    dirty_segments = log.segments[at : log.segments.index_of(end)]
    dirty = sum(segment.size_bytes for segment in dirty_segments)
    until_ms = now.wall_ms - log.config.max_compaction_lag_ms
    overdue = any(0 < segment.first_timestamp_ms < until_ms for segment in dirty_segments)
    return Cleanable(first_dirty, end, clean, dirty, overdue)


def _end(log: PartitionLog, first_dirty: int, now: Now) -> int:
    """Returns where cleaning must end. It is the base offset of a segment, since only whole segments are cleaned."""
    bound = min(log.last_stable_offset, log.bases[-1])
    last = log.segments.index_of(bound)
    if log.config.min_compaction_lag_ms > 0:
        youngest_ms = now.wall_ms - log.config.min_compaction_lag_ms
        for at in range(log.segments.index_of(first_dirty), last):
            if log.segments[at].max_timestamp_ms > youngest_ms:
                return log.bases[at]
    return log.bases[last]
