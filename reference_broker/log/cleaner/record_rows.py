"""Reads the records of a batch as rows over its decompressed bytes. The cleaner needs no more than a record's place,
its key, and whether it has a value."""

from typing import NamedTuple

from reference_broker.records.batch import InvalidRecords
from reference_broker.records.varint import read_zigzag, wrapped, zigzag
from reference_broker.wire.errors import ErrorCode


class Row(NamedTuple):
    """One record. Its bytes, with the length in front, run from ``start`` up to ``end``. The deltas count from the base
    timestamp and the base offset of the batch."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


_new = tuple.__new__


def rows(plain: bytes, position: int, limit: int) -> tuple[list[Row], int]:
    """Reads at most ``limit`` records from byte ``position`` on. Returns them and the position of the next record.
    Raises InvalidRecords (CORRUPT_MESSAGE) if the bytes are no records."""
    found: list[Row] = []
    size = len(plain)
    try:
        while position < size and len(found) < limit:
            row = _row(plain, position)
            position = row[1]
            found.append(row)
    except IndexError as error:
        raise _corrupt("a record ends inside a field") from error
    return found, position


def _row(plain: bytes, start: int) -> Row:
    """Reads one record. This is the cleaner's inner loop, so numbers of one byte, as most are, are read without a
    call."""
    byte = plain[start]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), start + 1
    else:
        length, position = read_zigzag(plain, start)
    end = position + length
    if length < 0 or end > len(plain):
        raise _corrupt(f"a record claims {length} bytes, but {len(plain) - position} are left")
    byte = plain[position + 1]
    if byte < 0x80:
        timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
    else:
        timestamp_delta, position = read_zigzag(plain, position + 1)
    byte = plain[position]
    if byte < 0x80:
        offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        offset_delta, position = read_zigzag(plain, position)
    byte = plain[position]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = read_zigzag(plain, position)
    key = None
    if length >= 0:
        key = plain[position : position + length]
        position += length
    if position >= end:
        raise _corrupt(f"the key of a record ends at byte {position}, but the record ends at {end}")
    return _new(Row, (start, end, timestamp_delta, offset_delta, key, not plain[position] & 1))


def shifted(plain: bytes, row: Row, timestamp_delta: int) -> bytes:
    """Returns the record's bytes with another timestamp delta. A delta beyond int64 wraps around, as sums of timestamps
    do."""
    _, position = read_zigzag(plain, row.start)
    _, rest = read_zigzag(plain, position + 1)
    body = plain[position : position + 1] + zigzag(wrapped(timestamp_delta)) + plain[rest : row.end]
    return zigzag(len(body)) + body


def _corrupt(message: str) -> InvalidRecords:
    return InvalidRecords(ErrorCode.corrupt_message, message)
