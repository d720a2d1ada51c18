"""How many copies are under way at once on a node, and whose turn it is."""

from collections import deque
from collections.abc import Callable

from reference_broker.ports.node_ports import StorePorts, later


class Slots:
    """Whoever wants to copy a segment waits here in order of arrival. After each segment a partition goes to the end,
    so that none waits for a long one."""

    def __init__(self, ports: StorePorts, count: int) -> None:
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
        """Calls ``begin`` in an event of its own when a slot is free. Whoever began gives the slot back once."""
        self._waiting.append(begin)
        self._give()

    def give_back(self) -> None:
        self.free += 1
        self._give()

    def _give(self) -> None:
        while self.free > 0 and self._waiting:
            self.free -= 1
            later(self._ports, 0, self._waiting.popleft())
