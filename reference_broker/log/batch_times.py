"""The times of a batch's records, in small steps. Each step yields its cost in units of about a microsecond.

A producer's records are not looked into before they are written, so a batch may hold anything. One whose bytes are no
records, that decompresses to more than MOST_PLAIN_BYTES, or whose records do not reach the timestamp of its header,
counts as its first offset with that timestamp. A reader that starts there misses nothing.
"""

from collections.abc import Generator, Iterator
from typing import TypeAlias, TypeVar

from reference_broker.records.batch import HEADER_BYTES, BatchHeader, Buffer, InvalidRecords
from reference_broker.records.compression import PIECE_BYTES, decompressed_pieces
from reference_broker.records.reader import MOST_PLAIN_BYTES
from reference_broker.records.varint import INT64_END, read_zigzag, wrapped
from reference_broker.wire.errors import ErrorCode

UNITS_PER_PIECE = 1000
"""A piece of a compressed batch."""
RECORDS_AT_ONCE = 500
UNITS_PER_RECORDS = 500

TimeAndOffset: TypeAlias = tuple[int, int]
FoundT = TypeVar("FoundT")
Steps: TypeAlias = Generator[int, None, FoundT]


def first_at(batch: Buffer, header: BatchHeader, timestamp_ms: int, start_offset: int) -> Steps[TimeAndOffset | None]:
    """The first record at or after ``start_offset`` whose timestamp is >= ``timestamp_ms``. None only where
    ``start_offset`` lies inside the batch."""
    try:
        plain = yield from _plain(batch, header)
        for times in _times(plain, header):
            for record_ms, offset in times:
                if record_ms >= timestamp_ms and offset >= start_offset:
                    return record_ms, offset
            yield UNITS_PER_RECORDS
    except InvalidRecords:
        pass
    return (header.max_timestamp_ms, header.base_offset) if header.base_offset >= start_offset else None


def largest_from(batch: Buffer, header: BatchHeader, start_offset: int) -> Steps[TimeAndOffset | None]:
    """The first record with the largest timestamp at or after ``start_offset``. None if there is none, or the bytes
    are no records."""
    best: TimeAndOffset | None = None
    try:
        plain = yield from _plain(batch, header)
        for times in _times(plain, header):
            for record_ms, offset in times:
                if offset >= start_offset and (best is None or record_ms > best[0]):
                    best = record_ms, offset
            yield UNITS_PER_RECORDS
    except InvalidRecords:
        return None
    return best


def _plain(batch: Buffer, header: BatchHeader) -> Steps[bytes]:
    """The decompressed records of a batch. Raises InvalidRecords."""
    body = memoryview(batch)[HEADER_BYTES:]
    if header.compression == 0:
        return bytes(body)
    pieces: list[bytes] = []
    for piece in decompressed_pieces(header.compression, body, MOST_PLAIN_BYTES):
        pieces.append(piece)
        yield UNITS_PER_PIECE * len(piece) // PIECE_BYTES
    return b"".join(pieces)


def _times(plain: bytes, header: BatchHeader) -> Iterator[list[tuple[int, int]]]:
    """(timestamp in ms, offset) of the records, RECORDS_AT_ONCE in each list. Keys and values are passed over. Raises
    InvalidRecords (CORRUPT_MESSAGE) where the bytes are no records, or are another number of records."""
    position = count = 0
    size, wanted, last_delta = len(plain), header.record_count, header.last_offset_delta
    append_ms = header.max_timestamp_ms if header.is_log_append_time else None
    found: list[tuple[int, int]] = []
    while position < size and count < wanted:
        length, start = read_zigzag(plain, position)
        position = start + length
        if length < 1 or position > size:
            raise InvalidRecords(ErrorCode.corrupt_message, f"a record of {length} bytes, {size - start} are left")
        timestamp_delta, at = read_zigzag(plain, start + 1)
        offset_delta, at = read_zigzag(plain, at)
        if not 0 <= offset_delta <= last_delta:
            raise InvalidRecords(ErrorCode.corrupt_message, f"a record lies {offset_delta} offsets behind its batch")
        time_ms = header.base_timestamp_ms + timestamp_delta if append_ms is None else append_ms
        if not -INT64_END <= time_ms < INT64_END:
            time_ms = wrapped(time_ms)
        found.append((time_ms, header.base_offset + offset_delta))
        count += 1
        if len(found) == RECORDS_AT_ONCE:
            yield found
            found = []
    if position != size or count != wanted:
        raise InvalidRecords(ErrorCode.corrupt_message, f"{count} records of {wanted}, {size - position} bytes follow")
    yield found
