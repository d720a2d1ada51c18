"""Lookup of offsets by timestamp. At most two batches are decoded: the one with the result, and the one
inside which the log starts.

A producer's records are not decoded before they are written, so a batch may contain anything. One whose bytes are no
records, that decompresses to more than MAX_PLAIN_BYTES, or whose records do not reach the timestamp of its header,
counts as its first offset with that timestamp. A reader that starts there misses nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.log.segment import Segment, headers
from reference_broker.log.segments import Segments
from reference_broker.ports.slicing import Budget, Sliced
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, Buffer, InvalidRecords
from reference_broker.records.compression import PIECE_BYTES, decompressed_pieces
from reference_broker.records.record import INT64_END, MAX_PLAIN_BYTES, read_zigzag, wrapped
from reference_broker.wire.errors import ErrorCode

HEADER_COST_US = 1
READ_COST_US = 30
"""A read of the disk, including the search of its position."""

PIECE_COST_US = 1000
"""A piece of a compressed batch."""

RECORDS_AT_ONCE = 500

RECORDS_COST_US = 500

TimeAndOffset: TypeAlias = tuple[int, int]


@dataclass(slots=True, frozen=True)
class FoundOffset:
    timestamp_ms: int
    offset: int
    leader_epoch: int


NOTHING = FoundOffset(-1, -1, -1)


class Overtaken(Exception):  # noqa: N818 - nothing is wrong: the search may be repeated
    """The log lost records that the search had passed (truncation, retention, cleaning)."""


@dataclass(slots=True)
class LookUp:
    """One search in one log. Its methods raise Overtaken, DiskError, and InvalidRecords (CORRUPT_MESSAGE) where a file
    is damaged so that the next batch is not found."""

    segments: Segments
    log_start_offset: int
    budget: Budget
    """In LOOKUP_US_PER_SLICE."""
    _cuts: int = 0

    def __post_init__(self) -> None:
        self._cuts = self.segments.durability.last_cut

    def first_at(self, timestamp_ms: int) -> Sliced[FoundOffset | None]:
        """Return the first record at or after the log start whose timestamp is >= ``timestamp_ms``."""
        start_offset = self.log_start_offset
        for segment in tuple(self.segments.items):
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            yield from self._spend(segment, READ_COST_US)
            after = segment.base_offset + segment.times.offset_before(timestamp_ms)
            for position, header in self._batches(segment, max(after, start_offset)):
                yield from self._spend(segment, HEADER_COST_US)
                if header.max_timestamp_ms < timestamp_ms or header.record_count == 0:
                    continue
                record = yield from self._first_of(segment, position, header, timestamp_ms)
                if record is not None:
                    return record
        return None

    def largest(self) -> Sliced[FoundOffset]:
        """Return the first record at or after the log start with the largest timestamp; NOTHING if there is none."""
        best = NOTHING
        for segment in tuple(self.segments.items):
            if segment.max_timestamp_ms <= best.timestamp_ms:
                continue
            yield from self._spend(segment, READ_COST_US)
            record = yield from self._largest_of_segment(segment)
            if record is not None and record.timestamp_ms > best.timestamp_ms:
                best = record
        return best

    def _largest_of_segment(self, segment: Segment) -> Sliced[FoundOffset | None]:
        """The headers say which batch has the largest timestamp. A batch inside which the log starts is decoded, since
        the record that has it may be before the log start."""
        if segment.base_offset >= self.log_start_offset:
            position = segment.max_timestamp_position
            header = next(headers(self.segments.disk, segment.path, position, segment.size_bytes))[1]
            if header.record_count > 0:
                return (yield from self._first_of(segment, position, header, header.max_timestamp_ms))
        best: FoundOffset | None = None
        latest: tuple[int, BatchHeader] | None = None
        for position, header in self._batches(segment, self.log_start_offset):
            yield from self._spend(segment, HEADER_COST_US)
            if header.record_count == 0:
                continue
            if header.base_offset < self.log_start_offset:
                best = yield from self._largest_of_batch(segment, position, header)
            elif latest is None or header.max_timestamp_ms > latest[1].max_timestamp_ms:
                latest = position, header
        if latest is None or (best is not None and best.timestamp_ms >= latest[1].max_timestamp_ms):
            return best
        return (yield from self._first_of(segment, *latest, latest[1].max_timestamp_ms))

    def _batches(self, segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        disk = self.segments.disk
        return headers(disk, segment.path, segment.position_of(disk, offset), segment.size_bytes)

    def _first_of(
        self, segment: Segment, position: int, header: BatchHeader, timestamp_ms: int
    ) -> Sliced[FoundOffset | None]:
        """Return the first record of a batch that reaches the timestamp. None only where the log starts inside the
        batch."""
        batch = self.segments.disk.read(segment.path, position, header.size_bytes)
        record = yield from first_at(batch, header, timestamp_ms, self.log_start_offset, self.budget)
        self._check(segment)
        return None if record is None else FoundOffset(*record, header.leader_epoch)

    def _largest_of_batch(self, segment: Segment, position: int, header: BatchHeader) -> Sliced[FoundOffset | None]:
        batch = self.segments.disk.read(segment.path, position, header.size_bytes)
        record = yield from largest_from(batch, header, self.log_start_offset, self.budget)
        self._check(segment)
        return None if record is None else FoundOffset(*record, header.leader_epoch)

    def _spend(self, relied_on: Segment, cost_us: int) -> Sliced[None]:
        if self.budget.spend(cost_us):
            yield
            self._check(relied_on)

    def _check(self, relied_on: Segment) -> None:
        """Raise Overtaken if the log has lost the segment, or records at its end."""
        items = self.segments.items
        exists = items and items[self.segments.index_of(relied_on.base_offset)] is relied_on
        if not exists or self.segments.durability.last_cut != self._cuts:
            raise Overtaken(f"{relied_on.path} is not what it was")


def first_at(
    batch: Buffer, header: BatchHeader, timestamp_ms: int, start_offset: int, budget: Budget
) -> Sliced[TimeAndOffset | None]:
    """Return the first record at or after ``start_offset`` whose timestamp is >= ``timestamp_ms``. None only where
    ``start_offset`` is inside the batch."""
    try:
        plain = yield from _plain(batch, header, budget)
        for times in _times(plain, header):
            for record_ms, offset in times:
                if record_ms >= timestamp_ms and offset >= start_offset:
                    return record_ms, offset
            if budget.spend(RECORDS_COST_US):
                yield
    except InvalidRecords:
        pass
    return (header.max_timestamp_ms, header.base_offset) if header.base_offset >= start_offset else None


def largest_from(batch: Buffer, header: BatchHeader, start_offset: int, budget: Budget) -> Sliced[TimeAndOffset | None]:
    """Return the first record with the largest timestamp at or after ``start_offset``. None if there is none, or the
    bytes are no records."""
    best: TimeAndOffset | None = None
    try:
        plain = yield from _plain(batch, header, budget)
        for times in _times(plain, header):
            for record_ms, offset in times:
                if offset >= start_offset and (best is None or record_ms > best[0]):
                    best = record_ms, offset
            if budget.spend(RECORDS_COST_US):
                yield
    except InvalidRecords:
        return None
    return best


def _plain(batch: Buffer, header: BatchHeader, budget: Budget) -> Sliced[bytes]:
    """Return the decompressed records of a batch. Raise InvalidRecords."""
    body = memoryview(batch)[HEADER_BYTES:]
    if header.compression == 0:
        return bytes(body)
    pieces: list[bytes] = []
    for piece in decompressed_pieces(header.compression, body, MAX_PLAIN_BYTES):
        pieces.append(piece)
        if budget.spend(PIECE_COST_US * len(piece) // PIECE_BYTES):
            yield
    return b"".join(pieces)


def _times(plain: bytes, header: BatchHeader) -> Iterator[list[tuple[int, int]]]:
    """(timestamp in ms, offset) of the records, RECORDS_AT_ONCE in each list. Keys and values are passed over. Raise
    InvalidRecords (CORRUPT_MESSAGE) where the bytes are no records, or are another number of records."""
    position = count = 0
    size, expected, last_delta = len(plain), header.record_count, header.last_offset_delta
    append_ms = header.max_timestamp_ms if header.is_log_append_time else None
    records: list[tuple[int, int]] = []
    while position < size and count < expected:
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
        records.append((time_ms, header.base_offset + offset_delta))
        count += 1
        if len(records) == RECORDS_AT_ONCE:
            yield records
            records = []
    if position != size or count != expected:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"{count} records of {expected}, {size - position} bytes follow"
        )
    yield records
