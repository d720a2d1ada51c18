"""One node as a deterministic state machine: ``handle(now, event) -> effects``.

It reads no clock, socket, random source or thread. A driver (serve/ live, chaos/sim in virtual time) gives it events
one at a time and carries out the effects in their order.
"""

from collections.abc import Callable, Iterator, Sequence

from reference_broker.apis.broker import Broker
from reference_broker.apis.metadata_feed import feed_metadata
from reference_broker.apis.registry import Api, apis
from reference_broker.core.calls import ActiveCall
from reference_broker.core.effects import Effect, Note
from reference_broker.core.errors import NodeFailed
from reference_broker.core.events import (
    Closed,
    Event,
    Opened,
    PeerDown,
    PeerReply,
    PeerUp,
    Request,
    Synced,
    SyncFailed,
    TaskDone,
    TimerFired,
)
from reference_broker.core.housekeeping import Housekeeping
from reference_broker.core.randomness import KeyedRandom
from reference_broker.core.syncs import Syncs
from reference_broker.core.timers import Timers
from reference_broker.log.disk import Disk, DiskError
from reference_broker.log.durability import SyncPoint
from reference_broker.log.now import Now
from reference_broker.log.partition_log import PartitionLog
from reference_broker.model.config import BrokerConfig
from reference_broker.model.fetch_session_cache import FetchSessionCache
from reference_broker.model.metrics import Counter, Metrics
from reference_broker.model.partition_publisher import PartitionPublisher
from reference_broker.model.partitions import Partitions
from reference_broker.raft.activation import Endpoint
from reference_broker.raft.controller import Controller
from reference_broker.raft.node_files import read_identity
from reference_broker.wire.apis import ApiKey, api_name

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
"""Written when everything is synced, removed at the next start: without it logs are recovered by scanning."""


class _Outside:
    """What handlers may ask for, turned into effects (``apis.broker.Outside``)."""

    def __init__(self, effects: list[Effect], timers: Timers, syncs: Syncs) -> None:
        self._effects = effects
        self.set_timer = timers.set
        self.cancel_timer = timers.cancel
        self.sync = syncs.request

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self._effects.append(Note(what, fields))


class Node:
    """A combined broker and controller. ``host`` / ``port``: what clients are told to connect to.

    ``ready``: it serves; a driver accepts connections only then. ``stopped``: shutdown has finished.
    ``seed``: of every random choice; live from the operating system, another one at each start.
    ``handle`` raises NodeFailed when the node must end, StartRefused for a directory that it must not use.
    """

    def __init__(
        self, node_id: int, config: BrokerConfig, disk: Disk, seed: int, host: str = "127.0.0.1", port: int = 9092
    ) -> None:
        self.ready = False
        self.stopped = False
        self._stopping = False
        self._effects: list[Effect] = []
        self._timers = Timers(self._effects, lambda: self.broker.now.mono_us)
        self._syncs = Syncs(self._effects)
        self._calls: dict[int, ActiveCall] = {}
        outside = _Outside(self._effects, self._timers, self._syncs)
        metrics = Metrics()
        partitions = Partitions()
        controller = Controller(
            node_id=node_id, config=config, disk=disk, random=KeyedRandom(seed, "controller"),
            endpoint=Endpoint(host, port), sync=self._syncs.request, now=lambda: self.broker.now,
        )  # fmt: skip
        self._apis = apis()
        self.broker = Broker(
            node_id=node_id, config=config, now=Now(0, 0), random=KeyedRandom(seed, "apis"), disk=disk,
            outside=outside, metrics=metrics, partitions=partitions, controller=controller,
            fetch_sessions=FetchSessionCache(
                config.max_incremental_fetch_session_cache_slots, KeyedRandom(seed, "fetch-sessions"), metrics,
                outside.note,
            ),
            cards=tuple(api.card for api in self._apis.values()),
        )  # fmt: skip
        self._housekeeping = Housekeeping(self.broker)
        self._publisher = PartitionPublisher(
            node_id, config, disk, partitions, now=lambda: self.broker.now,
            later=lambda step: _ignore_number(self._timers.set(self.broker.now.mono_us, step)),
        )  # fmt: skip
        self._requests = {key: _request_counter(metrics, key) for key in self._apis}
        self._on: dict[type, Callable[..., None]] = {
            Request: self._request,
            TimerFired: lambda event: self._timers.fired(event.timer),
            Synced: lambda event: self._syncs.synced(event.token),
            SyncFailed: self._sync_failed,
            Opened: self._ignore,
            Closed: self._closed,
            PeerUp: self._ignore,
            PeerReply: self._ignore,
            PeerDown: self._ignore,
            TaskDone: self._ignore,
        }

    @property
    def metrics(self) -> Metrics:
        return self.broker.metrics

    def start(self, now: Now) -> Sequence[Effect]:
        """Once, first: recovers logs in slices and starts a new leader epoch; ``ready`` tells when it is done."""
        self.broker.now = now
        self._guarded(self._start)
        return self._taken()

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:
        """The only other verb: one event in, the effects that it led to out."""
        self.broker.now = now
        try:
            self._on[event.__class__](event)
        except DiskError as failure:
            raise _failed(failure) from failure
        return self._taken()

    def shutdown(self, now: Now) -> Sequence[Effect]:
        """Asks for a clean end: everything appended is synced, then marked clean; ``stopped`` tells when.

        Requests from now on close their connection; those that wait for a sync are answered. A node that has not
        finished its start stops at once and marks nothing: some logs are not recovered yet.
        """
        self.broker.now = now
        if not self._stopping:
            self._stopping, served = True, self.ready
            self.ready = False
            if served:
                self._guarded(self._sync_all)
            else:
                self._stop()
        return self._taken()

    def _taken(self) -> Sequence[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DiskError as failure:
            raise _failed(failure) from failure

    # Starting and stopping

    def _start(self) -> None:
        read_identity(self.broker.disk, self.broker.node_id)  # Refuses another node's directory before it changes it.
        clean = self.broker.disk.exists(CLEAN_SHUTDOWN_FILE)
        self.broker.disk.delete(CLEAN_SHUTDOWN_FILE)
        self._housekeeping.run(self.broker.controller.load(clean, lambda: self._loaded(clean)), _nothing)

    def _loaded(self, clean: bool) -> None:
        controller = self.broker.controller
        controller.subscribe(self._publisher.publish)  # First: what clients are told about must be there.
        feed_metadata(self.broker)
        self._housekeeping.run(self._publisher.start(controller.image, clean), self._opened_all)

    def _opened_all(self) -> None:
        if self._stopping:
            return
        self.ready = True
        self._housekeeping.start()
        self.broker.outside.note("ready", ("partitions", len(self.broker.partitions.by_name)))

    def _sync_all(self) -> None:
        """Again until nothing is left: what was on its way when the end began may append once more."""
        points: list[tuple[PartitionLog, SyncPoint]] = []
        for log in self._logs():
            log.close_cleanly()
            point = log.sync_point()
            if point.paths:
                points.append((log, point))
        if not points:
            self._mark_clean()
            return
        self._syncs.request(tuple(path for _, point in points for path in point.paths), lambda: self._synced(points))

    def _synced(self, points: Sequence[tuple[PartitionLog, SyncPoint]]) -> None:
        for log, point in points:
            log.mark_synced(point)
        self._sync_all()

    def _mark_clean(self) -> None:
        self.broker.disk.write(CLEAN_SHUTDOWN_FILE, b'{"version":0}\n')
        self._syncs.request((CLEAN_SHUTDOWN_FILE,), self._stop)

    def _stop(self) -> None:
        self.stopped = True

    # Events

    def _request(self, event: Request) -> None:
        call = ActiveCall(event, self._effects, self._finished)
        if not self.ready:
            call.close("the node is shutting down" if self._stopping else "the node is starting")
            return
        api = self._apis.get(event.api_key)
        if api is None or not self._serves(api, event):
            call.close(f"{api_name(event.api_key)} version {event.api_version} is not served")
            return
        self._requests[event.api_key].value += 1
        self._calls[event.connection] = call
        body = api.handle(self.broker, call, event.body)
        if body is not None:
            call.respond(body)

    @staticmethod
    def _serves(api: Api, event: Request) -> bool:
        """ApiVersions answers an unknown version itself (KIP-511); its body is None then."""
        return api.card.api_key == ApiKey.API_VERSIONS or (
            event.body is not None and api.card.min_version <= event.api_version <= api.card.max_version
        )

    def _finished(self, connection: int) -> None:
        self._calls.pop(connection, None)

    def _closed(self, event: Closed) -> None:
        call = self._calls.pop(event.connection, None)
        if call is not None:
            call.connection_closed()

    def _sync_failed(self, event: SyncFailed) -> None:
        raise NodeFailed(f"the disk did not sync ({event.reason}); what is durable is unknown, so the node ends")

    def _ignore(self, event: Event) -> None:
        """Nothing to do for this event yet: no other nodes, no offloaded work."""

    def _logs(self) -> Iterator[PartitionLog]:
        yield from (partition.log for partition in self.broker.partitions.by_name.values())
        metadata_log = self.broker.controller.metadata_log
        if metadata_log is not None:
            yield metadata_log


def _request_counter(metrics: Metrics, api_key: int) -> Counter:
    return metrics.counter("kafka.network", "RequestMetrics", "RequestsPerSec", request=api_name(api_key))


def _failed(failure: DiskError) -> NodeFailed:
    return NodeFailed(f"the disk failed where no client can be told ({failure}), so the node ends")


def _ignore_number(_: int) -> None:
    """A timer that nobody will cancel."""


def _nothing() -> None:
    """The slices of loading call ``ready`` themselves."""
