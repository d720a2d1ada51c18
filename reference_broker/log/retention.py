"""Retention of the oldest segments, and which segments are tierable."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from reference_broker.log.config import LogConfig
from reference_broker.log.segment import Segment
from reference_broker.log.segments import Segments


def count_before(segments: Segments, offset: int) -> int:
    """Return how many of the oldest segments are wholly before ``offset``. The active one never counts."""
    return segments.index_of(offset)


def count_expired(
    segments: Segments, config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """Return how many of the oldest segments retention removes. Every segment with records at or above the high
    watermark stays.

    The count includes the active segment if all segments go, but never an empty one. As in Kafka, the active segment
    is rolled then, so that its records can go even if nobody writes to the partition any more.
    """
    unreachable = count_before(segments, log_start_offset)
    max_bytes, max_ms = config.effective_local_retention_bytes, config.effective_local_retention_ms
    excess_bytes = segments.size_bytes - max_bytes
    count = 0
    for oldest, end in zip(segments.items, _ends(segments), strict=True):
        if end > high_watermark or end == oldest.base_offset:
            break
        is_too_large = max_bytes >= 0 and excess_bytes >= oldest.size_bytes
        is_expired = config.has_delete_policy and (is_too_large or _is_too_old(oldest, max_ms, wall_ms))
        if count >= unreachable and not is_expired:  # Decision oldest-segment
            break
        excess_bytes -= oldest.size_bytes
        count += 1
    return count


def _ends(segments: Segments) -> Sequence[int]:
    """Return the end of each segment's offsets: the next base, and the log end."""
    return (*segments.bases[1:], *(active.next_offset for active in segments.items[-1:]))


def _is_too_old(segment: Segment, retention_ms: int, wall_ms: int) -> bool:
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.created_ms
    return retention_ms >= 0 and wall_ms - newest_ms > retention_ms


MAX_TIERABLE_SEGMENTS: Final = 200
"""Number of segments listed at once, which takes some 0.5 ms."""


class TierableSegment(NamedTuple):
    """A closed segment. Its index files exist after ``LogFiles.write_index_files``."""

    base_offset: int
    next_offset: int
    """The offset at which the next one begins."""
    size_bytes: int
    max_timestamp_ms: int
    path: str
    offset_index_path: str
    time_index_path: str
    transaction_index_path: str
    """Empty if nothing was aborted."""


def tierable(segments: Segments, end_offset: int, from_offset: int) -> tuple[TierableSegment, ...]:
    """Return the segments that are wholly below ``end_offset`` and have offsets from ``from_offset`` on, at most
    MAX_TIERABLE_SEGMENTS of them, the oldest first (Kafka's RemoteLogManager.candidateLogSegments)."""
    first, last = segments.index_of(from_offset), segments.index_of(end_offset)
    last = min(last, first + MAX_TIERABLE_SEGMENTS)
    return tuple(
        TierableSegment(
            segment.base_offset,
            next_offset,
            segment.size_bytes,
            segment.max_timestamp_ms,
            segment.path,
            segment.offsets.path,
            segment.times.path,
            segment.aborted.path if segment.aborted.count else "",
        )
        for segment, next_offset in zip(segments.items[first:last], segments.bases[first + 1 : last + 1], strict=True)
    )
