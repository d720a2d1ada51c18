"""What a simulated machine does for the interceptor (``chaos.powers.Powers``)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from chaos.sim.machine import Machine, NodeDied
from chaos.sim.nemesis import Nemesis
from reference_broker.core.effects import Reply
from reference_broker.core.events import Closed, Event
from reports.rows import FaultRow


class MachinePowers:
    """Gives the evidence to the nemesis, which also knows how long a node stays away after a rule has killed it."""

    def __init__(self, machine: Machine, nemesis: Nemesis) -> None:
        self._machine = machine
        self._agenda = machine.agenda
        self._nemesis = nemesis
        self._last_rule = ""

    def report(self, row: FaultRow) -> None:
        self._last_rule = row.name
        self._nemesis.report(replace(row, until_us=row.at_us + self._nemesis.lasts_us(row)))

    def kill(self) -> None:
        self._die(power_loss=False)

    def power_off(self) -> None:
        self._die(power_loss=True)

    def _die(self, power_loss: bool) -> NoReturn:
        self._machine.restart_after_us = self._nemesis.restart_after_us(self._last_rule)
        raise NodeDied(power_loss)

    def pause(self, for_us: int) -> None:
        self._machine.pause(self._nemesis.clipped_us(for_us))

    def step_clock(self, by_ms: int) -> None:
        self._machine.wall_offset_ms += by_ms

    def discard_connection(self, connection: int) -> None:
        machine = self._machine
        machine.network.discard(connection)
        self._agenda.after(0, machine.give, machine.incarnation, Closed(connection))

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self._agenda.after(delay_us, self._machine.give, self._machine.incarnation, event)

    def sync_fails(self, paths: Sequence[str]) -> None:
        self._machine.disk.fail_sync(paths)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self._agenda.after(delay_us, self._machine.network.reply, reply)

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self._machine.network.reply_bytes(reply, frame)

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        self._machine.network.reply_bytes(reply, start)
        self._machine.network.close(reply.connection)
