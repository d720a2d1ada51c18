"""Two helpers on ``Ports`` for work in later events: timers that are set by their delay, and long work in slices."""

from collections.abc import Callable, Generator
from typing import TypeAlias

from reference_broker.ports.node_ports import Done, Ports

Slices: TypeAlias = Generator[None, None, None]
"""Long work, as a generator that yields after each slice."""


def later(ports: Ports, delay_us: int, fire: Done) -> int:
    """Calls ``fire`` once, ``delay_us`` from now. Returns the number of the timer."""
    return ports.set_timer(ports.now().mono_us + delay_us, fire)


def run_slices(ports: Ports, work: Slices, then: Callable[[], None] = lambda: None) -> None:
    """Runs ``work`` to its end, one slice in each event. The first slice runs now. Then it calls ``then``."""
    for _ in work:
        later(ports, 0, lambda: run_slices(ports, work, then))
        return
    then()
