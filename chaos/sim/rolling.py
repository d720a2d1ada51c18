"""A rolling bounce: one node after the other is told to end, and comes back with other settings."""

from collections.abc import Callable, Iterator, Sequence

from chaos.sim.machine import Machine
from scenarios.model import Fault

LOOK_AGAIN_US = 50_000
"""The time between two looks at whether a node has shut down cleanly, or is ready again."""


def rolling_bounce(
    fault: Fault,
    machines: Sequence[Machine],
    reconfigure: Callable[[int, tuple[tuple[str, str], ...]], None],
    struck: Callable[[Fault, Machine, int], None],
    is_over: Callable[[], bool],
) -> Iterator[int]:
    """Bounces the nodes, and yields how many microseconds it must wait before it goes on.

    ``reconfigure`` sets what a node's next incarnations are started with. ``struck`` is called when a node is told to
    end. Once the bounce ``is_over``, nodes that have not been told to end never will be.
    """
    away_us = int(max(fault.restart_after_s, 0.0) * 1_000_000)
    for number, machine in enumerate(machines, 1):
        while not (is_over() or all(each.ready for each in machines)):  # Another fault killed one: an operator waits.
            yield LOOK_AGAIN_US
        if is_over():
            return
        reconfigure(machine.node_id, fault.config)
        struck(fault, machine, number)
        incarnation = machine.incarnation
        machine.terminate()
        while machine.alive and machine.incarnation == incarnation:
            yield LOOK_AGAIN_US
        yield away_us
        machine.start()
        while not machine.ready:
            yield LOOK_AGAIN_US
        yield int(fault.between_s * 1_000_000)
