"""Lookup of offsets by timestamp, in slices. At most two batches are decoded: the one with the result, and the one
inside which the log starts.

A producer's records are not decoded before they are written, so a batch may contain anything. One whose bytes are no
records, that decompresses to more than MOST_PLAIN_BYTES, or whose records do not reach the timestamp of its header,
counts as its first offset with that timestamp. A reader that starts there misses nothing.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from reference_broker.log.segment import Segment, headers
from reference_broker.log.segments import Segments
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, Buffer, InvalidRecords
from reference_broker.records.compression import PIECE_BYTES, decompressed_pieces
from reference_broker.records.record import INT64_END, MOST_PLAIN_BYTES, read_zigzag, wrapped
from reference_broker.wire.errors import ErrorCode

SLICE_UNITS = 3000

UNITS_PER_HEADER = 1

UNITS_PER_READ = 30
"""A read of the disk, including the search of its position."""

UNITS_PER_PIECE = 1000
"""A piece of a compressed batch."""

RECORDS_AT_ONCE = 500

UNITS_PER_RECORDS = 500

FoundT = TypeVar("FoundT")

TimeAndOffset: TypeAlias = tuple[int, int]

Steps: TypeAlias = Generator[int, None, FoundT]


@dataclass(slots=True, frozen=True)
class FoundOffset:
    timestamp_ms: int
    offset: int
    leader_epoch: int


NOTHING = FoundOffset(-1, -1, -1)

Search: TypeAlias = Generator[None, None, FoundT]
"""Yields at the end of each slice. Between slices the log may change as it likes."""


class Overtaken(Exception):  # noqa: N818 - nothing is wrong: the search may begin anew
    """The log lost records that the search had passed (truncation, retention, cleaning)."""


@dataclass(slots=True)
class Work:
    """The work of one slice, in units of about a microsecond. Several searches may share it."""

    left: int = SLICE_UNITS

    def spend(self, units: int) -> bool:
        """Returns True when the slice is used up and it is time to yield."""
        self.left -= units
        if self.left > 0:
            return False
        self.left = SLICE_UNITS
        return True


def in_one_go(search: Search[FoundT]) -> FoundT:
    """Runs a search to its end."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: FoundT = end.value
            return found


@dataclass(slots=True)
class LookUp:
    """One search in one log. Its methods raise Overtaken, DiskError, and InvalidRecords (CORRUPT_MESSAGE) where a file
    is damaged so that the next batch is not found."""

    segments: Segments
    log_start_offset: int
    work: Work
    _cuts: int = 0

    def __post_init__(self) -> None:
        self._cuts = self.segments.durability.last_cut

    def first_at(self, timestamp_ms: int) -> Search[FoundOffset | None]:
        """The first record at or after the log start whose timestamp is >= ``timestamp_ms``."""
        start_offset = self.log_start_offset
        for segment in tuple(self.segments.items):
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            yield from self._pause(segment, UNITS_PER_READ)
            after = segment.base_offset + segment.times.offset_before(timestamp_ms)
            for position, header in self._batches(segment, max(after, start_offset)):
                yield from self._pause(segment, UNITS_PER_HEADER)
                if header.max_timestamp_ms < timestamp_ms or header.record_count == 0:
                    continue
                found = yield from self._first_of(segment, position, header, timestamp_ms)
                if found is not None:
                    return found
        return None

    def largest(self) -> Search[FoundOffset]:
        """The first record at or after the log start with the largest timestamp; NOTHING if there is none."""
        best = NOTHING
        for segment in tuple(self.segments.items):
            if segment.max_timestamp_ms <= best.timestamp_ms:
                continue
            yield from self._pause(segment, UNITS_PER_READ)
            found = yield from self._largest_of_segment(segment)
            if found is not None and found.timestamp_ms > best.timestamp_ms:
                best = found
        return best

    def _largest_of_segment(self, segment: Segment) -> Search[FoundOffset | None]:
        """The headers say which batch has the largest timestamp. Only of a batch inside which the log starts nobody
        knows whether a record is left that has it."""
        if segment.base_offset >= self.log_start_offset:
            position = segment.max_timestamp_position
            header = next(headers(self.segments.disk, segment.path, position, segment.size_bytes))[1]
            if header.record_count > 0:
                return (yield from self._first_of(segment, position, header, header.max_timestamp_ms))
        best: FoundOffset | None = None
        latest: tuple[int, BatchHeader] | None = None
        for position, header in self._batches(segment, self.log_start_offset):
            yield from self._pause(segment, UNITS_PER_HEADER)
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
    ) -> Search[FoundOffset | None]:
        """The first record of a batch that reaches the timestamp. None only where the log starts inside the batch."""
        steps = first_at(self._batch(segment, position, header), header, timestamp_ms, self.log_start_offset)
        return (yield from self._found(segment, header, steps))

    def _largest_of_batch(self, segment: Segment, position: int, header: BatchHeader) -> Search[FoundOffset | None]:
        steps = largest_from(self._batch(segment, position, header), header, self.log_start_offset)
        return (yield from self._found(segment, header, steps))

    def _batch(self, segment: Segment, position: int, header: BatchHeader) -> bytes:
        return self.segments.disk.read(segment.path, position, header.size_bytes)

    def _found(
        self, segment: Segment, header: BatchHeader, steps: Steps[TimeAndOffset | None]
    ) -> Search[FoundOffset | None]:
        while True:
            try:
                units = next(steps)
            except StopIteration as end:
                found: TimeAndOffset | None = end.value
                return None if found is None else FoundOffset(found[0], found[1], header.leader_epoch)
            yield from self._pause(segment, units)

    def _pause(self, relied_on: Segment, units: int) -> Search[None]:
        """Ends the slice if it is used up. Raises Overtaken if the log lost the segment or records at its end since."""
        if self.work.spend(units):
            yield
            items = self.segments.items
            there = items and items[self.segments.index_of(relied_on.base_offset)] is relied_on
            if not there or self.segments.durability.last_cut != self._cuts:
                raise Overtaken(f"{relied_on.path} is not what it was")


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
