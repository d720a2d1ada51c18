"""One node's machine: its process (a core.Node per incarnation), disk, clock, and the driver between them.

The driver gives events through the hooks and carries out effects in order.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeAlias

from chaos.sim.agenda import Agenda
from chaos.sim.disk import SimDisk, SyncedBytes
from reference_broker.core.effects import Close, Effect, Note, Reply, Send, SetTimer, Sync
from reference_broker.core.errors import NodeFailed
from reference_broker.core.events import Event, Synced, SyncFailed, TimerFired
from reference_broker.core.hooks import Hooks
from reference_broker.ports.disk import DiskError
from reference_broker.ports.now import Now
from reference_broker.quorum.node_files import StartRefused
from reports.rows import FaultRow

SLICE_US = (50, 2000)
"""What a node puts off to its next event comes so much later: slices of long work take time, in which others act."""
RESTART_AFTER_FAILURE_US = 2_000_000
"""A node that ended because of its disk is started again after so long, as ``crucible cluster --restart`` does."""
START_WALL_MS = 1_750_000_000_000
SYNC_US = (200, 4000)
"""How long a sync takes, drawn for each."""


class SimulatedNode(Protocol):
    """``core.node.Node`` as the driver sees it."""

    @property
    def listening(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...

    def start(self, now: Now) -> Sequence[Effect]: ...

    def shutdown(self, now: Now) -> Sequence[Effect]: ...

    def handle(self, now: Now, event: Event) -> Sequence[Effect]: ...


class NodeDied(BaseException):
    """Raised by kill and power_off, so that they never return; no handler in the node may catch it."""

    def __init__(self, power_loss: bool) -> None:
        super().__init__("power loss" if power_loss else "kill")
        self.power_loss = power_loss


class Network(Protocol):
    """What a machine asks of the connections that end at it, and of those that it opens."""

    def reply(self, reply: Reply) -> None: ...

    def send(self, machine: "Machine", send: Send) -> None: ...

    def close(self, connection: int) -> None: ...

    def discard(self, connection: int) -> None: ...

    def node_gone(self, machine: "Machine", silent: bool) -> None: ...

    def node_back(self, machine: "Machine") -> None: ...


Watcher: TypeAlias = Callable[[Now, Event | None, Sequence[Effect]], None]
"""Sees what one incarnation did with an event (None: its start), before hooks and the network touch it."""


class Machine:
    """One node's machine.

    ``boot(machine)`` builds a node, the incarnation's hooks and its watcher. ``after_event`` is called for the checks
    when an event was handled and carried out. ``gone`` is called when the process has ended. ``ended`` is called before
    that, with the node's last words, if the node ended itself and no fault of the disk was to blame. ``report`` keeps
    the evidence of faults.

    A ``silent`` machine has no power, so that nobody is told. With ``disk_fails`` a fault struck the disk, so the node
    may end.
    """

    def __init__(
        self,
        node_id: int,
        agenda: Agenda,
        random: Random,
        disk: SimDisk,
        boot: Callable[["Machine"], tuple[SimulatedNode, Sequence[Hooks], Watcher]],
        after_event: Callable[["Machine", Event | None], None],
        report: Callable[[FaultRow], None],
        gone: Callable[["Machine"], None],
        ended: Callable[["Machine", str], None],
    ) -> None:
        self.node_id = node_id
        self.agenda = agenda
        self.disk = disk
        self.incarnation = -1
        self.wall_offset_ms = 0
        self.node: SimulatedNode | None = None
        self.network: Network | None = None
        self.events = 0
        self.sync_extra_us = 0
        self.restart_after_us = -1
        self.silent = False
        self.disk_fails = False
        self.paused_until_us = 0
        self.report = report
        self._random = random
        self._boot = boot
        self._hooks: Sequence[Hooks] = ()
        self._watch: Watcher = _unwatched
        self._after_event = after_event
        self._gone = gone
        self._ended = ended
        self._stopping = False
        self._inbox: deque[tuple[int, Event]] = deque()
        self._carriers: dict[type, Callable[[Any], None]] = {
            Reply: self._reply,
            SetTimer: self._set_timer,
            Sync: self._sync,
            Send: self._send,
            Close: self._close,
        }

    @property
    def now(self) -> Now:
        now_us = self.agenda.now_us
        return Now(now_us, START_WALL_MS + now_us // 1000 + self.wall_offset_ms)

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def paused(self) -> bool:
        return self.paused_until_us > self.agenda.now_us

    @property
    def accepts(self) -> bool:
        """Returns whether connections are accepted. The kernel of a stopped process still accepts them."""
        return self.node is not None and self.node.listening

    @property
    def ready(self) -> bool:
        return self.node is not None and self.node.ready

    def start(self) -> None:
        """Starts a new incarnation over the same disk. Does nothing while one lives."""
        if self.node is not None:
            return
        assert self.network is not None
        if self.silent:
            self.silent = False
            self.network.node_back(self)
        self.incarnation += 1
        self.restart_after_us = -1
        self.paused_until_us = 0
        self._stopping = False
        try:
            self.node, self._hooks, self._watch = self._boot(self)
            now = self.now
            effects = self.node.start(now)
            self._watch(now, None, effects)
            self._carry_out(effects)
            self._after_event(self, None)
        except NodeDied as death:
            self._die(death.power_loss)
        except (NodeFailed, StartRefused, DiskError) as failure:
            self._failed(failure)

    def give(self, incarnation: int, event: Event) -> None:
        """Gives one event to that incarnation. Later incarnations ignore it. It waits in the inbox while the process is
        stopped."""
        if self.node is None or incarnation != self.incarnation:
            return
        if self._inbox or self.paused_until_us > self.agenda.now_us:
            self._inbox.append((incarnation, event))
            return
        self._handle(event)

    def kill_now(self, power_loss: bool) -> None:
        """Kills the node from outside, between two events."""
        if self.node is not None:
            self._die(power_loss)

    def terminate(self) -> None:
        """Asks the node to end in good order (SIGTERM). A stopped process sees the signal when it goes on."""
        if self.node is None or self._stopping:
            return
        if self.paused:
            self.agenda.at(self.paused_until_us + 1, self.terminate)
            return
        self._stopping = True
        now = self.now
        try:
            effects = self.node.shutdown(now)
            self._watch(now, None, effects)
            self._carry_out(effects)
            self._after_event(self, None)
            self._end_if_stopped()
        except NodeDied as death:
            self._die(death.power_loss)
        except (NodeFailed, StartRefused, DiskError) as failure:
            self._failed(failure)

    def pause(self, for_us: int) -> None:
        until_us = self.agenda.now_us + for_us
        if until_us > self.paused_until_us:
            self.paused_until_us = until_us
            self.agenda.at(until_us, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        while self._inbox and incarnation == self.incarnation and self.paused_until_us <= self.agenda.now_us:
            arrived_in, event = self._inbox.popleft()
            if self.node is not None and arrived_in == self.incarnation:
                self._handle(event)

    def _handle(self, event: Event) -> None:
        try:
            if self._hooks:
                self._handle_hooked(event)
                if self._stopping:
                    self._end_if_stopped()
                return
            now = self.now
            effects = self.node.handle(now, event)  # type: ignore[union-attr]
            self._watch(now, event, effects)
            self._carry_out(effects)
            self.events += 1
            self._after_event(self, event)
        except NodeDied as death:
            self._die(death.power_loss)
        except (NodeFailed, StartRefused, DiskError) as failure:
            self._failed(failure)
        if self._stopping:
            self._end_if_stopped()

    def _handle_hooked(self, event: Event) -> None:
        node, now, offset_ms = self.node, self.now, self.wall_offset_ms
        assert node is not None
        events: Sequence[Event] = (event,)
        for hook in self._hooks:
            if len(events) == 1:
                events = hook.before(now, events[0])
            else:
                events = [each for seen in events for each in hook.before(now, seen)]
        if offset_ms != self.wall_offset_ms:
            now = self.now  # A hook has stepped the clock.
        for each in events:
            effects = node.handle(now, each)
            self._watch(now, each, effects)
            for hook in self._hooks:
                effects = hook.after(now, each, effects)
            self._carry_out(effects)
            self.events += 1
            self._after_event(self, each)

    def _end_if_stopped(self) -> None:
        if self.node is not None and self._stopping and self.node.stopped:
            self._die(power_loss=False)

    def _failed(self, failure: Exception) -> None:
        """Handles a node that ended itself. ``ended`` is called unless a fault had struck its disk."""
        if not self.disk_fails:
            self._ended(self, str(failure))
        self.restart_after_us = RESTART_AFTER_FAILURE_US
        self._die(power_loss=False)

    def _die(self, power_loss: bool) -> None:
        self.node = None
        self._hooks = ()
        self._watch = _unwatched
        self._inbox.clear()
        self.silent = power_loss
        if power_loss:
            self.disk.power_loss()
        assert self.network is not None
        self.network.node_gone(self, silent=power_loss)
        self._gone(self)
        if self.restart_after_us >= 0:
            self.agenda.after(self.restart_after_us, self.start)

    # Effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        carriers = self._carriers
        for effect in effects:
            kind = effect.__class__
            if kind is not Note:  # The watcher has taken the notes.
                carriers[kind](effect)

    def _reply(self, reply: Reply) -> None:
        self.network.reply(reply)  # type: ignore[union-attr]

    def _send(self, send: Send) -> None:
        self.network.send(self, send)  # type: ignore[union-attr]

    def _close(self, close: Close) -> None:
        self.network.close(close.connection)  # type: ignore[union-attr]

    def _set_timer(self, timer: SetTimer) -> None:
        now_us = self.agenda.now_us
        at_us = timer.deadline_us if timer.deadline_us > now_us else now_us + _between(self._random, SLICE_US)
        self.agenda.at(at_us, self.give, self.incarnation, TimerFired(timer.timer))

    def _sync(self, sync: Sync) -> None:
        delay_us = _between(self._random, SYNC_US) + self.sync_extra_us
        begun = self.disk.begin_sync(sync.paths)
        self.agenda.after(delay_us, self._synced, self.incarnation, sync.token, begun)

    def _synced(self, incarnation: int, token: int, synced: SyncedBytes) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        try:
            self.disk.finish_sync(synced)
        except DiskError as error:
            self.give(incarnation, SyncFailed(token, str(error)))
        else:
            self.give(incarnation, Synced(token))


def _between(random: Random, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return low + int(random.random() * (high - low + 1))


def _unwatched(now: Now, event: Event | None, effects: Sequence[Effect]) -> None:
    """The watcher of a machine that nobody watches."""
