"""What follows on a replicated record: at the end of the same event, and where there is much, in the next ones, too."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import later

STEPS_AN_EVENT: Final = 20
"""A step may append a record, which costs some 100 us. A follower's fetch may acknowledge hundreds at once."""


@dataclass(slots=True)
class Steps:
    """Steps in the order in which they were added. A queue without steps has no timer."""

    _ports: Ports
    _waiting: deque[Callable[[], None]] = field(default_factory=deque)
    _is_planned: bool = False

    def add(self, step: Callable[[], None]) -> None:
        """Calls ``step`` when all else of this event is done. A step may add further ones."""
        self._waiting.append(step)
        if not self._is_planned:
            self._is_planned = True
            self._ports.at_end(self._run)

    def _run(self) -> None:
        for _ in range(STEPS_AN_EVENT):
            self._waiting.popleft()()
            if not self._waiting:
                self._is_planned = False
                return
        later(self._ports, 0, self._run)
