"""Callbacks at the end of an event, due keys, and limited slots."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from reference_broker.ports.coroutines import Wait
from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import COORDINATOR_STEPS_PER_EVENT


@dataclass(slots=True)
class DeferredCallbacks:
    """Callbacks that are called at the end of the event, in the order in which they were added. Of many callbacks, each
    event calls COORDINATOR_STEPS_PER_EVENT, and the next events call the others.

    Records may be replicated in the midst of a follower's Fetch, which is no time to append others. So the work that
    follows on a replicated record is deferred."""

    _ports: Ports
    _callbacks: deque[Callable[[], None]] = field(default_factory=deque)
    _is_planned: bool = False

    def add(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the end of this event. It may add further ones."""
        self._callbacks.append(callback)
        if not self._is_planned:
            self._is_planned = True
            self._ports.at_end(self._run)

    def end_of_event(self) -> Wait[None]:
        """Wait for the end of this event."""
        return Wait(lambda resume: self.add(lambda: resume(None)))

    def _run(self) -> None:
        for _ in range(COORDINATOR_STEPS_PER_EVENT):
            self._callbacks.popleft()()
            if not self._callbacks:
                self._is_planned = False
                return
        later(self._ports, 0, self._run)


class DueTimes:
    """The keys of one partition that come due, such as IDs that may expire. A check costs only the keys that are due.

    Each key is scheduled at the earliest time at which something may be due for it. The caller that handles a due key
    schedules it again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        """Times and keys."""
        self._due_ms: dict[str, int] = {}
        """When each key is due next, in Unix time. Its other entries in the heap are stale."""

    def schedule(self, key: str, due_ms: int) -> None:
        """Make the key due at this Unix time, unless it is due earlier."""
        scheduled_ms = self._due_ms.get(key)
        if scheduled_ms is None or due_ms < scheduled_ms:
            self._due_ms[key] = due_ms
            heappush(self._heap, (due_ms, key))

    def is_due(self, now_ms: int) -> bool:
        """Return whether some key may be due."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def pop(self, now_ms: int) -> str | None:
        """Remove and return a key that is due, or return None."""
        while self.is_due(now_ms):
            due_ms, key = heappop(self._heap)
            if self._due_ms.get(key) == due_ms:  # Decision due-key
                del self._due_ms[key]
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
