"""The node's ports, implemented with effects: timers, syncs, the object store and requests to other nodes.

Each call of a part becomes an effect for the driver. The event with its result runs the callback.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reference_broker.core.events import (
    Effect,
    Note,
    PeerDown,
    PeerReply,
    Send,
    SetTimer,
    StoreCall,
    StoreDone,
    StoreFailed,
    Sync,
)
from reference_broker.metadata.identifiers import node_name
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.ports.store import StoreFailure, StoreOperation, StoreResult
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.tags import Tag

LONGEST_TIMER_US = 10_000_000
"""A deadline further away is reached in steps of this length.

A client chooses how long its fetch waits, up to weeks, and most waits are cancelled. A cancelled timer still fires in
the driver, so the driver holds it no longer than this.
"""


@dataclass(slots=True)
class Timers:
    """Timers as callbacks by number. A cancelled timer still fires in the driver and is ignored here."""

    effects: list[Effect]
    mono_us: Callable[[], int]
    armed: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Exactly the timers that were set, not cancelled and have not fired."""
    last: int = 0

    def set(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self.last += 1
        self._arm(self.last, deadline_us, fire)
        return self.last

    def cancel(self, timer: int) -> None:
        self.armed.pop(timer, None)

    def fired(self, timer: int) -> None:
        fire = self.armed.pop(timer, None)
        if fire is not None:
            fire()

    def _arm(self, timer: int, deadline_us: int, fire: Callable[[], None]) -> None:
        longest_us = self.mono_us() + LONGEST_TIMER_US
        if deadline_us > longest_us:
            self.armed[timer] = lambda: self._arm(timer, deadline_us, fire)
            self.effects.append(SetTimer(timer, longest_us))
        else:
            self.armed[timer] = fire
            self.effects.append(SetTimer(timer, deadline_us))


@dataclass(slots=True)
class _SyncRequest:
    """One ``sync`` call."""

    missing: int
    """The number of files whose sync has not completed."""
    done: Callable[[], None]


@dataclass(slots=True)
class Syncs:
    """One sync in flight per file; later requests for that file coalesce into the next."""

    effects: list[Effect]
    in_flight: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The files that a Sync covers, by its token. Each file is in at most one of them."""
    flying: dict[str, list[_SyncRequest]] = field(default_factory=dict)
    """The requests that the running sync of a file completes."""
    waiting: dict[str, list[_SyncRequest]] = field(default_factory=dict)
    """The requests that the next sync of a file completes."""
    last: int = 0

    def request(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        """Call ``done`` when every byte appended so far to ``paths`` is durable; at once if there is no path."""
        if not paths:
            done()
            return
        request = _SyncRequest(len(paths), done)
        fresh = []
        for path in paths:
            # Decision sync-of-path
            if path in self.flying:  # That sync may have started before our bytes: wait for the one after it.
                self.waiting.setdefault(path, []).append(request)
            else:
                self.flying[path] = [request]
                fresh.append(path)
        self._start(fresh)

    def synced(self, token: int) -> None:
        """The driver finished the Sync with this token."""
        paths = self.in_flight.pop(token)
        completed = [request for path in paths for request in self.flying.pop(path)]
        again = []
        for path in paths:
            later = self.waiting.pop(path, None)
            if later is not None:
                self.flying[path] = later
                again.append(path)
        self._start(again)
        for request in completed:
            request.missing -= 1
            if request.missing == 0:
                request.done()

    def _start(self, paths: list[str]) -> None:
        if paths:
            self.last += 1
            self.in_flight[self.last] = tuple(paths)
            self.effects.append(Sync(self.last, tuple(paths)))


def store_event(token: int, result: StoreResult | StoreFailure) -> StoreDone | StoreFailed:
    """Return the event that ends the StoreCall with this token."""
    return StoreFailed(token, result) if isinstance(result, StoreFailure) else StoreDone(token, result)


@dataclass(slots=True)
class StoreCalls:
    """Pending calls of the object store."""

    effects: list[Effect]
    waiting: dict[int, tuple[Callable[[Any], None], Callable[[StoreFailure], None]]] = field(default_factory=dict)
    """The callbacks for success and failure, by the token of the call."""
    last: int = 0

    def request(
        self, operation: StoreOperation, done: Callable[[Any], None], failed: Callable[[StoreFailure], None]
    ) -> None:
        """``done`` gets the result of the operation (``ports.store``)."""
        self.last += 1
        self.waiting[self.last] = (done, failed)
        self.effects.append(StoreCall(self.last, operation))

    def done(self, event: StoreDone) -> None:
        done, _ = self.waiting.pop(event.token)
        done(event.result)

    def failed(self, event: StoreFailed) -> None:
        _, failed = self.waiting.pop(event.token)
        failed(event.failure)


class _PendingSend(NamedTuple):
    replied: Callable[[object], None]
    failed: Callable[[], None]


@dataclass(slots=True)
class PeerRequests:
    """Requests to other nodes. Each Send ends exactly once, with its reply or with the loss of its channel."""

    node_id: int
    client_id: Callable[[], str]
    """Returns the client ID of this node's requests."""
    effects: list[Effect]
    pending: dict[tuple[int, Channel], dict[int, _PendingSend]] = field(default_factory=dict)
    """The sends without a reply, by (peer, channel), then by token, oldest first."""
    last: int = 0

    def send(
        self,
        peer: int,
        channel: Channel,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        self.last += 1
        self.pending.setdefault((peer, channel), {})[self.last] = _PendingSend(replied, failed)
        tag = _tag(api_key, api_version, node_name(self.node_id), body)
        self.effects.append(
            Send(peer, channel, self.last, api_key, api_version, body, tag, timeout_ms, self.client_id())
        )

    def replied(self, event: PeerReply) -> None:
        """Ignore a reply whose channel broke meanwhile."""
        pending = self.pending.get((event.peer, event.channel), {}).pop(event.token, None)
        if pending is not None:  # Decision peer-response
            pending.replied(event.body)

    def down(self, event: PeerDown) -> None:
        for pending in self.pending.pop((event.peer, event.channel), {}).values():
            pending.failed()


def _tag(api_key: int, api_version: int, client_id: str, body: object) -> Tag:
    if isinstance(body, FetchRequest):
        return Tag(api_key, api_version, client_id, body.session_id, body.session_epoch, role="peer")
    position = snapshot_position(body) if api_key == ApiKey.FETCH_SNAPSHOT else -1
    return Tag(api_key, api_version, client_id, position=position, role="peer")


def snapshot_position(body: object) -> int:
    """The position of a snapshot fetch, or -1 if it names no partition."""
    topics = getattr(body, "topics", ())
    return int(topics[0].partitions[0].position) if topics and topics[0].partitions else -1


class EffectPorts:
    """Implements ``ports.node_ports.StorePorts``. The node calls ``end_event`` at the end of each event."""

    def __init__(
        self,
        effects: list[Effect],
        timers: Timers,
        syncs: Syncs,
        stores: StoreCalls,
        peers: PeerRequests,
        now: Callable[[], Now],
    ) -> None:
        self._effects = effects
        self._last_steps: list[Callable[[], None]] = []
        self.at_end = self._last_steps.append
        self.now = now
        self.set_timer = timers.set
        self.cancel_timer = timers.cancel
        self.sync = syncs.request
        self.store = stores.request
        self.send = peers.send

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self._effects.append(Note(what, fields))

    def end_event(self) -> None:
        """Run the steps that were deferred to the end of the event. A step may defer further ones."""
        steps = self._last_steps
        while steps:
            taken = steps[:]
            steps.clear()
            for step in taken:
                step()
