"""Records of a batch as rows over its decompressed bytes: the cleaner needs the key, and whether there is a value."""

from typing import NamedTuple

from reference_broker.records.batch import InvalidRecords
from reference_broker.records.varint import read_zigzag, wrapped, zigzag
from reference_broker.wire.errors import ErrorCode


class Row(NamedTuple):
    """The record's bytes run from ``start`` up to ``end``, with the length in front. Deltas are to the batch's base."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


_new = tuple.__new__


def rows(plain: bytes, position: int, limit: int) -> tuple[list[Row], int]:
    """At most ``limit`` records from byte ``position`` on, and where the next begins. Raises InvalidRecords
    (CORRUPT_MESSAGE) where the bytes are no records."""
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
    """Numbers of one byte, which most are, are read in place: this is the cleaner's inner loop."""
    byte = plain[start]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), start + 1
    else:
        length, position = read_zigzag(plain, start)
    end = position + length
    if length < 0 or end > len(plain):
        raise _corrupt(f"a record of {length} bytes, {len(plain) - position} are left")
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
        raise _corrupt(f"a record's key ends at byte {position}, the record at {end}")
    return _new(Row, (start, end, timestamp_delta, offset_delta, key, not plain[position] & 1))


def shifted(plain: bytes, row: Row, timestamp_delta: int) -> bytes:
    """The record's bytes with another timestamp delta. One beyond int64 wraps around, as sums of timestamps do."""
    _, position = read_zigzag(plain, row.start)
    _, rest = read_zigzag(plain, position + 1)
    body = plain[position : position + 1] + zigzag(wrapped(timestamp_delta)) + plain[rest : row.end]
    return zigzag(len(body)) + body


def _corrupt(message: str) -> InvalidRecords:
    return InvalidRecords(ErrorCode.corrupt_message, message)
