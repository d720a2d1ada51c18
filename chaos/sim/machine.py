"""The simulator's driver of one node: its process (a core.Node per incarnation), disk, clock, and the driver between
them.

The driver gives events through the hooks and carries out effects in order.
"""

from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from chaos.faults.disk_damage import flips
from chaos.seeds import random_for
from chaos.sim.agenda import Agenda
from chaos.sim.decision_counts import recorder
from chaos.sim.disk import SimDisk
from chaos.sim.disk import Synced as SyncedOnDisk
from reference_broker.core.events import (
    Close,
    Effect,
    Event,
    Hooks,
    Note,
    Reply,
    Send,
    SetTimer,
    StoreCall,
    Sync,
    Synced,
    SyncFailed,
    TimerFired,
)
from reference_broker.core.node import Node, NodeFailed
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Now
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE, StartRefused

if TYPE_CHECKING:
    from chaos.sim.network import Network
    from chaos.sim.store import SimStore

SLICE_US = (50, 2000)
"""A node does long work in slices. The next slice comes this much later, so other nodes act in between."""
RESTART_AFTER_FAILURE_US = 2_000_000
"""A node that ended because of its disk is started again after this time, as ``crucible cluster --restart`` does."""
ERROR_LIMIT_US = 5_000_000
"""A node that ends itself longer than this after its disk failed has another reason (live: ``ERROR_LIMIT_S``)."""
SYNC_US = (200, 4000)
"""The range from which the duration of each sync is drawn."""


class ProcessKilled(BaseException):
    """Raised by kill, power_off and lose_host, so that they never return; no handler in the node may catch it.

    With ``silent`` the node's connections stay open at the other ends.
    """

    def __init__(self, power_loss: bool, silent: bool = False) -> None:
        super().__init__("power loss" if power_loss else "kill")
        self.power_loss = power_loss
        self.silent = silent


EventWatcher: TypeAlias = Callable[[Now, Event | None, Sequence[Effect]], None]
"""Observes the effects of one event (None: the start) of an incarnation, before hooks and the network change them."""


Boot: TypeAlias = Callable[["Machine"], tuple[Node, Sequence[Hooks], EventWatcher]]
"""Builds a node, the incarnation's hooks and its watcher."""


def nothing(*_: object) -> None:
    """A callback that does nothing."""


class Machine:
    """One node's machine.

    - ``after_event``: called for the checks when an event was handled and its effects were carried out.
    - ``on_exit``: called when the process has ended.
    - ``on_failure``: called before that, with the error, if the node ended itself and no fault of the disk was the
      reason.
    """

    network: "Network"
    """set by the network itself"""
    store: "SimStore"
    """set by the cluster"""

    def __init__(
        self,
        node_id: int,
        agenda: Agenda,
        seed: int,
        boot: Boot,
        after_event: Callable[["Machine", Event | None], None] = nothing,
        on_exit: Callable[["Machine"], None] = nothing,
        on_failure: Callable[["Machine", str], None] = nothing,
    ) -> None:
        self.node_id = node_id
        self.agenda = agenda
        self.disk = SimDisk(random_for(seed, f"disk-{node_id}"))
        self.incarnation = -1
        self.wall_offset_ms = 0
        self.node: Node | None = None
        self.events = 0
        self.sync_extra_us = 0
        self.names_extra_us = 0
        """additional time of a sync that covers names"""
        self.restart_after_us = -1
        """time from the next end of the process to its restart, -1 for never"""
        self.silent = False
        """whether the machine is off or out of reach, so that the other ends of its connections stay open"""
        self.power_loss = False
        """whether its last process ended by a power loss, which loses all that was not synced"""
        self.lost_bytes_of: Sequence[str] = ()
        """files of which the last end without a power loss lost bytes"""
        self.damaged: list[str] = []
        """files of which bits were flipped since the last start"""
        self.paused_until_us = 0
        self._random = random_for(seed, f"machine-{node_id}")
        self._boot = boot
        self._hooks: Sequence[Hooks] = ()
        self._watch: EventWatcher = nothing
        self._after_event = after_event
        self._on_exit = on_exit
        self._on_failure = on_failure
        self._stopping = False
        self._may_end_until_us = -1
        self._inbox: deque[tuple[int, Event]] = deque()
        self._decisions = recorder()
        self.decided: Callable[[str], None] | None = None
        """called with each outcome of a decision point that this incarnation reaches, if a fault waits for one"""
        self._effect_handlers: dict[type, Callable[[Any], None]] = {
            Reply: lambda reply: self.network.reply(reply),
            Send: lambda send: self.network.send(self, send),
            Close: lambda close: self.network.close(close.connection),
            SetTimer: self._set_timer,
            Sync: self._sync,
            StoreCall: lambda call: self.store.call(self, call),
        }

    @property
    def now(self) -> Now:
        return Now(self.agenda.now_us, self.agenda.wall_ms + self.wall_offset_ms)

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def incarnation_alive(self) -> int:
        """Number of the running incarnation, or -1."""
        return -1 if self.node is None else self.incarnation

    @property
    def paused(self) -> bool:
        return self.paused_until_us > self.agenda.now_us

    @property
    def accepts(self) -> bool:
        """Return whether connections are accepted. The kernel of a stopped process still accepts them."""
        return self.node is not None and self.node.listening

    @property
    def ready(self) -> bool:
        return self.node is not None and self.node.ready

    def start(self) -> None:
        """Start a new incarnation over the same disk. Do nothing while one runs; if that one got SIGTERM, the new one
        starts as soon as it has ended."""
        if self.node is not None:
            if self._stopping:
                self.restart_after_us = 0
            return
        if self.silent:
            self.silent = False
            self.network.node_back(self)
        self.incarnation += 1
        self.disk.process_started()
        self.restart_after_us = -1
        self.paused_until_us = 0
        self._may_end_until_us = -1
        self._stopping = False
        self._attempt(self._boot_up)

    def _boot_up(self) -> None:
        self.node, self._hooks, self._watch = self._boot(self)
        self.damaged = []
        now = self.now
        self._done(now, None, self.node.start(now))

    def deliver(self, incarnation: int, event: Event) -> None:
        """Deliver one event to that incarnation. Later incarnations ignore it. It waits in the inbox while the process
        is stopped."""
        if self.node is None or incarnation != self.incarnation:
            return
        if self._inbox or self.paused_until_us > self.agenda.now_us:
            self._inbox.append((incarnation, event))
            return
        self._attempt(self._handle, self.node, event)

    def kill_now(self, power_loss: bool, silent: bool = False) -> None:
        """Kill the node from outside, between two events."""
        if self.node is not None:
            self._die(power_loss, silent)

    def terminate(self) -> None:
        """Send the node SIGTERM, after which it shuts down cleanly. A stopped process handles the signal when it
        resumes."""
        if self.node is not None and not self._stopping:
            self._stopping = True
            self._see_signal(self.incarnation)

    def _see_signal(self, incarnation: int) -> None:
        if self.node is None or incarnation != self.incarnation:
            return
        if self.paused:
            self.agenda.at(self.paused_until_us + 1, self._see_signal, incarnation)
        else:
            self._attempt(self._shut_down, self.node)

    def _shut_down(self, node: Node) -> None:
        now = self.now
        self._done(now, None, node.shutdown(now))

    def stop_and_flip(self, matching: str | None = None) -> bool:
        """Flip bits of the records of a node that has shut down cleanly (``flips``), and return whether there were any.
        A node that took too long was killed, so the end of its log may be torn, and damage would prove nothing."""
        if self.node is not None:
            self._die(power_loss=False)
            return False
        if not self.disk.exists(CLEAN_SHUTDOWN_FILE):
            return False
        flipped = flips(self.disk.all_files(), self._random, matching)
        for flip in flipped:
            self.disk.flip(flip.path, flip.bit)
            self.damaged.append(flip.path)
        return bool(flipped)

    def stop_and_delete(self, matching: str) -> bool:
        """Delete the files of a stopped node whose paths are like the shell pattern, and return whether there were
        any."""
        if self.node is not None:
            self._die(power_loss=False)
        gone = [path for path, _ in self.disk.all_files() if fnmatchcase(path, matching)]
        for path in gone:
            self.disk.delete(path)
            self.disk.make_durable(path)
        return bool(gone)

    def disk_failed(self, reported_after_us: int = 0) -> None:
        """Record that an operation of the disk fails now, which the process sees after that time. It may end itself."""
        self._may_end_until_us = max(self._may_end_until_us, self.agenda.now_us + reported_after_us + ERROR_LIMIT_US)

    @property
    def _may_end(self) -> bool:
        """Return whether a fault of the disk may be the reason if the node ends itself now. A damaged file and a full
        disk are such a reason for as long as they are there."""
        disk = self.disk
        return bool(disk.damaged) or disk.capacity_bytes >= 0 or self.agenda.now_us <= self._may_end_until_us

    def pause(self, for_us: int) -> None:
        until_us = self.agenda.now_us + for_us
        if self.agenda.now_us <= self._may_end_until_us:  # A stopped process sees the failure when it resumes.
            self._may_end_until_us = max(self._may_end_until_us, until_us + ERROR_LIMIT_US)
        if until_us > self.paused_until_us:
            self.paused_until_us = until_us
            self.agenda.at(until_us, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        while self._inbox and incarnation == self.incarnation and self.paused_until_us <= self.agenda.now_us:
            arrived_in, event = self._inbox.popleft()
            if self.node is not None and arrived_in == self.incarnation:
                self._attempt(self._handle, self.node, event)

    def _attempt(self, act: Callable[..., None], *args: Any) -> None:
        """Run an action of the node. During it the node may end itself, be killed, or finish its shutdown."""
        if self._decisions is not None:
            self._decisions.enter(self.node_id, self.decided)
        try:
            act(*args)
        except ProcessKilled as death:
            self._die(death.power_loss, death.silent)
        except (NodeFailed, StartRefused, DiskError) as failure:
            self._failed(failure)
        finally:
            if self._decisions is not None:
                self._decisions.leave()
        if self._stopping and self.node is not None and self.node.stopped:
            self._die(power_loss=False)

    def _handle(self, node: Node, event: Event) -> None:
        now, offset_ms = self.now, self.wall_offset_ms
        events: Sequence[Event] = (event,)
        for hook in self._hooks:
            if len(events) == 1:
                events = hook.before(now, events[0])
            else:
                events = [hooked for seen in events for hooked in hook.before(now, seen)]
        if offset_ms != self.wall_offset_ms:
            now = self.now  # A hook has stepped the clock.
        for handled in events:
            self._done(now, handled, node.handle(now, handled))

    def _done(self, now: Now, event: Event | None, effects: Sequence[Effect]) -> None:
        """Show event and effects to the watcher, and carry out the effects that the hooks let through."""
        self._watch(now, event, effects)
        if event is not None:
            for hook in self._hooks:
                effects = hook.after(now, event, effects)
        self._carry_out(effects)
        self.events += event is not None  # A start or shutdown is no event.
        self._after_event(self, event)

    def _failed(self, failure: Exception) -> None:
        """Handle a node that ended itself. ``on_failure`` is called unless a fault of its disk may be the reason."""
        if not self._may_end:
            self._on_failure(self, str(failure))
        self.restart_after_us = RESTART_AFTER_FAILURE_US
        self._die(power_loss=False)

    def _die(self, power_loss: bool, silent: bool = False) -> None:
        self.node = None
        self._hooks = ()
        self._watch = nothing
        self._inbox.clear()
        self.power_loss = power_loss
        self.silent = silent or power_loss
        self.lost_bytes_of = self.disk.process_ended()
        if power_loss:
            self.disk.power_loss()
        self.network.node_gone(self, silent=self.silent)
        self._on_exit(self)
        if self.restart_after_us >= 0:
            self.agenda.after(self.restart_after_us, self.start)

    # Effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        handlers = self._effect_handlers
        for effect in effects:
            kind = effect.__class__
            if kind is not Note:  # The watcher has taken the notes.
                handlers[kind](effect)

    def _set_timer(self, timer: SetTimer) -> None:
        now_us = self.agenda.now_us
        at_us = timer.deadline_us if timer.deadline_us > now_us else now_us + _between(self._random, SLICE_US)
        self.agenda.at(at_us, self._timer_passed, self.incarnation, timer.timer)

    def _timer_passed(self, incarnation: int, timer: int) -> None:
        """Notify the node, unless it has cancelled the timer. Most timers of parked fetches are cancelled, because
        the response came in time."""
        if self.node is not None and incarnation == self.incarnation and self.node.awaits(timer):
            self.deliver(incarnation, TimerFired(timer))

    def _sync(self, sync: Sync) -> None:
        delay_us = _between(self._random, SYNC_US) + self.sync_extra_us
        begun = self.disk.begin_sync(sync.paths)
        if begun.folders:
            delay_us += self.names_extra_us
        self.agenda.after(delay_us, self._synced, self.incarnation, sync.token, begun)

    def _synced(self, incarnation: int, token: int, synced: SyncedOnDisk) -> None:
        if incarnation != self.incarnation or self.node is None:
            return
        try:
            self.disk.finish_sync(synced)
        except DiskError as error:
            self.deliver(incarnation, SyncFailed(token, str(error)))
        else:
            self.deliver(incarnation, Synced(token))


def _between(random: Random, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return low + int(random.random() * (high - low + 1))
