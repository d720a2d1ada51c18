"""Reads of a partition's log: one disk read per fetch, found through the in-memory index."""

from typing import TYPE_CHECKING

from reference_broker.records.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from reference_broker.log.partition_log import PartitionLog
    from reference_broker.log.segment import Segment

BOUNDARY_FROM_BYTES = 64 * 1024
"""Reads at least this large end at a batch that the index knows (it knows one every few KiB), so that the bytes need
neither walking nor copying; smaller ones are walked and fill their limit."""


class OffsetOutOfRange(Exception):  # noqa: N818 - the name is the contract between rooms
    """The offset lies below the log start or beyond the log end."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} lies outside {log_start_offset}..{log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


def read(log: "PartitionLog", offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> bytes:
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
    end_offset = min(end_offset, log.log_end_offset)
    if offset >= end_offset or (max_bytes <= 0 and not at_least_one):
        return b""
    at = log.segment_index_of(offset)
    segment = log.segments[at]
    if offset >= segment.next_offset:  # A hole at the segment's end, or an offset kept only by the next one's name.
        if at + 1 == len(log.segments) or log.segments[at + 1].base_offset >= end_offset:
            return b""
        segment = log.segments[at + 1]
    return _read_segment(log, segment, offset, max_bytes, end_offset, at_least_one)


def _read_segment(
    log: "PartitionLog", segment: "Segment", offset: int, max_bytes: int, end_offset: int, at_least_one: bool
) -> bytes:
    start = segment.position_of(log.disk, offset)
    stop = segment.size_bytes if end_offset >= segment.next_offset else _stop_before(log, segment, end_offset)
    if stop <= start:
        return b""
    if stop - start > max_bytes >= BOUNDARY_FROM_BYTES:
        boundary = segment.offsets.boundary_at_or_before(start + max_bytes)
        if boundary > start:
            stop = boundary
    if stop - start <= max_bytes:
        data = log.disk.read(segment.path, start, stop - start)
        if stop == segment.size_bytes:
            segment.remember(segment.next_offset, stop)
        return data
    return _read_walked(log, segment, start, stop, max_bytes, at_least_one)


def _read_walked(
    log: "PartitionLog", segment: "Segment", start: int, stop: int, max_bytes: int, at_least_one: bool
) -> bytes:
    """More is there than may be returned: as many whole batches as fit, at least one if asked for."""
    data = log.disk.read(segment.path, start, min(stop - start, max(max_bytes, HEADER_BYTES)))
    first = read_header(data)
    if first.size_bytes > max_bytes:
        return log.disk.read(segment.path, start, first.size_bytes) if at_least_one else b""
    size, next_offset = first.size_bytes, first.last_offset + 1
    while size + HEADER_BYTES <= len(data):
        header = read_header(data, size)
        if size + header.size_bytes > len(data):
            break
        size += header.size_bytes
        next_offset = header.last_offset + 1
    segment.remember(next_offset, start + size)
    return data[:size]


def _stop_before(log: "PartitionLog", segment: "Segment", end_offset: int) -> int:
    """Where the first batch starts that reaches ``end_offset``."""
    return segment.position_of(log.disk, end_offset)


def bytes_between(log: "PartitionLog", offset: int, end_offset: int) -> int:
    offset = max(offset, log.log_start_offset)
    end_offset = min(end_offset, log.log_end_offset)
    if offset >= end_offset:
        return 0
    first, last = log.segment_index_of(offset), log.segment_index_of(end_offset)
    total = sum(segment.size_bytes for segment in log.segments[first:last])
    total -= log.segments[first].position_of(log.disk, offset)
    return total + log.segments[last].position_of(log.disk, end_offset)
