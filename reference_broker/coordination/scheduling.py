"""Scheduling of a node's work: waits over several events, callbacks at the end of an event, due keys, slots of limited
number."""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, TypeAlias

from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import COORDINATOR_STEPS_PER_EVENT

Wait: TypeAlias = Callable[[Callable[..., None]], None]
"""Begins a wait. Its argument is called once, when the wait is over, with the result if there is one."""

Process: TypeAlias = Generator[Wait, Any, None]
"""Work that goes on over several events. It yields each ``Wait``, and gets its result."""


def run_process(process: Process) -> None:
    """Run the process up to its end. A wait may be over at once, or in a later event."""

    def resume(result: object = None) -> None:
        try:
            wait = process.send(result)
        except StopIteration:
            return
        wait(resume)

    resume()


@dataclass(slots=True)
class DeferredCallbacks:
    """Callbacks of replicated records. They are called at the end of the event, in the order in which they were added.
    Where there are many, the rest is called in the next events."""

    _ports: Ports
    _callbacks: deque[Callable[[], None]] = field(default_factory=deque)
    _is_planned: bool = False

    def add(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the end of this event. It may add further ones."""
        self._callbacks.append(callback)
        if not self._is_planned:
            self._is_planned = True
            self._ports.at_end(self._run)

    def _run(self) -> None:
        for _ in range(COORDINATOR_STEPS_PER_EVENT):
            self._callbacks.popleft()()
            if not self._callbacks:
                self._is_planned = False
                return
        later(self._ports, 0, self._run)


class DueTimes:
    """The keys of one partition that come due, without a walk over the others.

    A heap holds each key under the earliest time at which something could be due. The caller that handles a due
    key schedules it again. So a check costs only the due keys, and others cost nothing.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}
        """When each key is due next, in Unix time. Other entries of the key in the heap are stale."""

    def schedule(self, key: str, due_ms: int) -> None:
        """Make the key due at this Unix time, unless it is due earlier. The caller that handles it then schedules the
        next time."""
        known = self._earliest.get(key)
        if known is None or due_ms < known:
            self._earliest[key] = due_ms
            heappush(self._due, (due_ms, key))

    def is_due(self, now_ms: int) -> bool:
        """Return whether some key may be due."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def due(self, now_ms: int) -> str | None:
        """Return a key that is due. The caller schedules it again if need be."""
        while self.is_due(now_ms):
            due_ms, key = heappop(self._due)
            # Decision due-key: due | rescheduled since
            if self._earliest.get(key) == due_ms:
                del self._earliest[key]
                return key
        return None


class Slots:
    """A limited number of slots, for instance of partitions that copy a segment at the same time. They are given in the
    order of the requests."""

    def __init__(self, ports: Ports, count: int) -> None:
        self._ports = ports
        self.count = count
        self.free = count
        self._waiting: deque[Callable[[], None]] = deque()

    def resize(self, count: int) -> None:
        """Change the number. If more slots are taken than that, the next ones given back are not given again."""
        self.free += count - self.count
        self.count = count
        self._give()

    def take(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` in an event of its own when a slot is free. Each such call needs one ``give_back``."""
        self._waiting.append(begin)
        self._give()

    def give_back(self) -> None:
        self.free += 1
        self._give()

    def _give(self) -> None:
        while self.free > 0 and self._waiting:
            self.free -= 1
            later(self._ports, 0, self._waiting.popleft())
