"""Finds offsets by timestamp. The answer is exact: the batch that holds it is decoded, and a second one if the log
starts inside the first."""

from collections.abc import Iterator
from dataclasses import dataclass

from reference_broker.log.segment import Segment, headers
from reference_broker.log.segments import Segments
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import BatchHeader, InvalidRecords
from reference_broker.records.reader import read_records


@dataclass(slots=True, frozen=True)
class FoundOffset:
    timestamp_ms: int
    offset: int
    leader_epoch: int


NOTHING = FoundOffset(-1, -1, -1)


def offset_for_timestamp(segments: Segments, log_start_offset: int, timestamp_ms: int) -> FoundOffset | None:
    """Finds the first record at or after the log start whose timestamp is >= ``timestamp_ms``, or None."""
    disk = segments.disk
    for segment in segments.items:
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        after = segment.base_offset + segment.times.offset_before(timestamp_ms)
        start = segment.position_of(disk, max(after, log_start_offset))
        for position, header in headers(disk, segment.path, start, segment.size_bytes):
            if header.max_timestamp_ms < timestamp_ms:
                continue
            found = _first_from(disk, segment, position, header, log_start_offset, timestamp_ms)
            if found is not None:
                return found
    return None


def offset_of_max_timestamp(segments: Segments, log_start_offset: int) -> FoundOffset:
    """Finds the first record at or after the log start with the largest timestamp, or NOTHING if there is none."""
    best = NOTHING
    for segment in segments.items:
        if segment.max_timestamp_ms <= best.timestamp_ms:
            continue
        found = _max_of_segment(segments.disk, segment, log_start_offset)
        if found is not None and found.timestamp_ms > best.timestamp_ms:
            best = found
    return best


def _max_of_segment(disk: Disk, segment: Segment, log_start_offset: int) -> FoundOffset | None:
    if segment.base_offset >= log_start_offset:
        position = segment.max_timestamp_position
        header = next(headers(disk, segment.path, position, segment.size_bytes))[1]
        if header.record_count > 0:
            return _first_from(disk, segment, position, header, log_start_offset, segment.max_timestamp_ms)
    start = segment.position_of(disk, log_start_offset)
    best: FoundOffset | None = None
    for position, header in headers(disk, segment.path, start, segment.size_bytes):
        if best is not None and header.max_timestamp_ms <= best.timestamp_ms:
            continue
        for found in _records(disk, segment, position, header, log_start_offset):
            if best is None or found.timestamp_ms > best.timestamp_ms:
                best = found
    return best


def _first_from(
    disk: Disk, segment: Segment, position: int, header: BatchHeader, log_start_offset: int, timestamp_ms: int
) -> FoundOffset | None:
    records = _records(disk, segment, position, header, log_start_offset)
    return next((found for found in records if found.timestamp_ms >= timestamp_ms), None)


def _records(
    disk: Disk, segment: Segment, position: int, header: BatchHeader, log_start_offset: int
) -> Iterator[FoundOffset]:
    """Yields the timestamps and offsets of a batch's records from the log start on.

    A producer's records are usually not decoded before they are written, so they may turn out to be unreadable. Such a
    batch counts as one record, with its first offset and its largest timestamp.
    """
    data = disk.read(segment.path, position, header.size_bytes)
    try:
        pairs = [(record.timestamp_ms, record.offset) for record in read_records(data)]
    except InvalidRecords:
        pairs = [(header.max_timestamp_ms, header.base_offset)]
    for timestamp_ms, offset in pairs:
        if offset >= log_start_offset:
            yield FoundOffset(timestamp_ms, offset, header.leader_epoch)
