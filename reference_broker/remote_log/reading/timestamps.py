"""The first record of a time in the remote tier."""

from typing import TypeVar

from reference_broker.log.timestamp_lookup import FoundOffset, Steps, Work, first_at
from reference_broker.remote_log.lineage import common_end
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment
from reference_broker.remote_log.metadata.partition_segments import PartitionSegments
from reference_broker.remote_log.objects import ObjectKind
from reference_broker.remote_log.reading.parts import BLOCK_BYTES, headers_in, log_bytes, whole, window_end
from reference_broker.remote_log.reading.readings import Reading
from reference_broker.remote_log.reading.searching import floor_position, offset_before

FoundT = TypeVar("FoundT")


def first_of_time(
    segments: PartitionSegments,
    lineage: LeaderEpochStarts,
    timestamp_ms: int,
    start_offset: int,
    end_offset: int,
) -> Reading[FoundOffset | None]:
    """The first record in [start_offset, end_offset) whose timestamp is >= ``timestamp_ms``, in the segments of a log
    with these leader epochs. None if there is none, or from where no segment is listed any more."""
    work, offset = Work(), start_offset
    while offset < end_offset and (segment := segments.segment_at(lineage, offset)) is not None:
        until = min(common_end(segment, lineage, end_offset), end_offset)
        if segment.max_timestamp_ms >= timestamp_ms:
            found = yield from _first_in(segment, timestamp_ms, offset, until, work)
            if found is not None:
                return found
        elif work.spend(1):
            yield None
        if until <= offset:
            return None
        offset = until
    return None


def _first_in(
    segment: RemoteSegment, timestamp_ms: int, start_offset: int, end_offset: int, work: Work
) -> Reading[FoundOffset | None]:
    times = yield from whole(segment, ObjectKind.TIME_INDEX)
    offsets = yield from whole(segment, ObjectKind.OFFSET_INDEX)
    after = max(offset_before(times, timestamp_ms), start_offset - segment.start_offset)
    position = floor_position(offsets, after)
    while position < segment.size_bytes:
        data = yield from log_bytes(segment, position, window_end(segment, position, BLOCK_BYTES))
        begin = position
        for position, header in headers_in(segment, data, begin):
            if header.base_offset >= end_offset:
                return None
            if work.spend(1):
                yield None
            if header.max_timestamp_ms < timestamp_ms or header.last_offset < start_offset or not header.record_count:
                continue
            batch = yield from log_bytes(segment, position, position + header.size_bytes)
            found = yield from _sliced(first_at(batch, header, timestamp_ms, start_offset), work)
            if found is not None:
                return FoundOffset(found[0], found[1], header.leader_epoch)
        position += header.size_bytes
    return None


def _sliced(steps: Steps[FoundT], work: Work) -> Reading[FoundT]:
    while True:
        try:
            units = next(steps)
        except StopIteration as end:
            found: FoundT = end.value
            return found
        if work.spend(units):
            yield None
