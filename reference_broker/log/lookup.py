"""Offsets by timestamp, in slices. At most two batches are decoded: the one that is answered, and the one inside which
the log starts.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from reference_broker.log.batch_times import Steps, TimeAndOffset, first_at, largest_from
from reference_broker.log.segment import Segment, headers
from reference_broker.log.segments import Segments
from reference_broker.records.batch import BatchHeader

SLICE_UNITS = 3000
UNITS_PER_HEADER = 1
UNITS_PER_READ = 30
"""A read of the disk, with what finds its place."""


@dataclass(slots=True, frozen=True)
class FoundOffset:
    timestamp_ms: int
    offset: int
    leader_epoch: int


NOTHING = FoundOffset(-1, -1, -1)

FoundT = TypeVar("FoundT")
Search: TypeAlias = Generator[None, None, FoundT]
"""Yields at the end of each slice. Between slices the log may change as it likes."""


def in_one_go(search: Search[FoundT]) -> FoundT:
    """Runs a search to its end."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: FoundT = end.value
            return found


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
