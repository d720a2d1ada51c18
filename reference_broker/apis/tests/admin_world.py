"""A broker that is its cluster's controller: real controller, loader, lifecycle and publisher, with logs in memory.

What is appended to the metadata log is committed by ``settle``; ``auto``: after every request.
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
from reference_broker.apis.tests.declared import key_of, newest
from reference_broker.configuration.listeners import Endpoint
from reference_broker.controller.broker_lifecycle import BrokerLifecycle
from reference_broker.controller.controller import ControllerChannel
from reference_broker.controller.planning.brokers import Incarnation
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.metadata.tests.metadata_world import LogInMemory, MetadataWorld
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.node_files import Identity
from reference_broker.records.record import Record, build
from reference_broker.replication.partition_publisher import PartitionPublisher
from reference_broker.replication.partitions import Partitions
from reference_broker.replication.replication import replication_of
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.coordinator import TransactionCoordinator
from reference_broker.transactions.markers import MarkerWriter
from reference_broker.transactions.producer_ids import ProducerIds

NOW = Now(5_000_000, 1_700_000_000_000)
DIRECTORY_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
NO_WAIT, A_SECOND = i32Timedelta.parse(timedelta(0)), i32Timedelta.parse(timedelta(seconds=1))


class AdminCall:
    connection = 1
    client_id = "admin"
    client_host = ""
    listener = ""
    closed = False

    def __init__(self, api_version: int, answered: Callable[[Any], None] | None = None) -> None:
        self.api_version = api_version
        self.responses: list[Any] = []
        self._answered = answered

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:  # noqa: ARG002
        assert not self.responses, "answered twice"
        self.responses.append(body)
        if self._answered is not None:
            self._answered(body)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Nothing here waits for long."""

    def contain(self, work: Callable[[], object]) -> bool:
        """Tests see every bug."""
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
        """There are no events here, so each step is one."""
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:  # noqa: ARG002
        self.steps.append(fire)
        return len(self.steps)

    def cancel_timer(self, timer: int) -> None:
        raise AssertionError(f"timer {timer} is cancelled")

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Not looked at."""

    def send(self, *request: Any) -> None:
        self.sent.append(request)

    def run_steps(self) -> int:
        """Run timers until none is left; how many events that took."""
        count = 0
        while self.steps:
            self.steps.pop(0)()
            count += 1
        return count


class AdminWorld:
    """Node 1. ``earlier``: the life before, whose disk and metadata log this one finds."""

    def __init__(self, earlier: "AdminWorld | None" = None, seed: int = 0, **config: str) -> None:
        self.disk: MemoryDisk = earlier.disk if earlier is not None else MemoryDisk()
        log = earlier.metadata.log if earlier is not None else LogInMemory()
        self.metadata: MetadataWorld = MetadataWorld(log, seed, **config)
        self.controller = self.metadata.controller
        self.ports = QueuedPorts()
        self.auto = True
        parsed = self.metadata.config
        channel = ControllerChannel(self.metadata.node_context(seed + 2), parsed, self.controller)
        self.controller.serve_locally = self._serve_locally
        self.lifecycle = BrokerLifecycle(
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
            ProducerIds(1, lambda: self.lifecycle.channel, lambda: self.controller.broker_epoch),
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
            replica=replica,
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
        self.publisher = PartitionPublisher(
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
        """As a node does: registered, its partitions open, let in."""
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

    def again(self, seed: int) -> "AdminWorld":
        """The node's next life."""
        return AdminWorld(self, seed)

    def settle(self) -> None:
        self.metadata.settle()

    def ask(self, module: Any, body: object, api_version: int | None = None) -> Any:
        """The answer, which must be there once everything is committed."""
        call = self.begin(module, body, api_version)
        if not call.responses:
            self.ports.run_steps()  # It is made in slices.
        assert call.responses, "no answer yet"
        return call.responses[0]

    def begin(self, module: Any, body: object, api_version: int | None = None) -> AdminCall:
        return self.give(AdminCall(newest(module) if api_version is None else api_version), module, body)

    def give(self, call: AdminCall, module: Any, body: object) -> AdminCall:
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

    def _serve_locally(self, api_key: int, body: object, answered: Callable[[object], None]) -> None:
        self.dispatcher.dispatch(api_key, AdminCall(SERVED[api_key][1], answered), body)
