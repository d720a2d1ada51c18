"""The agenda of a live run holds what is to be done when."""

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """Actions by time (microseconds since the run's start). Actions with equal times keep the order of adding."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._added = 0

    def add(self, at_us: int, action: Callable[[], None]) -> None:
        self._added += 1
        heappush(self._entries, (at_us, self._added, action))

    def do_due(self, now_us: int) -> None:
        while self._entries and self._entries[0][0] <= now_us:
            heappop(self._entries)[2]()

    def do_all(self) -> None:
        """Does at once everything that is still planned at the end of the load (heals, restarts), in the order of the
        times."""
        while self._entries:
            heappop(self._entries)[2]()

    def __len__(self) -> int:
        return len(self._entries)
