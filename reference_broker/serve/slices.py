"""Large requests are decoded, and large answers encoded, a few milliseconds at a time."""

from collections import deque
from collections.abc import Callable, Iterator


class Slices:
    """A queue of work. One slice of one piece of work is done before the event loop looks at its sockets again,
    whatever the number of pieces. They take turns."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._work: deque[Iterator[None]] = deque()

    def add(self, work: Iterator[None]) -> None:
        """``work`` yields after each slice. It must not raise."""
        self._work.append(work)
        if len(self._work) == 1:
            self._call_soon(self._step)

    def _step(self) -> None:
        work = self._work[0]
        is_over = True
        try:
            for _ in work:
                is_over = False
                break
        finally:  # A bug in one piece of work must not hold up the others.
            self._work.popleft()
            if not is_over:
                self._work.append(work)
            if self._work:
                self._call_soon(self._step)
