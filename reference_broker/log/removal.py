"""Plans which segments are removed at the start of a log, by retention and by DeleteRecords. The log removes them."""

from reference_broker.log.config import LogConfig
from reference_broker.log.segment import Segment
from reference_broker.log.segments import Segments


def count_before(segments: Segments, offset: int) -> int:
    """Returns how many of the oldest segments lie wholly before ``offset``. The active one never counts."""
    return segments.index_of(offset)


def count_expired(
    segments: Segments, config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """Returns how many of the oldest segments retention removes. The active segment stays, and so does every segment
    with records at or above the high watermark."""
    unreachable = count_before(segments, log_start_offset)
    excess = segments.size_bytes - config.retention_bytes
    count = 0
    for oldest, next_base in zip(segments.items, segments.bases[1:], strict=False):
        if next_base > high_watermark:
            break
        is_too_large = config.retention_bytes >= 0 and excess >= oldest.size_bytes
        is_expired = config.is_deleted and (is_too_large or _is_too_old(oldest, config.retention_ms, wall_ms))
        if count >= unreachable and not is_expired:
            break
        excess -= oldest.size_bytes
        count += 1
    return count


def must_roll_first(segments: Segments, config: LogConfig, high_watermark: int, wall_ms: int) -> bool:
    """Whether the active segment is too old and wholly committed. As in Kafka it is rolled then, so that it can be
    removed even if nobody writes to the partition any more."""
    active = segments.items[-1] if segments.items else None
    return (
        active is not None
        and config.is_deleted
        and active.size_bytes > 0
        and high_watermark == active.next_offset
        and _is_too_old(active, config.retention_ms, wall_ms)
    )


def _is_too_old(segment: Segment, retention_ms: int, wall_ms: int) -> bool:
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.created_ms
    return retention_ms >= 0 and wall_ms - newest_ms > retention_ms
