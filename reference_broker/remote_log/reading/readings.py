"""Readings: code that needs objects of the store, as generators without callbacks, and the caches that serve them.

A ``Reading`` yields each Range that it needs and is sent the bytes. It yields None at the end of a slice. It returns
its result. ``Readings`` runs it on two bounded caches, which fetch missing ranges with ``Gets``.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias, TypeVar

from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import StorePorts, later
from reference_broker.ports.slicing import REMOTE_RANGES_PER_EVENT
from reference_broker.ports.store import Get, StoreFailure
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.objects import ObjectKind

MAX_GETS: Final = 32
"""Limits the gets in flight. With blocks of 1 MiB it bounds their memory beside the caches."""
FIRST_PAUSE_US: Final = 100_000
LONGEST_PAUSE_US: Final = 5_000_000
MAX_PAUSED: Final = 1000


class Range(NamedTuple):
    """Bytes of an object."""

    key: str
    position: int
    length: int
    """Fewer are read only at the object's end."""
    kind: ObjectKind
    """The kind of the object."""


Got: TypeAlias = Callable[[bytes], None]
Failed: TypeAlias = Callable[[StoreFailure], None]
Withdraw: TypeAlias = Callable[[], None]
"""Withdraws a request for a range. A get that is in flight continues."""


class Gets:
    """Ranged gets, MAX_GETS of them at a time, in the order in which they were requested.

    After a get failed, the next one of that object waits: 100 ms, and twice as long with each failure in a row, up to
    5 s. The gets of other objects go on meanwhile.
    """

    def __init__(self, ports: StorePorts) -> None:
        self._ports = ports
        self._waiting: OrderedDict[int, tuple[Range, Got, Failed]] = OrderedDict()
        self._numbers = count()
        self._pauses: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By key: how long the pause is, and when it ends, on the monotonic clock in microseconds."""
        self.under_way = 0

    def get(self, byte_range: Range, got: Got, failed: Failed) -> Callable[[], bool]:
        """Get a range. Exactly one of the two callbacks is called, in a later event.

        Return a function that cancels the get. It returns False if the get is in flight, and so continues."""
        number, timer = next(self._numbers), None
        _, until_us = self._pauses.get(byte_range.key, (0, 0))
        if until_us > self._ports.now().mono_us:
            timer = self._ports.set_timer(until_us, lambda: self._enqueue(number, byte_range, got, failed))
        else:
            self._enqueue(number, byte_range, got, failed)

        def cancel() -> bool:
            if timer is not None and self._ports.now().mono_us < until_us:
                self._ports.cancel_timer(timer)
                return True
            return self._waiting.pop(number, None) is not None

        return cancel

    def _enqueue(self, number: int, byte_range: Range, got: Got, failed: Failed) -> None:
        self._waiting[number] = byte_range, got, failed
        self._begin_some()

    def _begin_some(self) -> None:
        while self._waiting and self.under_way < MAX_GETS:
            _, (byte_range, got, failed) = self._waiting.popitem(last=False)
            self._begin(byte_range, got, failed)

    def _begin(self, byte_range: Range, got: Got, failed: Failed) -> None:
        def received(data: bytes) -> None:
            self.under_way -= 1
            self._pauses.pop(byte_range.key, None)
            got(data)
            self._begin_some()

        def refused(failure: StoreFailure) -> None:
            self.under_way -= 1
            self._pause(byte_range.key)
            failed(failure)
            self._begin_some()

        self.under_way += 1
        self._ports.store(Get(byte_range.key, byte_range.position, byte_range.length), received, refused)

    def _pause(self, key: str) -> None:
        before_us, _ = self._pauses.pop(key, (0, 0))
        length_us = min(before_us * 2, LONGEST_PAUSE_US) or FIRST_PAUSE_US
        self._pauses[key] = length_us, self._ports.now().mono_us + length_us
        if len(self._pauses) > MAX_PAUSED:
            self._pauses.popitem(last=False)


@dataclass(slots=True, eq=False)
class _Fetching:
    """A range that is being fetched."""

    cancel: Callable[[], bool] = lambda: False
    """Cancels the get, if it is not in flight yet."""
    waiting: list[tuple[Got, Failed]] = field(default_factory=list)
    """The callbacks of the requests for it."""


class RangeCache:
    """Keeps ranges up to ``limit_bytes`` in all, and drops those first that were used longest ago. Objects never
    change, so nothing in it is ever wrong. A request for a range that is being fetched waits for the same get."""

    def __init__(self, gets: Gets, limit_bytes: int) -> None:
        self._gets = gets
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._kept: OrderedDict[Range, bytes] = OrderedDict()
        self._in_flight: dict[Range, _Fetching] = {}

    def find(self, byte_range: Range) -> bytes | None:
        """Return the bytes, or None if they are not cached."""
        data = self._kept.get(byte_range)
        if data is not None:
            self._kept.move_to_end(byte_range)
        return data

    def get(self, byte_range: Range, got: Got, failed: Failed) -> Withdraw:
        """Fetch a range that is not cached. Exactly one of the two callbacks is called, in a later event, unless the
        returned function withdraws the request before."""
        fetching = self._in_flight.get(byte_range)
        if fetching is None:  # Decision store-range
            fetching = self._in_flight[byte_range] = _Fetching()
            fetching.cancel = self._gets.get(
                byte_range, partial(self._fetched, byte_range), partial(self._failed, byte_range)
            )
        waiter = got, failed
        fetching.waiting.append(waiter)

        def withdraw() -> None:
            fetching.waiting.remove(waiter)
            if not fetching.waiting and fetching.cancel() and self._in_flight.get(byte_range) is fetching:
                del self._in_flight[byte_range]

        return withdraw

    def read_ahead(self, byte_range: Range) -> None:
        """Fetch a range that will be needed soon, if it is not cached. A failure has no effect."""
        if byte_range not in self._kept and byte_range not in self._in_flight:
            self.get(byte_range, lambda _: None, lambda _: None)

    def _fetched(self, byte_range: Range, data: bytes) -> None:
        if len(data) <= self.limit_bytes:
            self._kept[byte_range] = data
            self.size_bytes += len(data)
            self._drop_oldest()
        for got, _ in tuple(self._in_flight.pop(byte_range).waiting):
            got(data)

    def resize(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self.size_bytes > self.limit_bytes:
            _, dropped = self._kept.popitem(last=False)
            self.size_bytes -= len(dropped)

    def _failed(self, byte_range: Range, failure: StoreFailure) -> None:
        for _, failed in tuple(self._in_flight.pop(byte_range).waiting):
            failed(failure)


FoundT = TypeVar("FoundT")
Reading: TypeAlias = Generator[Range | None, bytes, FoundT]


class ReadFailed(Exception):  # noqa: N818 - says what happened
    """The store failed to return a range that a reading needs."""

    def __init__(self, byte_range: Range, failure: StoreFailure) -> None:
        super().__init__(failure.reason)
        self.wanted = byte_range
        self.failure = failure


Failure: TypeAlias = ReadFailed | InvalidRecords | DiskError


class Readings:
    """Two caches for readings: ``blocks`` has parts of segments, ``indexes`` whole objects of all other kinds."""

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
        """Run a reading. At the end of this event or in a later one, exactly one of the two callbacks is called.

        Return a function that abandons the reading, so that none is called. A get in flight continues, and its result
        is cached. A get that waits for others is cancelled.
        """
        running = _Running(self._ports, self, reading, found, failed)
        self._ports.at_end(running.go_on)
        return running.abandon

    def cache_for(self, byte_range: Range) -> RangeCache:
        return self.blocks if byte_range.kind is ObjectKind.LOG else self.indexes


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
        self._withdraw: Withdraw | None = None
        """Set while it waits for a range."""

    def abandon(self) -> None:
        """Release the resources of the reading."""
        self._is_abandoned = True
        self._reading.close()
        if self._withdraw is not None:
            self._withdraw()
            self._withdraw = None

    def go_on(self, data: bytes | None = None) -> None:
        self._step(lambda: self._walk(data))

    def _refused(self, byte_range: Range, failure: StoreFailure) -> None:
        self._step(lambda: self._reading.throw(ReadFailed(byte_range, failure)))

    def _walk(self, data: bytes | None) -> Range | None:
        """Send the reading the ranges that are cached. Return the range that it waits for, or None at the end of a
        slice."""
        byte_range = next(self._reading) if data is None else self._reading.send(data)
        for _ in range(REMOTE_RANGES_PER_EVENT):
            if byte_range is None:
                return None
            cached = self._readings.cache_for(byte_range).find(byte_range)
            if cached is None:
                return byte_range
            byte_range = self._reading.send(cached)
        return byte_range

    def _step(self, walk: Callable[[], Range | None]) -> None:
        self._withdraw = None
        if self._is_abandoned:
            return
        try:
            byte_range = walk()
        except StopIteration as end:
            self._found(end.value)
        except (ReadFailed, InvalidRecords, DiskError) as failure:
            self._failed(failure)
        else:
            self._wait(byte_range)

    def _wait(self, byte_range: Range | None) -> None:
        if byte_range is None:
            later(self._ports, 0, self.go_on)
            return
        cache = self._readings.cache_for(byte_range)
        cached = cache.find(byte_range)
        if cached is None:
            self._withdraw = cache.get(byte_range, self.go_on, partial(self._refused, byte_range))
        else:
            later(self._ports, 0, lambda: self.go_on(cached))
