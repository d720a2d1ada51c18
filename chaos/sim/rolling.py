"""A rolling bounce: one node after the other is told to end, and comes back with other settings."""

from collections.abc import Callable, Sequence

from chaos.sim.agenda import Agenda
from chaos.sim.machine import Machine
from scenarios.model import Fault

LOOK_AGAIN_US = 50_000
"""Whether a node has ended in good order, or is ready again."""


class RollingBounce:
    """``reconfigure`` sets what a node's next incarnations are started with. ``struck`` is called when a node is told
    to end."""

    def __init__(
        self,
        fault: Fault,
        agenda: Agenda,
        machines: Sequence[Machine],
        reconfigure: Callable[[int, tuple[tuple[str, str], ...]], None],
        struck: Callable[[Fault, Machine, int], None],
    ) -> None:
        self._fault = fault
        self._agenda = agenda
        self._machines = machines
        self._reconfigure = reconfigure
        self._struck = struck
        self._over = False

    def begin(self) -> None:
        self._next(0)

    def stop(self) -> None:
        """Ends the bounce: nodes that have not been stopped yet never will be."""
        self._over = True

    def _next(self, number: int) -> None:
        if self._over or number == len(self._machines):
            return
        machine = self._machines[number]
        if not machine.ready:  # Another fault killed it, or it is starting: an operator waits too.
            self._agenda.after(LOOK_AGAIN_US, self._next, number)
            return
        self._reconfigure(machine.node_id, self._fault.config)
        self._struck(self._fault, machine, number + 1)
        machine.terminate()
        self._ended(number, machine.incarnation)

    def _ended(self, number: int, incarnation: int) -> None:
        machine = self._machines[number]
        if machine.alive and machine.incarnation == incarnation:
            self._agenda.after(LOOK_AGAIN_US, self._ended, number, incarnation)
            return
        away_us = int(max(self._fault.restart_after_s, 0.0) * 1_000_000)
        self._agenda.after(away_us, machine.start)
        self._agenda.after(away_us, self._back, number)

    def _back(self, number: int) -> None:
        if not self._machines[number].ready:
            self._agenda.after(LOOK_AGAIN_US, self._back, number)
            return
        self._agenda.after(int(self._fault.between_s * 1_000_000), self._next, number + 1)
