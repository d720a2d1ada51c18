"""Ranges of objects: what a reading asks for, and the bounded caches that fetch and keep them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from reference_broker.ports.node_ports import StorePorts
from reference_broker.ports.store import Get, StoreFailure
from reference_broker.remote_log.objects import ObjectKind

MOST_GETS: Final = 32
"""How many gets are under way at most. With blocks of 1 MiB that is what they hold in memory beside the caches."""
FIRST_PAUSE_US: Final = 100_000
LONGEST_PAUSE_US: Final = 5_000_000
MOST_PAUSED: Final = 1000


class Range(NamedTuple):
    """``length`` bytes of an object from ``position``; fewer only at its end. ``kind`` is what the object holds."""

    key: str
    position: int
    length: int
    kind: ObjectKind


Got: TypeAlias = Callable[[bytes], None]
Failed: TypeAlias = Callable[[StoreFailure], None]
GiveUp: TypeAlias = Callable[[], None]
"""Says that nobody waits any more. A get that has begun goes on."""


class Gets:
    """Ranged gets, MOST_GETS of them at a time, in the order in which they were asked for.

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

    def get(self, wanted: Range, got: Got, failed: Failed) -> Callable[[], bool]:
        """Exactly one of the two is called, in a later event.

        Returns a function that takes the get back. It returns False if the get has begun, and so goes on."""
        number, timer = next(self._numbers), None
        _, until_us = self._pauses.get(wanted.key, (0, 0))
        if until_us > self._ports.now().mono_us:
            timer = self._ports.set_timer(until_us, lambda: self._enqueue(number, wanted, got, failed))
        else:
            self._enqueue(number, wanted, got, failed)

        def take_back() -> bool:
            if timer is not None and self._ports.now().mono_us < until_us:
                self._ports.cancel_timer(timer)
                return True
            return self._waiting.pop(number, None) is not None

        return take_back

    def _enqueue(self, number: int, wanted: Range, got: Got, failed: Failed) -> None:
        self._waiting[number] = wanted, got, failed
        self._begin_some()

    def _begin_some(self) -> None:
        while self._waiting and self.under_way < MOST_GETS:
            _, (wanted, got, failed) = self._waiting.popitem(last=False)
            self._begin(wanted, got, failed)

    def _begin(self, wanted: Range, got: Got, failed: Failed) -> None:
        def answered(data: bytes) -> None:
            self.under_way -= 1
            self._pauses.pop(wanted.key, None)
            got(data)
            self._begin_some()

        def refused(failure: StoreFailure) -> None:
            self.under_way -= 1
            self._pause(wanted.key)
            failed(failure)
            self._begin_some()

        self.under_way += 1
        self._ports.store(Get(wanted.key, wanted.position, wanted.length), answered, refused)

    def _pause(self, key: str) -> None:
        before_us, _ = self._pauses.pop(key, (0, 0))
        length_us = min(before_us * 2, LONGEST_PAUSE_US) or FIRST_PAUSE_US
        self._pauses[key] = length_us, self._ports.now().mono_us + length_us
        if len(self._pauses) > MOST_PAUSED:
            self._pauses.popitem(last=False)


@dataclass(slots=True, eq=False)
class _Coming:
    """A range that was asked for, and who waits for it."""

    take_back: Callable[[], bool] = lambda: False
    waiting: list[tuple[Got, Failed]] = field(default_factory=list)


class RangeCache:
    """Keeps ranges up to ``limit_bytes`` in all, and drops those first that were used longest ago. Objects never
    change, so nothing in it is ever wrong. Who asks for a range that is on its way waits for the same get."""

    def __init__(self, gets: Gets, limit_bytes: int) -> None:
        self._gets = gets
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._kept: OrderedDict[Range, bytes] = OrderedDict()
        self._coming: dict[Range, _Coming] = {}

    def find(self, wanted: Range) -> bytes | None:
        """The bytes, if they are here."""
        found = self._kept.get(wanted)
        if found is not None:
            self._kept.move_to_end(wanted)
        return found

    def get(self, wanted: Range, got: Got, failed: Failed) -> GiveUp:
        """Fetches a range that is not here. Exactly one of the two is called, in a later event, unless what is
        returned is called before."""
        coming = self._coming.get(wanted)
        if coming is None:
            coming = self._coming[wanted] = _Coming()
            coming.take_back = self._gets.get(wanted, partial(self._came, wanted), partial(self._failed, wanted))
        waiter = got, failed
        coming.waiting.append(waiter)

        def give_up() -> None:
            coming.waiting.remove(waiter)
            if not coming.waiting and coming.take_back() and self._coming.get(wanted) is coming:
                del self._coming[wanted]

        return give_up

    def read_ahead(self, wanted: Range) -> None:
        """Fetches a range that will be asked for soon, if it is not here. Nobody is told if that fails."""
        if wanted not in self._kept and wanted not in self._coming:
            self.get(wanted, lambda _: None, lambda _: None)

    def _came(self, wanted: Range, data: bytes) -> None:
        if len(data) <= self.limit_bytes:
            self._kept[wanted] = data
            self.size_bytes += len(data)
            self._drop_oldest()
        for got, _ in tuple(self._coming.pop(wanted).waiting):
            got(data)

    def resize(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self.size_bytes > self.limit_bytes:
            _, dropped = self._kept.popitem(last=False)
            self.size_bytes -= len(dropped)

    def _failed(self, wanted: Range, failure: StoreFailure) -> None:
        for _, failed in tuple(self._coming.pop(wanted).waiting):
            failed(failure)
