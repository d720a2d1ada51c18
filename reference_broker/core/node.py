"""One node as a deterministic state machine: ``handle(now, event) -> effects`` (Kafka's BrokerServer).

It reads no clock, socket, random source or thread. A driver (serve/ live, chaos/sim in virtual time) gives it one event
at a time and carries out the effects in order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from reference_broker.apis.metadata.metadata_feed import feed_metadata
from reference_broker.apis.registry import SERVED, Dispatcher
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.core.assembly import build_broker
from reference_broker.core.call_admission import (
    UNKNOWN_ORIGIN,
    ActiveCall,
    Admission,
    ConnectionOrigin,
    LocalCall,
    failed_request,
    is_taken_before_ready,
)
from reference_broker.core.clean_shutdown import LastEnd, read_mark, remove_mark, sync_and_mark
from reference_broker.core.effect_ports import EffectPorts, PeerRequests, StoreCalls, Syncs, Timers
from reference_broker.core.events import (
    Closed,
    Effect,
    Event,
    Opened,
    PeerDown,
    PeerReply,
    PeerUp,
    Request,
    StoreDone,
    StoreFailed,
    Synced,
    SyncFailed,
    TimerFired,
)
from reference_broker.core.housekeeping import Housekeeping
from reference_broker.core.log_cleaner import LogCleaner
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.broker_settings import LiveConfig
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.identifiers import client_id_of, is_registered_node
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.metadata.records import MetadataFault
from reference_broker.metrics.metrics import Counter, Metrics
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_slices
from reference_broker.quorum.metadata_log import TruncationBelowHighWatermark
from reference_broker.quorum.node_files import StartRefused, read_identity
from reference_broker.replication.broker_metadata_publisher import BrokerMetadataPublisher
from reference_broker.replication.high_watermarks import read_high_watermarks
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import ErrorCode, error_name


class NodeFailed(Exception):  # noqa: N818 - it is an end, raised out of Node.handle
    """The node can no longer trust its state (a sync failed, for example), so the driver ends the process.

    The message is one sentence.
    """


LEAVE_LIMIT_US = 5_000_000
"""The longest wait of a clean shutdown until other brokers lead this node's partitions."""

ENDS_THE_NODE = (NodeFailed, StartRefused, DiskError, UndoFailed, MetadataFault, TruncationBelowHighWatermark)
"""Failures that end the node wherever they occur: it can no longer trust its disk or its metadata log."""

_SHARED: Mapping[type, str] = {
    Request: "in what a request set off beside its own response",
    TimerFired: "in a timer",
    Synced: "in what a sync set off",
    StoreDone: "in what a response of the object store set off",
    StoreFailed: "in what a failure of the object store set off",
    Closed: "in what the end of a connection set off",
    PeerReply: "in what the response of another node set off",
    PeerDown: "in what the loss of a channel to another node set off",
}
"""Notes for a bug that belongs to no single request. The state that it leaves may be wrong for all clients."""
_NO_EVENT = "outside of any request"

STARTING, SHUTTING_DOWN = "the node is starting", "the node is shutting down"
"""The reasons for closing connections while a node does not serve."""


EventT = TypeVar("EventT")


class Node:
    """A broker, and a controller if it is one of the voters.

    ``handle`` raises NodeFailed if the node must end, and StartRefused for a directory that it must not use. A bug of
    ours leaves ``handle`` with a note that says what the node was doing, unless ``on_bug`` contains it.
    """

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        disk: Disk,
        seed: int,
        host: str = "127.0.0.1",
        port: int = 9092,
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        """Clients reach the node at ``host`` and ``port``, or at ``endpoints`` if it has several listeners: each broker
        listener's name, host and port. ``seed`` determines every random choice; live it comes from the operating
        system, a new one at each start.
        """
        self.listening = False
        """Whether the node takes part in the quorum. A driver accepts connections from then on."""
        self.ready = False
        """Whether the node serves clients."""
        self.stopped = False
        """Whether its shutdown has finished."""
        self.on_bug: Callable[[Request | str, Exception], None] | None = None
        """Called with the request, or the name of the change, if a bug belongs to one request: in its handler, in its
        work in later events (``Call.run``), or in the plan of a change of the metadata. The bug costs that request
        alone then (``failed_request``). While it is None the exception leaves ``handle``, so that the simulator and
        tests see it."""
        self._stopping = False
        """Whether ``shutdown`` was called."""
        self._last_end = LastEnd(clean=False)
        """The end of the previous process."""
        self._opening = False
        """Whether the partitions are being opened, or are open."""
        self._closing = False
        """Whether nothing is appended any more, and the logs are synced for a clean mark."""
        self._effects: list[Effect] = []
        """The effects of the event being handled."""
        self._timers = Timers(self._effects, lambda: self.broker.now.mono_us)
        self._syncs = Syncs(self._effects)
        self._stores = StoreCalls(self._effects)
        self._peers = PeerRequests(node_id, self._client_id, self._effects)
        self._calls: dict[int, ActiveCall] = {}
        """The request in service of each connection."""
        self._origins: dict[int, ConnectionOrigin] = {}
        """The origins of the open connections' requests."""
        self._admission = Admission(config)
        self._inter_broker = config.listener_plan().inter_broker
        ports = EffectPorts(
            self._effects, self._timers, self._syncs, self._stores, self._peers, lambda: self.broker.now
        )
        self._end_event = ports.end_event
        advertised = tuple(endpoints) or (Endpoint(host, port),)
        self.broker = build_broker(ports, node_id, config, disk, seed, advertised, self._serve_locally)
        self._dispatcher = Dispatcher(self.broker)
        self._publisher = BrokerMetadataPublisher(
            node_id,
            config,
            disk,
            self.broker.partitions,
            self.broker.replication,
            now=lambda: self.broker.now,
            later=lambda step: self._timers.set(self.broker.now.mono_us, step),
            sync=ports.sync,
            note=ports.note,
            replica_count=self.metrics.gauge("kafka.server", "ReplicaManager", "PartitionCount"),
        )
        self._housekeeping = Housekeeping(self.broker, self._publisher.logs_not_led)
        self._live_config = LiveConfig(config, node_id)
        self._cleaner = LogCleaner(self.broker, self._publisher.log_of)
        self._requests = {key: _request_counter(self.metrics, key) for key in SERVED}
        self._failed_requests = {key: _failure_counter(self.metrics, key) for key in SERVED}
        # How each event is handled:
        self._on: dict[type, Callable[..., None]] = {
            Request: self._request,
            TimerFired: self._timer_fired,
            Synced: lambda event: self._syncs.synced(event.token),
            SyncFailed: self._sync_failed,
            StoreDone: self._unless_closing(self._stores.done),
            StoreFailed: self._unless_closing(self._stores.failed),
            Opened: self._opened,
            Closed: self._closed,
            PeerUp: self._ignore,
            PeerReply: self._unless_closing(self._peers.replied),
            PeerDown: self._unless_closing(self._peers.down),
        }

    @property
    def metrics(self) -> Metrics:
        return self.broker.metrics

    def registered_address(self, node_id: int) -> tuple[str, int] | None:
        """Return the address at which brokers reach another broker, as far as it is registered and this node knows."""
        image = self.broker.loader.image if self.listening else EMPTY_IMAGE
        broker = image.brokers.get(node_id)
        return None if broker is None else broker.address(self._inter_broker)

    def awaits(self, timer: int) -> bool:
        """Return whether the timer was neither cancelled nor has fired. The passing of any other timer changes
        nothing."""
        return timer in self._timers.armed

    def start(self, now: Now) -> Sequence[Effect]:
        """Start the node. Called once, before anything else.

        The node recovers the metadata log, takes part in the quorum (``listening``), registers as a broker,
        recovers its partitions, and is unfenced (``ready``).
        """
        self.broker.now = now
        self._guarded(self._start)
        return self._take_effects()

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:
        """Handle one event and return the effects that it led to."""
        self.broker.now = now
        try:
            self._on[event.__class__](event)
            self._end_event()
        except (DiskError, UndoFailed) as failure:
            raise _failed(failure) from failure
        except (MetadataFault, TruncationBelowHighWatermark) as damage:
            raise (NodeFailed if self.ready else StartRefused)(str(damage)) from damage
        except (NodeFailed, StartRefused):
            raise
        except Exception as bug:
            bug.add_note(_SHARED.get(event.__class__, _NO_EVENT))
            raise
        return self._take_effects()

    def shutdown(self, now: Now) -> Sequence[Effect]:
        """Begin a clean shutdown: everything appended is synced, then marked clean. ``stopped`` is true at its end.

        From now on a client's request closes its connection; requests that wait for a sync still get their responses.
        First the broker leaves the cluster, and a leader leaves its quorum, if others respond in time. A node that has
        not finished its start stops at once and writes no mark, since some logs are not recovered yet.
        """
        self.broker.now = now
        if not self._stopping:
            self._stopping, served = True, self.ready
            self.ready = False
            if served:
                self._guarded(self._leave)
            else:
                self._stop()
        return self._take_effects()

    def _take_effects(self) -> Sequence[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._end_event()
        except (DiskError, UndoFailed) as failure:
            raise _failed(failure) from failure

    # Starting and stopping

    def _start(self) -> None:
        read_identity(self.broker.disk, self.broker.node_id)  # Refuses another node's directory before it changes it.
        self._last_end = read_mark(self.broker.disk)
        run_slices(self.broker.ports, self.broker.quorum_node.load(self._last_end.clean), self._metadata_loaded)

    def _metadata_loaded(self) -> None:
        """Remove the mark of the last clean shutdown: the directory is this node's, and can be read. A start that was
        refused, or is to stop, leaves the mark."""
        if not self._stopping:
            remove_mark(self.broker.ports, self.broker.disk, self._join_quorum)

    def _join_quorum(self) -> None:
        """Subscribe the parts of the broker to new images, and take part in the quorum."""
        if self._stopping:
            return
        quorum_node = self.broker.quorum_node
        quorum_node.loader.subscribe(self._publisher_follows)  # First: partitions must exist before clients see them.
        quorum_node.loader.subscribe(self._settings_changed)
        feed_metadata(self.broker)
        quorum_node.loader.subscribe(self.broker.replication.leaders.image_changed)
        quorum_node.loader.subscribe(self.broker.groups.image_changed)
        if self.broker.remote_log is not None:
            quorum_node.loader.subscribe(self.broker.remote_log.image_changed)
        quorum_node.loader.subscribe(self._cleaner.topics.image_changed)
        quorum_node.loader.subscribe(lambda _, image: self._continue_start(image))
        quorum_node.lifecycle.previous_broker_epoch = self._last_end.broker_epoch
        self._publisher.on_caught_up = lambda: self._continue_start(quorum_node.loader.image)
        quorum_node.lifecycle.on_registered = lambda: self._continue_start(quorum_node.loader.image)
        quorum_node.controller.serve_locally = self._serve_locally
        quorum_node.controller.on_bug = self._change_failed
        self.listening = True
        quorum_node.start()

    def _publisher_follows(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._opening:
            self._publisher.publish(delta, image)
        else:
            self._publisher.note_deletions(delta)

    def _settings_changed(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply changed broker settings. Logs get theirs from the publisher; everything else reads ``broker.config``,
        or is updated here."""
        config = self._live_config.of(image)
        if config is not self.broker.config:
            self.broker.config = config
            run_slices(self.broker.ports, self._cleaner.topics.default_changed(config.log_cleanup_policy))
            if self.broker.remote_log is not None:
                self.broker.remote_log.settings_changed(config)

    def _continue_start(self, image: MetadataImage) -> None:
        """Take the next step of the start, if it is due.

        A node that is registered opens its partitions. A node that is unfenced, and whose partitions have the roles of
        the newest image, serves clients. Called for each image, at the registration, and when the publisher has caught
        up.
        """
        if self.ready or self._stopping:
            return
        lifecycle = self.broker.quorum_node.lifecycle
        if not lifecycle.is_registered:
            return
        if not self._opening:
            self._opening = True
            self.broker.replication.start()
            high_watermarks = read_high_watermarks(self.broker.disk)
            opening = self._publisher.start(image, self._last_end.clean, high_watermarks)
            run_slices(self.broker.ports, opening, self._report_lost_replicas)
        elif lifecycle.is_unfenced and not self._publisher.is_behind:  # Decision node-ready
            self._serve_clients()

    def _report_lost_replicas(self) -> None:
        """Report lost replicas to the controller. Only then the broker may be unfenced, so that it leads none of
        them."""
        quorum_node = self.broker.quorum_node
        quorum_node.assignment.report(self._publisher.misplaced(), quorum_node.lifecycle.want_unfenced)

    def _serve_clients(self) -> None:
        """End the start, and begin the periodic work of the broker."""
        self.ready = True
        self._housekeeping.start()
        self._cleaner.start()
        self.broker.groups.start()
        self.broker.transactions.start()
        if self.broker.remote_log is not None:
            self.broker.remote_log.start()
        self.broker.ports.note("ready", ("partitions", len(self.broker.partitions.by_name)))

    def _leave(self) -> None:
        """Leave the cluster, then sync everything.

        The sync begins at most LEAVE_LIMIT_US later, whether the controller has responded or not. From then on nothing
        begins that would change a log again.
        """

        def leave() -> None:
            if not self._closing:
                self._closing = True
                self.listening = False
                quorum_node.halt()
                self._cleaner.halted = True
                self.broker.replication.halt()
                epoch = quorum_node.lifecycle.registered_epoch
                sync_and_mark(self.broker.ports, self.broker.disk, self.logs, epoch, self._stop)

        quorum_node = self.broker.quorum_node
        self._timers.set(self.broker.now.mono_us + LEAVE_LIMIT_US, leave)
        quorum_node.shut_down(leave)

    def _stop(self) -> None:
        self.stopped = True

    # Events

    def _request(self, event: Request) -> None:
        origin = self._origins.get(event.connection, UNKNOWN_ORIGIN)
        call = ActiveCall(event, self._effects, self._finished, self._request_failed, origin)
        refusal = self._admission.refusal(event, origin.listener) or self._not_ready_for(event)
        if refusal:
            call.close(refusal)
            return
        self._requests[event.api_key].value += 1
        self._calls[event.connection] = call
        try:
            self._dispatcher.dispatch(event.api_key, call, event.body)
        except Exception as bug:
            call.fail(bug)
        if not call.closed:
            call.release_body()

    def _not_ready_for(self, event: Request) -> str:
        """Return why the request is not served now, or an empty string if it is served."""
        if not self.ready and not (self.listening and is_taken_before_ready(event)):  # Decision request-before-ready
            return SHUTTING_DOWN if self._stopping else STARTING
        return ""

    def is_registered(self, client_id: str) -> bool:
        """Return whether a node is registered that sends its requests with this client ID."""
        return is_registered_node(client_id, self.broker.loader.image)

    def _request_failed(self, call: ActiveCall, request: Request, bug: Exception) -> None:
        if self.broker.quorum.is_half_changed:
            bug.add_note("in the quorum, whose state may be half changed")
            raise bug
        if self.on_bug is None or isinstance(bug, ENDS_THE_NODE):
            raise bug
        self.on_bug(request, bug)
        self._failed_requests[request.api_key].value += 1
        failed_request(call, request)

    def _change_failed(self, name: str, bug: Exception) -> None:
        if self.on_bug is None:
            raise bug
        self.on_bug(name, bug)

    def _serve_locally(self, api_key: int, body: object, respond: Callable[[object], None]) -> None:
        """Serve a request of the broker to the active controller if that is this node."""
        call = LocalCall(self._client_id(), SERVED[api_key][1], respond)
        self._dispatcher.dispatch(api_key, call, body)

    def _client_id(self) -> str:
        return client_id_of(self.broker.node_id, self.broker.lifecycle.incarnation_id)

    def _finished(self, connection: int) -> None:
        self._calls.pop(connection, None)

    def _timer_fired(self, event: TimerFired) -> None:
        if not self._closing:
            self._timers.fired(event.timer)

    def _unless_closing(self, step: Callable[[EventT], None]) -> Callable[[EventT], None]:
        """Return ``step`` as it is called while the node does not close: a reply of another node may lead to an
        append."""

        def guarded(event: EventT) -> None:
            if not self._closing:
                step(event)

        return guarded

    def _opened(self, event: Opened) -> None:
        """Remember where the connection comes from. As in Kafka, the host has a leading slash, from Java's
        addresses."""
        host = f"/{event.peer.rpartition(':')[0] or event.peer}"
        self._origins[event.connection] = ConnectionOrigin(host, event.listener)

    def _closed(self, event: Closed) -> None:
        self._origins.pop(event.connection, None)
        call = self._calls.pop(event.connection, None)
        if call is not None:  # Decision connection-closed
            call.connection_closed()

    def _sync_failed(self, event: SyncFailed) -> None:
        raise NodeFailed(f"the disk did not sync ({event.reason}); what is durable is unknown, so the node ends")

    def _ignore(self, event: Event) -> None:
        """Ignore a new channel: each send has its own callbacks."""

    def clean_now(self, topic_id: bytes, index: int, ended: Callable[[str], None]) -> None:
        """Compact the log of a replica here, in an event. ``ended`` is called with why not, or with an empty string."""
        self._cleaner.clean_now((topic_id, index), ended)

    def logs(self) -> Iterator[UnifiedLog]:
        """Yield the logs of all replicas here, with the metadata log last."""
        yield from (partition.log for partition in self.broker.partitions.by_name.values())
        yield from self._publisher.logs_not_led()
        yield self.broker.quorum_node.log.log


def _request_counter(metrics: Metrics, api_key: int) -> Counter:
    return metrics.counter("kafka.network", "RequestMetrics", "RequestsPerSec", request=api_name(api_key))


def _failure_counter(metrics: Metrics, api_key: int) -> Counter:
    error = error_name(ErrorCode.unknown_server_error)
    return metrics.counter("kafka.network", "RequestMetrics", "ErrorsPerSec", request=api_name(api_key), error=error)


def _failed(failure: DiskError | UndoFailed) -> NodeFailed:
    return NodeFailed(f"the disk failed outside of any request ({failure}), so the node ends")
