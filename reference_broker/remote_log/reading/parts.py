"""What readings take of a remote segment: its indexes whole, and its batches in blocks."""

from collections.abc import Iterator
from typing import Final

from reference_broker.records.batch import HEADER_BYTES, MAGIC, BatchHeader, InvalidRecords, read_header
from reference_broker.remote_log.metadata.events import RemoteSegment
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.remote_log.reading.ranges import Range
from reference_broker.remote_log.reading.readings import Reading
from reference_broker.wire.errors import ErrorCode

BLOCK_BYTES: Final = 1 << 20
"""A log object is read in blocks of this size. Readers at about the same place share them."""
LARGEST_SNAPSHOT_BYTES: Final = 256 << 20
"""A snapshot of four million producers."""


def whole(segment: RemoteSegment, kind: ObjectKind) -> Reading[bytes]:
    """The bytes of an object that is no log. No index is larger than its segment."""
    is_index = kind in (ObjectKind.OFFSET_INDEX, ObjectKind.TIME_INDEX, ObjectKind.TRANSACTION_INDEX)
    limit_bytes = segment.size_bytes if is_index else LARGEST_SNAPSHOT_BYTES
    return (yield Range(key_of(segment, kind), 0, limit_bytes, kind))


def block(segment: RemoteSegment, number: int) -> Range:
    """A block of the log object. The last one is shorter."""
    start = number * BLOCK_BYTES
    return Range(key_of(segment, ObjectKind.LOG), start, min(BLOCK_BYTES, segment.size_bytes - start), ObjectKind.LOG)


def block_count(segment: RemoteSegment) -> int:
    return -(-segment.size_bytes // BLOCK_BYTES)


def log_bytes(segment: RemoteSegment, position: int, end: int) -> Reading[bytes]:
    """The bytes of the log object in [position, end), inside the segment. Raises InvalidRecords if it is shorter."""
    pieces = []
    for number in range(position // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
        wanted = block(segment, number)
        data = yield wanted
        if len(data) < wanted.length:
            raise InvalidRecords(ErrorCode.corrupt_message, f"{wanted.key} ends at byte {wanted.position + len(data)}")
        pieces.append(data[max(position - wanted.position, 0) : end - wanted.position])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def window_end(segment: RemoteSegment, position: int, length: int) -> int:
    """Where a look at the headers from ``position`` on ends: after ``length`` bytes, and not in the next block, unless
    the first header reaches into it."""
    block_end = (position // BLOCK_BYTES + 1) * BLOCK_BYTES
    return min(max(min(position + length, block_end), position + HEADER_BYTES), segment.size_bytes)


def header_at(segment: RemoteSegment, position: int) -> Reading[BatchHeader]:
    """The header of the batch at a byte position. Raises InvalidRecords (CORRUPT_MESSAGE) if no whole batch begins
    there."""
    data = yield from log_bytes(segment, position, min(position + HEADER_BYTES, segment.size_bytes))
    return next(headers_in(segment, data, position))[1]


def headers_in(segment: RemoteSegment, data: bytes, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields (position, header) of the batches whose headers are in ``data``, which begins with the batch at byte
    ``position`` of the log object. There is at least one. Raises InvalidRecords where no whole batch begins."""
    at = 0
    while at == 0 or at + HEADER_BYTES <= len(data):
        header = _checked(segment, read_header(data, at), position + at)
        yield position + at, header
        at += header.size_bytes


def _checked(segment: RemoteSegment, header: BatchHeader, position: int) -> BatchHeader:
    size = header.size_bytes
    if header.magic != MAGIC or size < HEADER_BYTES or position + size > segment.size_bytes:
        where = key_of(segment, ObjectKind.LOG)
        raise InvalidRecords(ErrorCode.corrupt_message, f"{where}: no batch at byte {position}")
    return header
