"""Lets inputs through one after the other, or keeps them while something that they depend on is made durable."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Gate:
    """Inputs pass in the order in which they came. ``waiting`` is empty unless the gate is closed or draining."""

    closed: bool = False
    draining: bool = False
    waiting: deque[Callable[[], None]] = field(default_factory=deque)

    def run(self, step: Callable[[], None]) -> None:
        """Now, or when the gate has opened and all that came before has passed."""
        if self.closed or self.draining:
            self.waiting.append(step)
        else:
            step()

    def drain(self) -> None:
        """What waits passes, until a step closes the gate again."""
        if self.draining:
            return
        self.draining = True
        while self.waiting and not self.closed:
            self.waiting.popleft()()
        self.draining = False
