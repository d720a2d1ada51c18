"""What a simulated machine does for the interceptor (``chaos.powers.Powers``)."""

from collections.abc import Callable
from dataclasses import replace

from chaos.sim.agenda import Agenda
from chaos.sim.machine import Machine, NodeDied
from reference_broker.core.effects import Reply
from reference_broker.core.events import Closed, Event
from reports.rows import FaultRow


class MachinePowers:
    """``restart_after_us`` says, by a rule's name, how long its kill lasts (-1 for ever)."""

    def __init__(self, machine: Machine, agenda: Agenda, restart_after_us: Callable[[str], int]) -> None:
        self._machine = machine
        self._agenda = agenda
        self._restart_after_us = restart_after_us
        self._last_rule = ""

    def report(self, row: FaultRow) -> None:
        self._last_rule = row.name
        lasts_us = self._restart_after_us(row.name)
        self._machine.report(replace(row, until_us=row.at_us + max(lasts_us, 0)))

    def kill(self) -> None:
        self._machine.restart_after_us = self._restart_after_us(self._last_rule)
        raise NodeDied(power_loss=False)

    def power_off(self) -> None:
        self._machine.restart_after_us = self._restart_after_us(self._last_rule)
        raise NodeDied(power_loss=True)

    def pause(self, for_us: int) -> None:
        self._machine.pause(for_us)

    def step_clock(self, by_ms: int) -> None:
        self._machine.wall_offset_ms += by_ms

    def discard_connection(self, connection: int) -> None:
        machine = self._machine
        assert machine.network is not None
        machine.network.discard(connection)
        self._agenda.after(0, machine.give, machine.incarnation, Closed(connection))

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self._agenda.after(delay_us, self._machine.give, self._machine.incarnation, event)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        assert self._machine.network is not None
        self._agenda.after(delay_us, self._machine.network.reply, reply)
