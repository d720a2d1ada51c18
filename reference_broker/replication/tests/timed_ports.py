"""Ports whose time passes when the test says so. Notes are kept."""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.ports.node_ports import Now

START_MS = 1_700_000_000_000


@dataclass
class TimedPorts:
    """``events``: timers that fired."""

    mono_us: int = field(default=0, init=False)
    events: int = field(default=0, init=False)
    timers: dict[int, tuple[int, Callable[[], None]]] = field(default_factory=dict, init=False)
    last_timer: int = field(default=0, init=False)
    notes: list[tuple[str, dict[str, int | str]]] = field(default_factory=list, init=False)

    def now(self) -> Now:
        return Now(self.mono_us, START_MS + self.mono_us // 1000)

    def at_end(self, step: Callable[[], None]) -> None:
        """Run the step now: these ports have no events."""
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.last_timer += 1
        self.timers[self.last_timer] = (deadline_us, fire)
        return self.last_timer

    def cancel_timer(self, timer: int) -> None:
        self.timers.pop(timer, None)

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self.notes.append((what, dict(fields)))

    def noted(self, what: str) -> list[dict[str, int | str]]:
        return [fields for name, fields in self.notes if name == what]

    def pass_ms(self, ms: int) -> None:
        """Fire the timers that come due, in order."""
        end_us = self.mono_us + ms * 1000
        while due := [(deadline, number) for number, (deadline, _) in self.timers.items() if deadline <= end_us]:
            deadline, number = min(due)
            fire = self.timers.pop(number)[1]
            self.events += 1
            self.be_at(max(self.mono_us, deadline))
            fire()
        self.be_at(end_us)

    def be_at(self, mono_us: int) -> None:
        """Set the time, also in worlds that keep it elsewhere."""
        self.mono_us = mono_us
