"""Reads records from a log's segments. A fetch costs one disk read, whose position is from the index in memory."""

from bisect import bisect_right
from enum import Enum

from reference_broker.log.segment import Segment
from reference_broker.log.segments import Segments
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import HEADER_BYTES, iterate, read_header

BOUNDARY_FROM_BYTES = 64 * 1024
"""A read of at least this size ends at a batch that the index knows, so its bytes are neither walked nor copied. The
index knows a batch every few KiB. A smaller read is walked batch by batch, so that it uses its whole limit."""

READ_COMMITTED = 1
"""The isolation level of a consumer's request. Any other is read_uncommitted."""


class FetchIsolation(Enum):
    """The end of the records that a fetcher may read (Kafka's FetchIsolation)."""

    LOG_END = "log end"
    """A follower reads all records."""
    HIGH_WATERMARK = "high watermark"
    """A consumer reads replicated records (read_uncommitted)."""
    TXN_COMMITTED = "last stable offset"
    """A consumer reads up to the first open transaction, and gets the aborted ones (read_committed)."""

    @staticmethod
    def of(is_follower: bool, isolation_level: int) -> "FetchIsolation":
        if is_follower:
            return FetchIsolation.LOG_END
        return FetchIsolation.TXN_COMMITTED if isolation_level == READ_COMMITTED else FetchIsolation.HIGH_WATERMARK


class OffsetOutOfRange(Exception):  # noqa: N818 - the name is the contract between rooms
    """The offset is below the log start or beyond the log end."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} lies outside {log_start_offset}..{log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class MovedToRemote(Exception):  # noqa: N818 - says what was found
    """The record is in the remote tier, and no longer here (Kafka's OFFSET_MOVED_TO_TIERED_STORAGE)."""

    def __init__(self, offset: int, local_log_start_offset: int) -> None:
        super().__init__(f"offset {offset} lies before {local_log_start_offset}, where local records begin")
        self.offset = offset
        self.local_log_start_offset = local_log_start_offset


def read(segments: Segments, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> bytes:
    """Return whole batches, from the one that contains ``offset`` up to ``end_offset``. Both offsets are inside the
    log. See ``UnifiedLog.read`` for the limits."""
    segment = segments.items[-1]
    if offset < segment.base_offset:  # A reader in the active segment, as most are, needs no search.
        at = segments.index_of(offset)
        segment = segments.items[at]
        if offset >= segment.next_offset:  # The offset is in a hole at the segment's end: the next segment follows.
            segment = segments.items[at + 1]
            if segment.base_offset >= end_offset:
                return b""
    if offset >= segment.next_offset:
        return b""
    return _read_segment(segments.disk, segment, offset, max_bytes, end_offset, at_least_one)


def _read_segment(
    disk: Disk, segment: Segment, offset: int, max_bytes: int, end_offset: int, at_least_one: bool
) -> bytes:
    start = segment.position_of(disk, offset)
    stop = segment.size_bytes if end_offset >= segment.next_offset else segment.position_of(disk, end_offset)
    if stop <= start:
        return b""
    if stop - start > max_bytes >= BOUNDARY_FROM_BYTES:
        boundary = segment.offsets.boundary_at_or_before(start + max_bytes)
        if boundary > start:
            stop = boundary
    if stop - start <= max_bytes:
        data = disk.read(segment.path, start, stop - start)
        if stop == segment.size_bytes:
            segment.remember(segment.next_offset, stop)
        return data
    return _read_walked(disk, segment, start, stop, max_bytes, at_least_one)


def _read_walked(disk: Disk, segment: Segment, start: int, stop: int, max_bytes: int, at_least_one: bool) -> bytes:
    """Return as many whole batches as fit into ``max_bytes``. With ``at_least_one`` the first one always comes."""
    if not at_least_one and read_header(disk.read(segment.path, start, HEADER_BYTES)).size_bytes > max_bytes:
        return b""
    data = disk.read(segment.path, start, min(stop - start, max(max_bytes, HEADER_BYTES)))
    first = read_header(data)
    if first.size_bytes > max_bytes:
        return disk.read(segment.path, start, first.size_bytes)
    size, next_offset = first.size_bytes, first.last_offset + 1
    while size + HEADER_BYTES <= len(data):
        header = read_header(data, size)
        if size + header.size_bytes > len(data):
            break
        size += header.size_bytes
        next_offset = header.last_offset + 1
    segment.remember(next_offset, start + size)
    return data[:size]


def read_skipping_empty(segments: Segments, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> bytes:
    """Read whole batches from ``offset`` on. Skip batches without records, unless none with records follow."""
    active = segments.items[-1]
    if offset >= active.base_offset and not active.empty_ends:  # As for most readers, there is nothing to skip.
        return read(segments, offset, max_bytes, end_offset, at_least_one)
    first = first_with_records(segments, offset, end_offset)
    records = read(segments, first, max_bytes, end_offset, at_least_one)
    if not records and at_least_one and first != offset:  # The next records are beyond the end.
        return read(segments, offset, max_bytes, end_offset, at_least_one)
    return without_empty(segments, first, records)


def first_with_records(segments: Segments, offset: int, end_offset: int) -> int:
    """Return from where to read so that what comes first is a batch with records, if one begins before ``end_offset``.

    The cleaner keeps some batches without records. librdkafka and kafka-go take a response that has no others for one
    whose next record is too large. If no records follow, the reader gets the last segment with such batches, so that
    its position reaches the end.
    """
    items = segments.items
    last = offset
    for at in range(segments.index_of(offset), len(items)):
        segment = items[at]
        if segment.base_offset >= end_offset:
            break
        first = max(offset, segment.base_offset)
        position = segment.past_empty(first)
        if position < segment.next_offset:
            return position if position < end_offset else last
        if first < segment.next_offset:
            last = first
    return last


def without_empty(segments: Segments, offset: int, records: bytes) -> bytes:
    """Return what a read from ``offset`` gave, without batches that have no records, unless it has no others.
    kafka-go panics at one behind a batch with records."""
    segment = segments.items[segments.index_of(offset)]
    starts, base = segment.empty_starts, segment.base_offset
    following = bisect_right(starts, offset)
    if following == len(starts):
        return records
    # Most reads end before the next empty batch. The index shows that without a walk over headers.
    begins_by = segment.offsets.ceiling(offset - base, segment.size_bytes)
    if segment.offsets.floor(starts[following] - base) - begins_by >= len(records):
        return records
    view, pieces, start = memoryview(records), [], 0
    for position, header in iterate(records):
        if header.record_count == 0:
            pieces.append(view[start:position])
            start = position + header.size_bytes
    return b"".join((*pieces, view[start:])) or records if pieces else records


def bytes_between(segments: Segments, offset: int, end_offset: int) -> int:
    """Return how many bytes the batches have, from the one that holds ``offset`` up to ``end_offset``. Both offsets
    lie inside the log."""
    active = segments.items[-1]
    if offset >= active.base_offset:  # Most readers are in the active segment.
        return active.position_of(segments.disk, end_offset) - active.position_of(segments.disk, offset)
    first, last = segments.index_of(offset), segments.index_of(end_offset)
    total = sum(segment.size_bytes for segment in segments.items[first:last])
    total -= segments.items[first].position_of(segments.disk, offset)
    return total + segments.items[last].position_of(segments.disk, end_offset)
