"""Reads a batch's records column by column. It works over the decompressed bytes. The cleaner needs no more
than a record's place, its offset, its key, and whether it has a value."""

from collections.abc import Sequence
from typing import NamedTuple

from reference_broker.records.batch import InvalidRecords
from reference_broker.records.record import read_zigzag, wrapped, zigzag
from reference_broker.wire.errors import ErrorCode


class Columns(NamedTuple):
    """Neighbouring records of one batch, by column."""

    starts: list[int]
    """A record's bytes, with the length in front, begin at its start and end where the next one begins."""
    offset_deltas: list[int]
    """Offsets relative to the base offset of the batch."""
    keys: list[bytes]
    """Empty for a record without a key."""
    keyless: list[int]
    """The indexes of the records without a key."""
    valueless: list[int]
    """The indexes of the records without a value."""

    def keyed(self, base_offset: int, from_offset: int) -> tuple[list[bytes], list[int]]:
        """The keys and the offsets of the records that have a key, from an offset on."""
        offsets = [base_offset + delta for delta in self.offset_deltas]
        if base_offset >= from_offset and not self.keyless:
            return self.keys, offsets
        keyless = set(self.keyless)
        chosen = [at for at, offset in enumerate(offsets) if offset >= from_offset and at not in keyless]
        return [self.keys[at] for at in chosen], [offsets[at] for at in chosen]


class Extent(NamedTuple):
    """The position of one record, and its timestamp, counted from the base timestamp of the batch."""

    start: int
    end: int
    timestamp_delta: int


def columns(plain: bytes, position: int, limit: int) -> tuple[Columns, int]:
    """Read at most ``limit`` records from byte ``position`` on. Return them and the position of the next record.
    Raise InvalidRecords (CORRUPT_MESSAGE) if the bytes are no records."""
    records = Columns([], [], [], [], [])
    try:
        return records, _read(plain, position, limit, records)
    except IndexError as error:
        raise _corrupt("a record ends inside a field") from error


def _read(plain: bytes, position: int, limit: int, records: Columns) -> int:
    """This is the cleaner's inner loop. So numbers of one and two bytes, as most are, are read without a call, and
    nothing is made of a record but its key."""
    size = len(plain)
    add_start, add_delta, add_key = records.starts.append, records.offset_deltas.append, records.keys.append
    for at in range(limit):
        if position >= size:
            break
        add_start(position)
        byte, position = plain[position], position + 1
        if byte < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
        elif (high := plain[position]) < 0x80:
            length, position = ((byte & 0x7F | high << 7) >> 1) ^ -(byte & 1), position + 1
        else:
            length, position = read_zigzag(plain, position - 1)
        end = position + length
        if length < 0 or end > size:
            raise _corrupt(f"a record claims {length} bytes, but {size - position} are left")
        position = position + 2 if plain[position + 1] < 0x80 else read_zigzag(plain, position + 1)[1]
        byte, position = plain[position], position + 1
        if byte < 0x80:
            add_delta((byte >> 1) ^ -(byte & 1))
        elif (high := plain[position]) < 0x80:
            add_delta(((byte & 0x7F | high << 7) >> 1) ^ -(byte & 1))
            position += 1
        else:
            delta, position = read_zigzag(plain, position - 1)
            add_delta(delta)
        byte, position = plain[position], position + 1
        if byte < 0x80:
            length = (byte >> 1) ^ -(byte & 1)
        else:
            length, position = read_zigzag(plain, position - 1)
        if length >= 0:
            key_at, position = position, position + length
            add_key(plain[key_at:position])
        else:
            add_key(b"")
            records.keyless.append(at)
        if position >= end:
            raise _corrupt(f"the key of a record ends at byte {position}, but the record ends at {end}")
        if plain[position] & 1:
            records.valueless.append(at)
        position = end
    return position


def extents(plain: bytes, starts: Sequence[int]) -> list[Extent]:
    """The records that begin at these places. They have been read before, so nothing is checked."""
    records = []
    for start in starts:
        length, position = read_zigzag(plain, start)
        records.append(Extent(start, position + length, read_zigzag(plain, position + 1)[0]))
    return records


def shifted(plain: bytes, record: Extent, timestamp_delta: int) -> bytes:
    """Return the record's bytes with another timestamp delta. A delta beyond int64 wraps around, as sums of timestamps
    do."""
    _, position = read_zigzag(plain, record.start)
    _, delta_end = read_zigzag(plain, position + 1)
    body = plain[position : position + 1] + zigzag(wrapped(timestamp_delta)) + plain[delta_end : record.end]
    return zigzag(len(body)) + body


def _corrupt(message: str) -> InvalidRecords:
    return InvalidRecords(ErrorCode.corrupt_message, message)
