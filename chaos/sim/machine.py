"""One node's machine: its process (a core.Node per incarnation), disk, clock, and the driver between them.

The driver gives events through the hooks, carries out effects in order, and implements ``chaos.interceptor.Powers``.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from chaos.evidence import FaultRow
from chaos.sim.agenda import Agenda
from chaos.sim.disk import SimDisk, SyncedBytes
from reference_broker.core.effects import Close, Effect, Note, Offload, Reply, Send, SetTimer, Sync
from reference_broker.core.events import Closed, Event, PeerDown, Synced, SyncFailed, TaskDone, TimerFired
from reference_broker.core.hooks import Hooks
from reference_broker.log.disk import Disk, DiskError
from reference_broker.log.now import Now

START_WALL_MS = 1_750_000_000_000
SYNC_US = (200, 4000)
"""How long a sync takes, drawn for each."""
TASK_US = (100, 3000)


class SimulatedNode(Protocol):
    """``core.node.Node`` as the driver sees it."""

    @property
    def ready(self) -> bool: ...

    def start(self, now: Now) -> Sequence[Effect]: ...

    def handle(self, now: Now, event: Event) -> Sequence[Effect]: ...


class NodeDied(BaseException):
    """Raised by kill and power_off, so that they never return; no handler in the node may catch it."""

    def __init__(self, power_loss: bool) -> None:
        super().__init__("power loss" if power_loss else "kill")
        self.power_loss = power_loss


class Network(Protocol):
    """What a machine asks of the connections that end in it."""

    def reply(self, reply: Reply) -> None: ...

    def close(self, connection: int) -> None: ...

    def discard(self, connection: int) -> None: ...

    def node_gone(self, machine: "Machine") -> None: ...


class Machine:
    """``boot(machine, disk)`` builds a node and the incarnation's hooks; ``after_event`` is called when an event was
    handled and carried out (checks); ``crashed`` on an exception that the node did not handle."""

    def __init__(
        self,
        node_id: int,
        agenda: Agenda,
        random: Random,
        disk: SimDisk,
        boot: Callable[["Machine"], tuple[SimulatedNode, Sequence[Hooks]]],
        after_event: Callable[["Machine", Event | None], None],
        report: Callable[[FaultRow], None],
    ) -> None:
        self.node_id = node_id
        self.disk = disk
        self.incarnation = -1
        self.wall_offset_ms = 0
        self.node: SimulatedNode | None = None
        self.network: Network | None = None
        self.events = 0
        self.sync_extra_us = 0
        self.restart_after_us = -1
        self.report = report
        self._agenda = agenda
        self._random = random
        self._boot = boot
        self._hooks: Sequence[Hooks] = ()
        self._after_event = after_event
        self._paused_until_us = 0
        self._inbox: deque[tuple[int, Event]] = deque()

    @property
    def now(self) -> Now:
        now_us = self._agenda.now_us
        return Now(now_us, START_WALL_MS + now_us // 1000 + self.wall_offset_ms)

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def accepts(self) -> bool:
        """Connections are accepted: it serves (a stopped process's kernel still accepts)."""
        return self.node is not None and self.node.ready

    def disk_of_node(self, watch: Callable[[Disk], Disk]) -> Disk:
        return watch(self.disk)

    def start(self) -> None:
        """A new incarnation over the same disk. No effect while one lives."""
        if self.node is not None:
            return
        self.incarnation += 1
        self.restart_after_us = -1
        self._paused_until_us = 0
        try:
            self.node, self._hooks = self._boot(self)
            self._carry_out(self.node.start(self.now))
            self._after_event(self, None)
        except NodeDied as death:
            self._die(death.power_loss)

    def give(self, incarnation: int, event: Event) -> None:
        """One event for that incarnation; later ones ignore it. Waits in the inbox while the process is stopped."""
        if self.node is None or incarnation != self.incarnation:
            return
        if self._paused_until_us > self._agenda.now_us or self._inbox:
            self._inbox.append((incarnation, event))
            return
        self._handle(event)

    def kill_now(self, power_loss: bool) -> None:
        """From outside, between two events."""
        if self.node is not None:
            self._die(power_loss)

    def pause(self, for_us: int) -> None:
        until_us = self._agenda.now_us + for_us
        if until_us > self._paused_until_us:
            self._paused_until_us = until_us
            self._agenda.at(until_us, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        while self._inbox and incarnation == self.incarnation and self._paused_until_us <= self._agenda.now_us:
            arrived_in, event = self._inbox.popleft()
            if self.node is not None and arrived_in == self.incarnation:
                self._handle(event)

    def _handle(self, event: Event) -> None:
        node = self.node
        assert node is not None
        now = self.now
        events: Sequence[Event] = (event,)
        try:
            for hook in self._hooks:
                events = [each for seen in events for each in hook.before(now, seen)]
            for each in events:
                now = self.now
                effects = node.handle(now, each)
                for hook in self._hooks:
                    effects = hook.after(now, each, effects)
                self._carry_out(effects)
                self.events += 1
                self._after_event(self, each)
        except NodeDied as death:
            self._die(death.power_loss)

    def _die(self, power_loss: bool) -> None:
        self.node = None
        self._hooks = ()
        self._inbox.clear()
        if power_loss:
            self.disk.power_loss()
        assert self.network is not None
        self.network.node_gone(self)
        if self.restart_after_us >= 0:
            self._agenda.after(self.restart_after_us, self.start)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        network = self.network
        assert network is not None
        for effect in effects:
            match effect:
                case Reply():
                    network.reply(effect)
                case SetTimer():
                    self._agenda.at(effect.deadline_us, self.give, self.incarnation, TimerFired(effect.timer))
                case Note():
                    pass  # The trace recorder, a hook, has taken it.
                case Sync():
                    delay_us = self._random.randint(*SYNC_US) + self.sync_extra_us
                    self._agenda.after(
                        delay_us, self._synced, self.incarnation, effect.token, self.disk.begin_sync(effect.paths)
                    )
                case Close():
                    network.close(effect.connection)
                case Offload():
                    self._offload(effect)
                case Send():
                    # No scenario has links between nodes yet: every peer is unreachable, as behind a cut link.
                    self._agenda.after(1, self.give, self.incarnation, PeerDown(effect.peer))

    def _synced(self, incarnation: int, token: int, synced: SyncedBytes) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        try:
            self.disk.finish_sync(synced)
        except DiskError as error:
            self.give(incarnation, SyncFailed(token, str(error)))
        else:
            self.give(incarnation, Synced(token))

    def _offload(self, effect: Offload) -> None:
        try:
            result = effect.task()
        except Exception as error:
            result = error
        delay_us = self._random.randint(*TASK_US)
        self._agenda.after(delay_us, self.give, self.incarnation, TaskDone(effect.token, result))


class MachinePowers:
    """Implements chaos.interceptor.Powers on one machine."""

    def __init__(self, machine: Machine, agenda: Agenda, restart_after_us: Callable[[str], int]) -> None:
        """``restart_after_us``: by a rule's name, how long its kill lasts; -1 for ever."""
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
