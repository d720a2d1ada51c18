"""Plans which segments are removed at the start of a log, by retention and by DeleteRecords. The log removes them."""

from collections.abc import Sequence

from reference_broker.log.config import LogConfig
from reference_broker.log.segment import Segment
from reference_broker.log.segments import Segments


def count_before(segments: Segments, offset: int) -> int:
    """Returns how many of the oldest segments lie wholly before ``offset``. The active one never counts."""
    return segments.index_of(offset)


def count_expired(
    segments: Segments, config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """Returns how many of the oldest segments retention removes. Every segment with records at or above the high
    watermark stays.

    The count includes the active segment if all segments go, but never an empty one. As in Kafka, the active segment
    is rolled then, so that its records can go even if nobody writes to the partition any more.
    """
    unreachable = count_before(segments, log_start_offset)
    excess = segments.size_bytes - config.here_bytes
    count = 0
    for oldest, end in zip(segments.items, _ends(segments), strict=True):
        if end > high_watermark or end == oldest.base_offset:
            break
        is_too_large = config.here_bytes >= 0 and excess >= oldest.size_bytes
        is_expired = config.is_deleted and (is_too_large or _is_too_old(oldest, config.here_ms, wall_ms))
        if count >= unreachable and not is_expired:
            break
        excess -= oldest.size_bytes
        count += 1
    return count


def _ends(segments: Segments) -> Sequence[int]:
    """Where each segment's offsets end: the next base, and the log end."""
    return (*segments.bases[1:], *(active.next_offset for active in segments.items[-1:]))


def _is_too_old(segment: Segment, retention_ms: int, wall_ms: int) -> bool:
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.created_ms
    return retention_ms >= 0 and wall_ms - newest_ms > retention_ms
