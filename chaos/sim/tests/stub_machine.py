"""A stand-in for a simulated machine, for tests of what serves machines."""

from dataclasses import dataclass, field
from typing import cast

from chaos.sim.machine import Machine
from reference_broker.core.events import Event
from reference_broker.ports.disk import MemoryDisk


@dataclass
class StubMachine:
    """A machine that records the events that it gets."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    incarnation: int = 0
    incarnation_alive: int = 0
    paused: bool = False
    paused_until_us: int = 0
    names_extra_us: int = 0
    sync_extra_us: int = 0
    delivered: list[tuple[int, Event]] = field(default_factory=list)
    """with the incarnation that each was for"""

    def deliver(self, incarnation: int, event: Event) -> None:
        self.delivered.append((incarnation, event))

    def as_machine(self) -> Machine:
        """Return it as the type that the code under test expects."""
        return cast(Machine, self)
