"""Long work in slices: one slice an event, one piece of work after the other."""

from collections import deque
from dataclasses import dataclass, field

from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices, later


@dataclass(slots=True)
class SliceQueue:
    """A queue without work has no timer."""

    _ports: Ports
    _work: deque[Slices] = field(default_factory=deque)
    _is_armed: bool = False

    def add(self, work: Slices) -> None:
        """Starts the work at the next event, after what was added before."""
        self._work.append(work)
        self._arm()

    def _arm(self) -> None:
        if self._work and not self._is_armed:
            self._is_armed = True
            later(self._ports, 0, self._step)

    def _step(self) -> None:
        self._is_armed = False
        for _ in self._work[0]:
            break
        else:
            self._work.popleft()
        self._arm()
