"""Which neighbouring segments become one (Kafka's Cleaner.groupSegmentsBySize)."""

from reference_broker.log.partition_log import PartitionLog
from reference_broker.log.segment import MAX_RELATIVE_OFFSET, Segment

SEGMENTS_PER_GROUP = 16
"""How many segments may become one at most. They are swapped in one event."""


def groups(log: PartitionLog, end_offset: int) -> list[list[Segment]]:
    """Groups the segments that begin before ``end_offset``. A group has neighbours that fit together into one
    segment."""
    found: list[list[Segment]] = []
    size = entries = 0
    config = log.config
    for segment in log.segments:
        if segment.base_offset >= end_offset:
            break
        fits = (
            found
            and size + segment.size_bytes <= config.segment_bytes
            and (entries + len(segment.offsets)) * 8 <= config.segment_index_bytes
            and segment.next_offset - 1 - found[-1][0].base_offset <= MAX_RELATIVE_OFFSET
            and len(found[-1]) < SEGMENTS_PER_GROUP
        )
        if not fits:
            found.append([])
            size = entries = 0
        found[-1].append(segment)
        size += segment.size_bytes
        entries += len(segment.offsets)
    return found
