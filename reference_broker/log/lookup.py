"""Offsets by timestamp: exact, decoding one batch (two where the log starts inside the first)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_broker.log.segment import headers
from reference_broker.records.batch import BatchHeader, InvalidRecords
from reference_broker.records.reader import read_records

if TYPE_CHECKING:
    from reference_broker.log.partition_log import PartitionLog
    from reference_broker.log.segment import Segment


@dataclass(slots=True, frozen=True)
class FoundOffset:
    timestamp_ms: int
    offset: int
    leader_epoch: int


NOTHING = FoundOffset(-1, -1, -1)


def offset_for_timestamp(log: "PartitionLog", timestamp_ms: int) -> FoundOffset | None:
    for segment in log.segments:
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        after = segment.base_offset + segment.times.offset_before(timestamp_ms)
        start = segment.position_of(log.disk, max(after, log.log_start_offset))
        for position, header in headers(log.disk, segment.path, start, segment.size_bytes):
            if header.max_timestamp_ms < timestamp_ms:
                continue
            found = _first_from(log, segment, position, header, timestamp_ms)
            if found is not None:
                return found
    return None


def offset_of_max_timestamp(log: "PartitionLog") -> FoundOffset:
    best = NOTHING
    for segment in log.segments:
        if segment.max_timestamp_ms <= best.timestamp_ms:
            continue
        found = _max_of_segment(log, segment)
        if found is not None and found.timestamp_ms > best.timestamp_ms:
            best = found
    return best


def _max_of_segment(log: "PartitionLog", segment: "Segment") -> FoundOffset | None:
    if segment.base_offset >= log.log_start_offset:
        position = segment.max_timestamp_position
        header = next(headers(log.disk, segment.path, position, segment.size_bytes))[1]
        if header.record_count > 0:
            return _first_from(log, segment, position, header, segment.max_timestamp_ms)
    start = segment.position_of(log.disk, log.log_start_offset)
    best: FoundOffset | None = None
    for position, header in headers(log.disk, segment.path, start, segment.size_bytes):
        if best is not None and header.max_timestamp_ms <= best.timestamp_ms:
            continue
        for found in _records(log, segment, position, header):
            if best is None or found.timestamp_ms > best.timestamp_ms:
                best = found
    return best


def _first_from(
    log: "PartitionLog", segment: "Segment", position: int, header: BatchHeader, timestamp_ms: int
) -> FoundOffset | None:
    records = _records(log, segment, position, header)
    return next((found for found in records if found.timestamp_ms >= timestamp_ms), None)


def _records(log: "PartitionLog", segment: "Segment", position: int, header: BatchHeader) -> Iterator[FoundOffset]:
    """Timestamps and offsets of a batch's records from the log start on.

    A producer's records are never decoded before they are written, so they may be no records at all: such a batch
    counts as its first offset with its largest timestamp.
    """
    data = log.disk.read(segment.path, position, header.size_bytes)
    try:
        pairs = [(record.timestamp_ms, record.offset) for record in read_records(data)]
    except InvalidRecords:
        pairs = [(header.max_timestamp_ms, header.base_offset)]
    for timestamp_ms, offset in pairs:
        if offset >= log.log_start_offset:
            yield FoundOffset(timestamp_ms, offset, header.leader_epoch)
