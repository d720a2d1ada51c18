"""Scheduling of a node's work: steps at the end of an event, due keys, slots of limited number."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import COORDINATOR_STEPS_PER_EVENT


@dataclass(slots=True)
class Steps:
    """What follows on a replicated record: at the end of the same event, and where there is much, in the next ones.
    Steps run in the order in which they were added."""

    _ports: Ports
    _steps: deque[Callable[[], None]] = field(default_factory=deque)
    _is_planned: bool = False

    def add(self, step: Callable[[], None]) -> None:
        """Call ``step`` at the end of this event. A step may add further ones."""
        self._steps.append(step)
        if not self._is_planned:
            self._is_planned = True
            self._ports.at_end(self._run)

    def _run(self) -> None:
        for _ in range(COORDINATOR_STEPS_PER_EVENT):
            self._steps.popleft()()
            if not self._steps:
                self._is_planned = False
                return
        later(self._ports, 0, self._run)


class DueTimes:
    """The keys of one partition that come due, without a walk over the others.

    A heap holds each key under the earliest time at which something could be due. Whatever handles a due key schedules
    it again. So a check costs only what is due, and keys at rest cost nothing.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, str]] = []
        self._earliest: dict[str, int] = {}
        """When each key is due next, in Unix time. Other entries of the key in the heap are stale."""

    def schedule(self, key: str, due_ms: int) -> None:
        """Make the key due at this Unix time, unless it is due earlier. Whatever handles it then schedules the next."""
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
            if self._earliest.get(key) == due_ms:
                del self._earliest[key]
                return key
        return None


class Slots:
    """Whoever wants to copy a segment waits here in order of arrival. After each segment a partition goes to the end,
    so that none waits for a long one."""

    def __init__(self, ports: Ports, count: int) -> None:
        self._ports = ports
        self.count = count
        self.free = count
        self._waiting: deque[Callable[[], None]] = deque()

    def resize(self, count: int) -> None:
        """Those that are taken beyond a smaller number are not given again."""
        self.free += count - self.count
        self.count = count
        self._give()

    def take(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` in an event of its own when a slot is free. Whoever began gives the slot back once."""
        self._waiting.append(begin)
        self._give()

    def give_back(self) -> None:
        self.free += 1
        self._give()

    def _give(self) -> None:
        while self.free > 0 and self._waiting:
            self.free -= 1
            later(self._ports, 0, self._waiting.popleft())
