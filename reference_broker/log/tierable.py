"""Which segments of a log may be copied to the remote tier (Kafka's RemoteLogManager.candidateLogSegments)."""

from typing import Final, NamedTuple

from reference_broker.log.segments import Segments

MOST_AT_ONCE: Final = 200
"""To tell of so many takes some 0.5 ms."""


class TierableSegment(NamedTuple):
    """A closed segment. ``next_offset`` is where the one after it begins. ``transaction_index_path`` is empty if
    nothing was aborted. The index files are there after ``PartitionLog.write_index_files``."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    path: str
    offset_index_path: str
    time_index_path: str
    transaction_index_path: str


def tierable(segments: Segments, end_offset: int, from_offset: int) -> tuple[TierableSegment, ...]:
    """Returns those that lie wholly below ``end_offset`` and have offsets from ``from_offset`` on, at most MOST_AT_ONCE
    of them, the oldest first."""
    first, last = segments.index_of(from_offset), segments.index_of(end_offset)
    last = min(last, first + MOST_AT_ONCE)
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
