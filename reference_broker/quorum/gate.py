"""A gate for the inputs of the quorum. It is closed while a change that they depend on is made durable, and the inputs
that arrive meanwhile wait in order."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Gate:
    """Runs inputs in the order in which they came. ``waiting`` is empty unless the gate is closed or draining.

    ``running`` counts the steps that have begun and not ended, one inside the other. A step that failed never ends.
    """

    closed: bool = False
    draining: bool = False
    running: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)

    def run(self, step: Callable[[], None]) -> None:
        """Runs ``step`` now if the gate is open and idle. Otherwise it runs after all inputs that came before."""
        if self.closed or self.draining:
            self.waiting.append(step)
        else:
            self.run_whole(step)

    def run_whole(self, step: Callable[[], None]) -> None:
        """Runs ``step`` now. If it fails, the state is half changed for good."""
        self.running += 1
        step()
        self.running -= 1

    def drain(self) -> None:
        """Runs the waiting inputs until none is left or one of them closes the gate again."""
        if self.draining:
            return
        self.draining = True
        while self.waiting and not self.closed:
            self.run_whole(self.waiting.popleft())
        self.draining = False
