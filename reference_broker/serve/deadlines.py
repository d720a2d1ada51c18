"""Keeps the deadlines of SetTimer in a heap, so that the event loop has only one timer."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

_SHORTEST_S = 0.0005


@dataclass(slots=True)
class Deadlines:
    """Calls ``fire(timer)`` once for each deadline, at that time or later, the earliest deadline first.

    Times are those of ``mono_us()``, in microseconds.
    """

    _loop: AbstractEventLoop
    _mono_us: Callable[[], int]
    _fire: Callable[[int], None]
    _heap: list[tuple[int, int]] = field(default_factory=list)
    _handle: TimerHandle | None = None
    _armed_us: int = 0

    def set(self, timer: int, deadline_us: int) -> None:
        heappush(self._heap, (deadline_us, timer))
        if self._handle is None or deadline_us < self._armed_us:
            self._arm()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._heap.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_us = self._heap[0][0]
        delay_s = max((self._armed_us - self._mono_us()) / 1e6, 0.0)
        self._handle = self._loop.call_later(delay_s and max(delay_s, _SHORTEST_S), self._due)

    def _due(self) -> None:
        self._handle = None
        now_us = self._mono_us()
        due = []
        while self._heap and self._heap[0][0] <= now_us:
            due.append(heappop(self._heap)[1])
        for timer in due:
            self._fire(timer)
        if self._heap and self._handle is None:
            self._arm()
