"""Whole batches of a remote segment, from the one that holds an offset on."""

from typing import Final, NamedTuple

from reference_broker.records.batch import HEADER_BYTES, iterate
from reference_broker.remote_log.metadata.events import RemoteSegment
from reference_broker.remote_log.objects import ObjectKind
from reference_broker.remote_log.reading.parts import header_at, headers_in, log_bytes, whole, window_end
from reference_broker.remote_log.reading.readings import Reading
from reference_broker.remote_log.reading.searching import boundary_before, floor_position

WALK_BYTES: Final = 16 * 1024
MOST_BYTES: Final = 4 << 20
"""A read gives no more than this, unless its first batch is larger. To put so many bytes together takes some 2 ms."""
HEADERS_PER_SLICE: Final = 1000
"""So many headers are looked at in one event, which takes some 2 ms."""
EMPTY_LENGTH: Final = (HEADER_BYTES - 12).to_bytes(4, "big")
"""The length field of a batch without records, which counts what follows the field."""
BOUNDARY_FROM_BYTES: Final = 64 * 1024
"""A read of so many bytes ends at a batch that the index knows, so that its batches need not be walked over."""


class Batches(NamedTuple):
    """``position`` and ``end_position`` are those of ``records`` in the log object. ``first_offset`` is the first
    offset of the first batch, and no batch reaches beyond ``end_offset``. Without records all three say where the
    batch lies that was not read, or the end of the segment. ``offset_index`` is the segment's offset index."""

    records: bytes
    position: int
    end_position: int
    first_offset: int
    end_offset: int
    offset_index: bytes


def batches_from(
    segment: RemoteSegment, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
) -> Reading[Batches]:
    """Reads whole batches, from the one that holds ``offset``, or the first one after it, up to ``end_offset``. That is
    the segment's end or an offset at which a batch begins.

    At most ``max_bytes``, except that the first batch comes whatever its size if ``at_least_one``. May return less than
    would fit: several batches have at most MOST_BYTES. Raises InvalidRecords where an object is damaged.
    """
    index = yield from whole(segment, ObjectKind.OFFSET_INDEX)
    position = floor_position(index, offset - segment.start_offset)
    stop = segment.size_bytes
    if end_offset < segment.next_offset:
        stop, _ = yield from _batch_of(segment, floor_position(index, end_offset - segment.start_offset), end_offset)
    position, first_offset = yield from _batch_of(segment, position, offset)
    if position >= stop:
        return Batches(b"", stop, stop, end_offset, end_offset, index)
    header = yield from header_at(segment, position)
    max_bytes, asked_bytes = min(max_bytes, MOST_BYTES), max_bytes
    if header.size_bytes > max_bytes:
        if header.size_bytes > asked_bytes and not at_least_one:
            return Batches(b"", position, position, first_offset, first_offset, index)
        data = yield from log_bytes(segment, position, position + header.size_bytes)
        return Batches(data, position, position + len(data), first_offset, header.last_offset + 1, index)
    if stop - position <= max_bytes:
        data = yield from log_bytes(segment, position, stop)
        return Batches(data, position, stop, first_offset, end_offset, index)
    boundary = boundary_before(index, position + max_bytes) if max_bytes >= BOUNDARY_FROM_BYTES else position
    if boundary > position:
        data = yield from log_bytes(segment, position, boundary)
        behind = yield from header_at(segment, boundary)
        return Batches(data, position, boundary, first_offset, behind.base_offset, index)
    data = yield from log_bytes(segment, position, position + max_bytes)
    size, next_offset = 0, first_offset
    for number, (at, each) in enumerate(headers_in(segment, data, position), 1):
        if number % HEADERS_PER_SLICE == 0:
            yield None
        if at + each.size_bytes <= position + len(data):
            size, next_offset = at + each.size_bytes - position, each.last_offset + 1
    return Batches(data[:size], position, position + size, first_offset, next_offset, index)


def without_empty(records: bytes) -> Reading[bytes]:
    """The batches that have records. The cleaner leaves others, and a topic may get a tier when it is not compacted any
    more."""
    if EMPTY_LENGTH not in records:
        return records
    view, kept = memoryview(records), []
    for number, (position, header) in enumerate(iterate(view), 1):
        if header.record_count:
            kept.append(view[position : position + header.size_bytes])
        if number % HEADERS_PER_SLICE == 0:
            yield None
    return b"".join(kept)


def _batch_of(segment: RemoteSegment, position: int, offset: int) -> Reading[tuple[int, int]]:
    """Walks from the batch at ``position`` to the one that holds ``offset``, or the first one after it. Returns its
    position and first offset: those of the segment's end if there is none. An index entry lies every few KiB, so the
    walk is short."""
    while position < segment.size_bytes:
        data = yield from log_bytes(segment, position, window_end(segment, position, WALK_BYTES))
        start = position
        for number, (position, header) in enumerate(headers_in(segment, data, start), 1):
            if number % HEADERS_PER_SLICE == 0:
                yield None
            if header.last_offset >= offset:
                return position, header.base_offset
        position += header.size_bytes
    return segment.size_bytes, segment.next_offset
