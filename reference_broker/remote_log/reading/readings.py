"""Readings: what is made of objects of the store, as plain code without callbacks.

A ``Reading`` is a generator. It yields each Range that it needs and is sent the bytes. It yields None at the end of a
slice. What it returns is what it found. ``Readings`` carries it out from the caches.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeAlias, TypeVar

from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import StorePorts, later
from reference_broker.ports.store import StoreFailure
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.objects import ObjectKind
from reference_broker.remote_log.reading.ranges import Gets, GiveUp, Range, RangeCache

RANGES_PER_EVENT: Final = 8
"""So many ranges that are in a cache are given to a reading in one event. Each may be a block of 1 MiB."""

FoundT = TypeVar("FoundT")
Reading: TypeAlias = Generator[Range | None, bytes, FoundT]


class ReadFailed(Exception):  # noqa: N818 - says what happened
    """The store did not give ``wanted``, which a reading asked for."""

    def __init__(self, wanted: Range, failure: StoreFailure) -> None:
        super().__init__(failure.reason)
        self.wanted = wanted
        self.failure = failure


Failure: TypeAlias = ReadFailed | InvalidRecords | DiskError


class Readings:
    """``blocks`` keeps parts of segments, ``indexes`` whole objects of all other kinds."""

    def __init__(self, ports: StorePorts, blocks_limit_bytes: int, indexes_limit_bytes: int) -> None:
        self._ports = ports
        gets = Gets(ports)
        self.blocks = RangeCache(gets, blocks_limit_bytes)
        self.indexes = RangeCache(gets, indexes_limit_bytes)

    def begin(
        self,
        reading: Reading[FoundT],
        found: Callable[[FoundT], None],
        failed: Callable[[Failure], None],
    ) -> Callable[[], None]:
        """Carries out a reading. At the end of this event or in a later one, exactly one of the two is called.

        Returns a function that abandons the reading, so that none is called. A get that is under way goes on, and what
        it brings is kept. One that waits for others is not begun.
        """
        running = _Running(self._ports, self, reading, found, failed)
        self._ports.at_end(running.go_on)
        return running.abandon

    def cache_for(self, wanted: Range) -> RangeCache:
        return self.blocks if wanted.kind is ObjectKind.LOG else self.indexes


class _Running:
    """One reading that is being carried out."""

    def __init__(
        self,
        ports: StorePorts,
        readings: Readings,
        reading: Reading[FoundT],
        found: Callable[[FoundT], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._ports = ports
        self._readings = readings
        self._reading = reading
        self._found = found
        self._failed = failed
        self._is_abandoned = False
        self._give_up: GiveUp | None = None
        """While it waits for a range."""

    def abandon(self) -> None:
        """Gives back what the reading holds."""
        self._is_abandoned = True
        self._reading.close()
        if self._give_up is not None:
            self._give_up()
            self._give_up = None

    def go_on(self, data: bytes | None = None) -> None:
        self._step(lambda: self._walk(data))

    def _refused(self, wanted: Range, failure: StoreFailure) -> None:
        self._step(lambda: self._reading.throw(ReadFailed(wanted, failure)))

    def _walk(self, data: bytes | None) -> Range | None:
        """Gives the reading what the caches have. Returns what it waits for: a range, or the next slice."""
        wanted = next(self._reading) if data is None else self._reading.send(data)
        for _ in range(RANGES_PER_EVENT):
            if wanted is None:
                return None
            known = self._readings.cache_for(wanted).find(wanted)
            if known is None:
                return wanted
            wanted = self._reading.send(known)
        return wanted

    def _step(self, walk: Callable[[], Range | None]) -> None:
        self._give_up = None
        if self._is_abandoned:
            return
        try:
            wanted = walk()
        except StopIteration as end:
            self._found(end.value)
        except (ReadFailed, InvalidRecords, DiskError) as failure:
            self._failed(failure)
        else:
            self._wait(wanted)

    def _wait(self, wanted: Range | None) -> None:
        if wanted is None:
            later(self._ports, 0, self.go_on)
            return
        cache = self._readings.cache_for(wanted)
        known = cache.find(wanted)
        if known is None:
            self._give_up = cache.get(wanted, self.go_on, partial(self._refused, wanted))
        else:
            later(self._ports, 0, lambda: self.go_on(known))
