"""Virtual time: a heap of callbacks. Those with equal times run in the order of their addition."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Act = Callable[..., None]
START_WALL_MS = 1_750_000_000_000


class Agenda:
    """A heap of timed callbacks. ``now_us`` counts virtual microseconds since the run's start, and advances only when
    the next callback is taken. Wall clocks advance every ``clock_tick_ms`` only."""

    __slots__ = ("_clock_tick_ms", "_count", "_heap", "now_us")

    def __init__(self, clock_tick_ms: int = 1) -> None:
        self.now_us = 0
        self._clock_tick_ms = clock_tick_ms
        self._count = 0
        self._heap: list[tuple[int, int, Act, tuple[Any, ...]]] = []

    @property
    def wall_ms(self) -> int:
        """The time of a correct wall clock, in Unix milliseconds."""
        passed_ms = self.now_us // 1000
        return START_WALL_MS + passed_ms - passed_ms % self._clock_tick_ms

    def at(self, time_us: int, act: Act, *args: Any) -> None:
        """Schedule ``act(*args)`` for that time, or for now if it has passed."""
        count = self._count = self._count + 1
        now_us = self.now_us
        heappush(self._heap, (time_us if time_us > now_us else now_us, count, act, args))

    def after(self, delay_us: int, act: Act, *args: Any) -> None:
        count = self._count = self._count + 1
        now_us = self.now_us
        heappush(self._heap, (now_us + delay_us if delay_us > 0 else now_us, count, act, args))

    def step(self, end_us: int) -> bool:
        """Run the next callback if it is due at or before ``end_us``. Otherwise advance the time, and return False."""
        if not self._heap or self._heap[0][0] > end_us:
            self.now_us = max(self.now_us, end_us)
            return False
        self.now_us, _, act, args = heappop(self._heap)
        act(*args)
        return True

    def run_until(self, end_us: int) -> None:
        """Run all callbacks that are due at or before ``end_us``, and advance the time."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            self.now_us, _, act, args = heappop(heap)
            act(*args)
        self.now_us = max(self.now_us, end_us)
