"""A broker that is its cluster's controller: real controller, loader, lifecycle and publisher, with logs in memory.

``settle`` commits what was appended to the metadata log. With ``auto`` that happens after every request.
"""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

from kio.static.primitive import i32Timedelta

from reference_broker.apis.broker import Broker
from reference_broker.apis.metadata.metadata_feed import feed_metadata
from reference_broker.apis.registry import SERVED, Dispatcher
from reference_broker.apis.tests.declared import key_of, newest_version
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.broker_lifecycle import BrokerLifecycleManager
from reference_broker.controller.controller import NodeToControllerChannelManager
from reference_broker.controller.planning.brokers import Incarnation
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metadata.tests.metadata_world import LogInMemory, MetadataWorld
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.node_files import Identity
from reference_broker.records.record import Record, build
from reference_broker.replication.broker_metadata_publisher import BrokerMetadataPublisher
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replica_manager import replication_of
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.coordinator import TransactionCoordinator
from reference_broker.transactions.markers import MarkerWriter
from reference_broker.transactions.producer_ids import ProducerIdManager

NOW = Now(5_000_000, 1_700_000_000_000)
DIRECTORY_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
NO_WAIT, A_SECOND = i32Timedelta.parse(timedelta(0)), i32Timedelta.parse(timedelta(seconds=1))


class AdminCall:
    connection = 1
    client_id = "admin"
    client_host = ""
    listener = ""
    closed = False

    def __init__(self, api_version: int, responded: Callable[[Any], None] | None = None) -> None:
        self.api_version = api_version
        self.responses: list[Any] = []
        self._responded = responded

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:  # noqa: ARG002
        assert not self.responses, "a second response"
        self.responses.append(body)
        if self._responded is not None:
            self._responded(body)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Do nothing: no request of these tests is parked for long."""

    def run(self, work: Callable[[], object]) -> bool:
        """Run the work and let every exception reach the test."""
        work()
        return True


class QueuedPorts:
    """Ports whose timers are a queue that the test runs. ``sent``: requests to other nodes."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.sent: list[tuple[Any, ...]] = []

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:  # noqa: ARG002 - memory is durable
        done()

    def now(self) -> Now:
        return NOW

    def at_end(self, step: Callable[[], None]) -> None:
        """Run the step now: these ports have no events."""
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:  # noqa: ARG002
        self.steps.append(fire)
        return len(self.steps)

    def cancel_timer(self, timer: int) -> None:
        raise AssertionError(f"timer {timer} is cancelled")

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Ignore the note."""

    def send(self, *request: Any) -> None:
        self.sent.append(request)

    def run_steps(self) -> int:
        """Run timers until none remain. Return the number of events that took."""
        count = 0
        while self.steps:
            self.steps.pop(0)()
            count += 1
        return count


class AdminWorld:
    """Node 1. ``earlier``: the previous life, whose disk and metadata log this one finds."""

    def __init__(self, earlier: "AdminWorld | None" = None, seed: int = 0, **config: str) -> None:
        self.disk: MemoryDisk = earlier.disk if earlier is not None else MemoryDisk()
        log = earlier.metadata.log if earlier is not None else LogInMemory()
        self.metadata: MetadataWorld = MetadataWorld(log, seed, **config)
        self.controller = self.metadata.controller
        self.ports = QueuedPorts()
        self.auto = True
        parsed = self.metadata.config
        channel = NodeToControllerChannelManager(self.metadata.node_context(seed + 2), parsed, self.controller)
        self.controller.serve_locally = self._serve_locally
        self.lifecycle = BrokerLifecycleManager(
            self.metadata.node_context(seed + 3),
            parsed,
            Identity("cluster", 1, DIRECTORY_ID),
            (Endpoint("127.0.0.1", 9092),),
            channel,
        )
        self.controller.own_broker = Incarnation(1, self.lifecycle.incarnation_id)
        metrics, partitions = Metrics(), Partitions()
        replica: Any = SimpleNamespace(
            controller=self.controller,
            loader=self.metadata.loader,
            quorum=self.metadata.quorum,
            lifecycle=self.lifecycle,
            on_leader_changed=None,
        )
        replication = replication_of(self.ports, 1, parsed, self.disk, replica, metrics, partitions)
        groups = GroupCoordinator(
            self.ports, parsed, replication.leaders, lambda: self.metadata.loader.image, metrics, Random(3)
        )
        markers = MarkerWriter(self.ports, partitions, replication.leaders, lambda: self.metadata.loader.image, 30_000)
        transactions = TransactionCoordinator(
            self.ports,
            1,
            parsed,
            replication.leaders,
            lambda: self.metadata.loader.image,
            metrics,
            markers,
            ProducerIdManager(1, lambda: self.lifecycle.channel, lambda: self.controller.broker_epoch),
        )
        replication.listeners += [groups, transactions]
        self.broker = Broker(
            node_id=1,
            config=parsed,
            now=NOW,
            disk=self.disk,
            ports=self.ports,
            metrics=metrics,
            partitions=partitions,
            quorum_node=replica,
            replication=replication,
            groups=groups,
            markers=markers,
            transactions=transactions,
            verifier=AddPartitionsToTxnManager(
                self.ports, 1, lambda: self.metadata.loader.image, self._serve_locally, metrics, 30_000
            ),
            fetch_sessions=FetchSessionCache(10, Random(2), metrics, self.ports.note),
        )
        self.dispatcher = Dispatcher(self.broker)
        self.publisher = BrokerMetadataPublisher(
            1,
            parsed,
            self.disk,
            partitions,
            replication,
            now=lambda: NOW,
            later=lambda step: self.ports.steps.append(step),
            sync=lambda _, done: self.ports.steps.append(done),
        )
        self._start()

    def _start(self) -> None:
        """Register, open the partitions and unfence, as a node does."""
        self.metadata.win()
        self.settle()
        self.lifecycle.start()
        self.settle()
        self.metadata.loader.subscribe(self.publisher.publish)
        feed_metadata(self.broker)
        run_to_end(self.publisher.start(self.controller.image, False))
        self.lifecycle.want_unfenced()
        self.settle()
        assert self.lifecycle.is_unfenced

    def restart(self, seed: int) -> "AdminWorld":
        """Return the node after a restart."""
        return AdminWorld(self, seed)

    def settle(self) -> None:
        self.metadata.settle()

    def request(self, module: Any, body: object, api_version: int | None = None) -> Any:
        """Return the response, which must have been sent once everything is committed."""
        call = self.send(module, body, api_version)
        if not call.responses:
            self.ports.run_steps()  # The response is made in slices.
        assert call.responses, "no response yet"
        return call.responses[0]

    def send(self, module: Any, body: object, api_version: int | None = None) -> AdminCall:
        return self.dispatch(AdminCall(newest_version(module) if api_version is None else api_version), module, body)

    def dispatch(self, call: AdminCall, module: Any, body: object) -> AdminCall:
        self.dispatcher.dispatch(key_of(module), call, body)
        if self.auto:
            self.settle()
        else:
            self.metadata.ports.run()
        return call

    def append(self, topic: str, index: int, count: int) -> None:
        partition = self.broker.partitions.by_name[topic, index]
        batch = build([Record(timestamp_ms=NOW.wall_ms, value=b"v") for _ in range(count)])
        partition.log.append(NOW, batch, partition.leader_epoch)
        partition.log.advance_high_watermark(partition.log.log_end_offset)

    def _serve_locally(self, api_key: int, body: object, responded: Callable[[object], None]) -> None:
        self.dispatcher.dispatch(api_key, AdminCall(SERVED[api_key][1], responded), body)
