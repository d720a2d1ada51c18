"""Drives one ``core.Node`` over TCP connections and real files: events in, effects carried out in order.

Everything runs in the event loop's thread. Only syncs and calls of the object store run in other threads; their results
come back as events.
"""

import asyncio
import os
import signal
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import attrgetter
from typing import Protocol

from reference_broker.configuration.listeners import ListenerPlan
from reference_broker.core.events import (
    Close,
    Closed,
    Effect,
    Event,
    Hooks,
    Note,
    Opened,
    Reply,
    Request,
    Send,
    SetTimer,
    StoreCall,
    Sync,
    TimerFired,
)
from reference_broker.core.node import SHUTTING_DOWN, STARTING, Node, NodeFailed
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.quorum.node_files import StartRefused
from reference_broker.serve.connection import DISCARDING, OPEN, Connection, HangUps
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.file_syncs import FileSyncs
from reference_broker.serve.log_lines import LogLines, describe_bug
from reference_broker.serve.memory_budget import MemoryBudget
from reference_broker.serve.node_log import NoteLog
from reference_broker.serve.peers import FindAddress, Peers
from reference_broker.serve.request_decoder import Decoder
from reference_broker.serve.request_scheduling import LargeMessages, ReceiveBudget, RequestScheduler
from reference_broker.serve.responses import Responses
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import ProtocolError


@dataclass(slots=True)
class Clock:
    """The two clocks of the driver: monotonic time and wall-clock time."""

    wall_offset_ms: int = 0
    """Added to the wall clock that the node sees. Faults set it."""

    def now(self) -> Now:
        return Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000 + self.wall_offset_ms)


def nobody(_: int, __: Channel) -> None:
    """Find no address: there are no other nodes."""


class LifecycleObserver(Protocol):
    """Observes the effects that no event led to: those of the node's start and shutdown."""

    def effects(self, now: Now, effects: Sequence[Effect]) -> None: ...


class Meter(Protocol):
    """Measures the driver's own work for a request. Hooks see only the node's work."""

    def decoding(self) -> None:
        """A request's frame is about to be decoded. The node gets the request right after that."""
        ...

    def sent(self, reply: Reply, frame_bytes: int) -> None:
        """The reply was encoded and handed to its connection. ``frame_bytes`` includes the length field."""
        ...


class Store(Protocol):
    """Carries out calls of the object store (``serve.object_store``)."""

    def start(self, call: StoreCall) -> None: ...

    def close(self) -> None: ...


class Driver:
    """Hands events to a node and carries out its effects."""

    def __init__(
        self,
        node: Node,
        disk: FileDisk,
        clock: Clock,
        log: LogLines,
        loop: asyncio.AbstractEventLoop,
        versions: Mapping[int, tuple[int, int]],
        max_frame_bytes: int,
        max_connections: int,
        changed: Callable[[], None],
        failed: Callable[[str], None],
        refused: Callable[[str], None],
        find_address: FindAddress = nobody,
        max_reply_bytes: int = 0,
        max_sync_descriptors: int = 1024,
    ) -> None:
        """``versions`` holds the least and greatest version served, by API key.

        ``find_address`` finds other nodes. Their replies may have ``max_reply_bytes`` if that is more than
        ``max_frame_bytes``. ``changed`` is called after each event while the node starts or stops. ``failed(reason)``
        is called once if the node must end: the disk cannot sync, or there is a bug of ours. ``refused(reason)`` is
        called if the node must not use its data directory.
        """
        self.connections: dict[int, Connection] = {}
        self.clock = clock
        self.hooks: tuple[Hooks, ...] = ()
        self.watchers: tuple[LifecycleObserver, ...] = ()
        self.meter: Meter | None = None
        self.watched = True
        self.scheduler = RequestScheduler(loop)
        self.large_messages = LargeMessages(loop.call_soon)
        self.receive_budget = ReceiveBudget(loop.call_soon)
        self.memory = MemoryBudget(-1, Metrics())
        """Unbounded until the process sets a bound."""
        self.store: Store | None = None
        """Only a node with a remote tier has one."""
        self.listeners = ListenerPlan((), (), "", ())
        """A single listener unless the process sets others."""
        self._node = node
        self._log = log
        self._loop = loop
        self._max_frame_bytes = max_frame_bytes
        self.max_connections: Callable[[], int] = lambda: max_connections
        """Fixed unless the process replaces it."""
        self._changed = changed
        self._failed = failed
        self._refused = refused
        self.has_ended = False
        self._last_connection = 0
        self._deadlines = Deadlines(
            loop, lambda: clock.now().mono_us, lambda timer: self.handle_event(TimerFired(timer))
        )
        self._hang_ups = HangUps(loop)
        self._peers = Peers(find_address, loop, log, self.handle_event, max(max_frame_bytes, max_reply_bytes))
        self._responses = Responses(self, log)
        self._decoder = Decoder(self, versions)
        notes = NoteLog(log)
        self.disk = disk
        self.syncs = FileSyncs(disk, loop, log, self.handle_event, max_sync_descriptors)
        self._effects: dict[type, Callable[..., None]] = {
            Reply: self._responses.send,
            Close: self._close,
            Send: self._peers.send,
            SetTimer: lambda effect: self._deadlines.set(effect.timer, effect.deadline_us),
            Sync: self.syncs.start,
            StoreCall: self._store_call,
            Note: lambda note: notes.take(note, clock.now().mono_us),
        }

    def protocol(self, listener: str = "") -> Connection:
        """Return the protocol of a new connection. ``listener`` is empty if the node has only one."""
        return Connection(self, self._max_frame_bytes, listener, of_node=listener in self.listeners.of_nodes)

    def start(self) -> None:
        self._guarded(lambda: self._run_step(self._node.start))

    def shut_down(self) -> None:
        """Begin the node's clean shutdown. ``changed`` is called as it progresses."""
        self.watched = True
        self._guarded(lambda: self._run_step(self._node.shutdown))

    def handle_event(self, event: Event) -> None:
        """Hand the node one event from outside, through the hooks."""
        self._guarded(lambda: self._step(event))

    def end(self) -> None:
        """Hand over no more events, and release threads and timers."""
        self.has_ended = True
        self._deadlines.close()
        self._hang_ups.close()
        self._peers.close()
        for connection in list(self.connections.values()):
            connection.abort()
        self.syncs.close()
        if self.store is not None:
            self.store.close()

    def close_idle(self, limit_ms: int) -> None:
        """Close connections that have been silent for longer than ``limit_ms`` since their last response."""
        if limit_ms < 0:
            return
        since_s = time.monotonic() - limit_ms / 1000
        for connection in list(self.connections.values()):
            connection.close_if_idle(since_s)

    # What connections call.

    def opened(self, connection: Connection) -> bool:
        """Admit the connection, and give it its number. Return False if there are too many; the caller then closes it.

        As in Kafka, a node that comes to a listener of nodes is let in always, in place of a client: nodes must reach
        each other, whatever ``max.connections`` has become. With a single listener they cannot be distinguished so
        early.
        """
        is_full = len(self.connections) >= self.max_connections()
        if self.has_ended or (is_full and not connection.of_node):
            self._log.limited("warn", "connection_refused", peer=connection.peer, reason="max.connections is reached")
            return False
        if is_full:
            self._evict_a_client()
        self._last_connection += 1
        connection.admitted(self._last_connection)
        self.connections[connection.number] = connection
        self.handle_event(Opened(connection.number, connection.peer, connection.listener))
        return True

    def _evict_a_client(self) -> None:
        """Close the client's connection that has been idle for longest, if there is any."""
        connections = self.connections.values()
        clients = [connection for connection in connections if not connection.of_node and connection.life is OPEN]
        if clients:
            min(clients, key=attrgetter("last_active_s")).evict("max.connections is reached, and a node connects")

    def decoded(self, connection: Connection, frame: memoryview) -> Request | None:
        """Decode a frame. Return None if it is large: it is decoded and handed to the node in later turns. Raise
        ProtocolError."""
        if self.meter is not None:
            self.meter.decoding()
        try:
            request = self._decoder.decoded(connection, frame)
            if request is not None:
                self.note_sender(connection, request)
            return request
        except ProtocolError:
            raise
        except Exception as bug:
            # Nothing of the node's state was touched, so a bug in a codec costs no more than a bad frame.
            raise ProtocolError(f"our codec failed: {describe_bug(bug)}") from bug

    def note_sender(self, connection: Connection, request: Request) -> None:
        """Count the connection as one of a node from its first request as a registered node on."""
        if request.tag.role == "peer" and not connection.of_node and self._is_of_node(request):
            connection.count_as_node()

    def _is_of_node(self, request: Request) -> bool:
        """Return whether a node that is registered under this client ID may come to this listener. If brokers have a
        listener of their own, they have no reason to."""
        plan = self.listeners
        return plan.inter_broker not in plan.of_nodes and self._node.is_registered(request.client_id)

    def handle_request(self, request: Request) -> None:
        """Hand the node a request, and carry out its effects. The fast path of ``handle_event``: without hooks and
        watchers nothing else sees the request."""
        if self.has_ended:
            return
        if self.hooks or self.watched:
            self._guarded(lambda: self._step(request))
            return
        try:
            effects = self._node.handle(self.clock.now(), request)
            for effect in effects:
                if effect.__class__ is Reply:
                    self._responses.send(effect)
                else:
                    self._effects[effect.__class__](effect)
        except Exception as bug:
            self._end_after_failure(bug)

    def close(self, connection: Connection, reason: str) -> None:
        if reason in (STARTING, SHUTTING_DOWN):  # Clients and other nodes come back until it serves.
            self._log.seldom("info", "connection_closed", reason, peer=connection.peer, connection=connection.number)
        else:
            facts = {"peer": connection.peer, "connection": connection.number, "reason": reason}
            self._log.limited("warn", "connection_closed", **facts)
        self.large_messages.drop(connection)
        connection.close()

    def evicted(self, connection: Connection, reason: str) -> None:
        """The connection is closed for the memory budget or ``max.connections``. Unsent responses are lost."""
        facts = {"peer": connection.peer, "connection": connection.number, "reason": reason}
        self._log.limited("warn", "connection_closed", **facts)
        self.large_messages.drop(connection)

    def closed(self, connection: Connection) -> None:
        del self.connections[connection.number]
        self._hang_ups.watch(connection, False)
        was_full = self.memory.is_full(connection)
        self.memory.forget(connection)
        self.large_messages.drop(connection)
        self.handle_event(Closed(connection.number))
        if was_full and not self.memory.is_full(connection):
            self.scheduler.memory_is_free()

    def watch_for_close(self, connection: Connection, watch: bool) -> None:
        """A connection that is not read does not notice that its peer closes it, so its socket is polled meanwhile."""
        self._hang_ups.watch(connection, watch)

    # One step.

    def _step(self, event: Event) -> None:
        if self.has_ended:
            return
        now = self.clock.now()
        events: Sequence[Event] = (event,)
        for hook in self.hooks:
            events = [passed_on for incoming in events for passed_on in hook.before(now, incoming)]
        for passed_on in events:
            self._handle_now(now, passed_on)
        if self.watched:
            self._changed()

    def _handle_now(self, now: Now, event: Event) -> None:
        effects = self._node.handle(now, event)
        for hook in self.hooks:
            effects = hook.after(now, event, effects)
        self._carry_out(effects)

    def _run_step(self, step: Callable[[Now], Sequence[Effect]]) -> None:
        now = self.clock.now()
        effects = step(now)
        for watcher in self.watchers:
            watcher.effects(now, effects)
        self._carry_out(effects)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._effects[effect.__class__](effect)
        if self.watched:
            self._changed()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ProtocolError:
            raise
        except Exception as bug:
            self._end_after_failure(bug)

    def request_failed(self, request: Request | str, bug: Exception) -> None:
        """Log a bug of ours that cost a request or a change of the metadata (``Node.on_bug``)."""
        if isinstance(request, str):
            self._log.limited("error", "change_failed", change=request, reason=describe_bug(bug))
            return
        facts = {"api": api_name(request.api_key), "version": request.api_version, "connection": request.connection}
        self._log.limited("error", "request_failed", reason=describe_bug(bug), **facts)

    def _end_after_failure(self, bug: Exception) -> None:
        """End the node after a failed disk or a bug of ours, since it must not serve from a possibly wrong state."""
        if isinstance(bug, StartRefused):
            self._refused(str(bug))
        elif not self.has_ended:
            self.has_ended = True
            self._failed(str(bug) if isinstance(bug, NodeFailed) else describe_bug(bug))

    # What DriverFaultActions does through the driver.

    def discard_connection(self, number: int) -> None:
        connection = self.connections.get(number)
        if connection is not None:
            connection.discard()
            self._loop.call_soon(connection.abort)

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self._loop.call_later(delay_us / 1e6, self.handle_event, event)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self._loop.call_later(delay_us / 1e6, self._late_reply, reply)

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        """Send a frame that a hook has made instead of the reply's own."""
        connection = self.connections.get(reply.connection)
        if connection is not None:
            if connection.life is not DISCARDING:
                connection.send([frame])
            connection.done()

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        """Send the first bytes of a response, as a hook has cut them off, and close the connection."""
        connection = self.connections.get(reply.connection)
        if connection is not None:
            if connection.life is not DISCARDING:
                connection.send([start])
            connection.close()  # Before it is done, so that it serves no further request.
            connection.done()

    def _late_reply(self, reply: Reply) -> None:
        if not self.has_ended:
            self._guarded(lambda: self._responses.send(reply))

    # Effects.

    def _store_call(self, call: StoreCall) -> None:
        assert self.store is not None, "only a node with a remote tier calls the object store"
        self.store.start(call)

    def _close(self, effect: Close) -> None:
        connection = self.connections.get(effect.connection)
        if connection is not None:
            self.close(connection, effect.reason)


@dataclass(slots=True)
class DriverFaultActions:
    """The actions of a hook on its own node.

    The maker of the hooks gets it before the node exists. It can be used once the node runs.
    """

    _clock: Clock
    _log: LogLines
    driver: Driver | None = None

    def kill(self) -> None:
        """Send SIGKILL to this process. Appended bytes stay in the page cache."""
        self._log.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def power_off(self) -> None:
        """Send SIGKILL to this process, as ``kill`` does, since a process cannot take the machine's page cache with
        it."""
        self.kill()

    def pause(self, for_us: int) -> None:
        """Send SIGSTOP to this process. Its parent sends SIGCONT after ``for_us``, which it reads in the evidence."""
        del for_us
        self._log.flush()
        os.kill(os.getpid(), signal.SIGSTOP)

    def step_clock(self, by_ms: int) -> None:
        self._clock.wall_offset_ms += by_ms

    def slow_syncs(self, by_ms: int, names_only: bool = False) -> None:
        """Make each sync from now on take ``by_ms`` longer, or with ``names_only`` only the syncs of folders."""
        driver = self._running()
        driver.syncs.delay_s = 0 if names_only else by_ms / 1000
        driver.disk.folder_delay_s = by_ms / 1000 if names_only else 0

    @property
    def syncs_delayed(self) -> int:
        """The number of syncs delayed so far."""
        return self._running().syncs.delayed + self._running().disk.folders_delayed

    def discard_connection(self, connection: int) -> None:
        self._running().discard_connection(connection)

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self._running().deliver_later(event, delay_us)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self._running().reply_later(reply, delay_us)

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self._running().reply_bytes(reply, frame)

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        self._running().reply_cut(reply, start)

    def _running(self) -> Driver:
        assert self.driver is not None, "a hook used the driver before its node was started"
        return self.driver


_SHORTEST_DELAY_S = 0.0005


@dataclass(slots=True)
class Deadlines:
    """The deadlines of SetTimer in a heap, so that the event loop has only one timer.

    ``fire(timer)`` is called once for each deadline, at that time or later, the earliest deadline first. Times are
    those of ``mono_us()``, in microseconds.
    """

    _loop: AbstractEventLoop
    _mono_us: Callable[[], int]
    _fire: Callable[[int], None]
    _heap: list[tuple[int, int]] = field(default_factory=list)
    _handle: TimerHandle | None = None
    _armed_us: int = 0

    def set(self, timer: int, deadline_us: int) -> None:
        heappush(self._heap, (deadline_us, timer))
        if self._handle is None or deadline_us < self._armed_us:
            self._arm()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._heap.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_us = self._heap[0][0]
        delay_s = max((self._armed_us - self._mono_us()) / 1e6, 0.0)
        self._handle = self._loop.call_later(delay_s and max(delay_s, _SHORTEST_DELAY_S), self._due)

    def _due(self) -> None:
        self._handle = None
        now_us = self._mono_us()
        due = []
        while self._heap and self._heap[0][0] <= now_us:
            due.append(heappop(self._heap)[1])
        for timer in due:
            self._fire(timer)
        if self._heap and self._handle is None:
            self._arm()
