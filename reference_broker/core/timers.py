"""Timers: callbacks by number. A cancelled timer still fires in the driver and is ignored here.

A client chooses how long its fetch waits, up to weeks, and most waits are cancelled. The driver is therefore asked for
a few seconds at a time, so that it holds a cancelled timer no longer than that.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.core.events import Effect, SetTimer

LONGEST_US = 10_000_000
"""A deadline further away is reached in steps of this length."""


@dataclass(slots=True)
class Timers:
    """``armed`` holds exactly the timers that were set, not cancelled and have not fired."""

    effects: list[Effect]
    mono_us: Callable[[], int]
    armed: dict[int, Callable[[], None]] = field(default_factory=dict)
    last: int = 0

    def set(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.last += 1
        self._arm(self.last, deadline_us, fire)
        return self.last

    def cancel(self, timer: int) -> None:
        self.armed.pop(timer, None)

    def fired(self, timer: int) -> None:
        fire = self.armed.pop(timer, None)
        if fire is not None:
            fire()

    def _arm(self, timer: int, deadline_us: int, fire: Callable[[], None]) -> None:
        longest_us = self.mono_us() + LONGEST_US
        if deadline_us > longest_us:
            self.armed[timer] = lambda: self._arm(timer, deadline_us, fire)
            self.effects.append(SetTimer(timer, longest_us))
        else:
            self.armed[timer] = fire
            self.effects.append(SetTimer(timer, deadline_us))
