"""A transaction coordinator on a real leader (``leader_world``).

Node 1 leads partitions of ``__transaction_state`` and of ``events``, with logs in memory. The test plays the followers
and the other brokers, and sets the time.
"""

from types import SimpleNamespace
from typing import Any

from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.types import ProducerId
from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kio.static.primitive import i32

from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.partitioner import partition_of
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.metadata.features import TRANSACTION_FEATURE
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import iterate
from reference_broker.records.control import ControlType, read_marker
from reference_broker.records.record import Record, build, read_all
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.replica_manager import ReplicaManager
from reference_broker.replication.tests.leader_world import TOPIC_ID, LeaderWorld, broker_epoch_of
from reference_broker.transactions.coordinator import AddRequest, EndRequest, InitRequest, TransactionCoordinator
from reference_broker.transactions.markers import MarkerWriter
from reference_broker.transactions.producer_ids import ProducerIdManager
from reference_broker.transactions.transaction_metadata import ProducerIdAndEpoch, TransactionState, TxnTransitMetadata
from reference_broker.transactions.transaction_state_manager import (
    TransactionStateManager,
    transaction_key,
    transaction_value,
)
from reference_broker.wire.errors import Error, ErrorCode

PARTITIONS = 4
PRODUCER = ProducerIdAndEpoch(5, 7)
"""The producer ID and epoch of a producer in the worlds of ``coordinator_in_state``."""
STATE_TOPIC_ID = b"s" * 16
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
"""Time-outs are looked for often, so that tests need no long time."""


class TransactionWorld(LeaderWorld):
    """``replicas``: of the state topic, of which node 1 leads the partitions passed to ``coordinate``. It leads all
    ``partitions`` of ``events``, unless ``leaders`` lists others. ``sent``: requests to other brokers, to which the
    test responds."""

    def __init__(
        self,
        replicas: tuple[int, ...] = (1,),
        partitions: int = 4,
        leaders: tuple[int, ...] = (),
        version: int = 2,
        min_isr: int = 1,
        **config: str,
    ) -> None:
        super().__init__(min_isr)
        given = {key.replace("_", "."): value for key, value in config.items()}
        self.parsed = BrokerConfig.parse({**SETTINGS, **given})
        self.replicas = self.isr = replicas
        self.version = version
        self.block = 0
        self.sent: list[tuple[int, WriteTxnMarkersRequest, Any, Any]] = []
        self.timeouts_ms: list[int] = []  # One for each request sent to another node.
        self.leaders_of = leaders or (1,) * partitions
        self.led_events = Partitions()
        for index, leader in enumerate(self.leaders_of):
            if leader == 1:
                self.led_events.add(self.lead(index, (1,), (1,)))
        self.led: dict[int, Partition] = {}
        self.boot()

    def boot(self) -> None:
        """Restart the node, which leads its partitions again."""
        ports: Any = self
        self.publish_topics()
        writer = MarkerWriter(
            ports, self.led_events, self.leaders, lambda: self.controller.image, self.parsed.request_timeout_ms
        )
        self.ids = ProducerIdManager(1, lambda: self, lambda: broker_epoch_of(1))
        self.transactions = TransactionCoordinator(
            ports, 1, self.parsed, self.leaders, lambda: self.controller.image, self.metrics, writer, self.ids
        )
        fetchers: Any = SimpleNamespace(await_marker=lambda _: None)  # Nothing is followed here.
        self.roles = ReplicaManager(self.leaders, fetchers, [self.transactions])
        self.transactions.start()

    def at_end(self, step: Any) -> None:
        """Defer the step: the next ``pass_ms`` ends the event."""
        self.set_timer(self.mono_us, step)

    def sync(self, paths: tuple[str, ...], done: Any) -> None:  # noqa: ARG002 - memory is durable
        done()

    # metadata

    def publish_topics(self, *, events: bool = True) -> None:
        state = PartitionImage(self.replicas, self.replicas, 1, 0, 0)
        images = {TRANSACTION_TOPIC: TopicImage(TRANSACTION_TOPIC, STATE_TOPIC_ID, (state,) * PARTITIONS)}
        if events:
            led = tuple(PartitionImage((leader,), (leader,), leader, 0, 0) for leader in self.leaders_of)
            images["events"] = TopicImage("events", TOPIC_ID, led)
        self.controller.image = MetadataImage(
            brokers=self.controller.image.brokers,
            topics=images,
            topic_names={image.topic_id: name for name, image in images.items()},
            features={TRANSACTION_FEATURE: self.version},
        )

    # the controller

    def send_request(self, _key: int, _version: int, _body: object, replied: Any, _failed: Any) -> None:
        """Respond with a block of producer IDs, in a later event."""
        self.block += 1000
        response = AllocateProducerIdsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            producer_id_start=ProducerId(self.block),
            producer_id_len=i32(1000),
        )
        self.set_timer(self.mono_us, lambda: replied(response))

    # other brokers

    def send(
        self, peer: int, _channel: int, _key: int, _version: int, body: Any, timeout_ms: int, replied: Any, failed: Any
    ) -> None:
        self.sent.append((peer, body, replied, failed))
        self.timeouts_ms.append(timeout_ms)

    def reply(self, error: ErrorCode = ErrorCode.none, **errors: ErrorCode) -> WriteTxnMarkersRequest:
        """Respond to the oldest request; ``p3``: the error of partition 3."""
        _, body, replied, _ = self.sent.pop(0)
        replied(
            WriteTxnMarkersResponse(
                markers=tuple(
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=tuple(
                            WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=tuple(
                                    WritableTxnMarkerPartitionResult(
                                        partition_index=index, error_code=errors.get(f"p{index}", error)
                                    )
                                    for index in topic.partition_indexes
                                ),
                            )
                            for topic in marker.topics
                        ),
                    )
                    for marker in body.markers
                )
            )
        )
        self.pass_ms(0)
        return body

    # roles

    def coordinate(self, index: int, log: UnifiedLog | None = None, epoch: int = 0) -> TransactionStateManager | None:
        """Start to lead. ``pass_ms`` runs the loading."""
        if log is None:
            config = LogConfig(min_insync_replicas=self.min_isr, cleanup_policy="compact")
            log = run_to_end(open_log(self.disk, f"{TRANSACTION_TOPIC}-{index}", config, self.now(), True))
        partition = self.led[index] = Partition(TRANSACTION_TOPIC, STATE_TOPIC_ID, index, epoch, log)
        log.assign_leader_epoch(epoch)
        if len(self.replicas) == 1:
            log.advance_high_watermark(log.log_end_offset)
        self.roles.leads(partition, PartitionImage(self.replicas, self.isr, 1, epoch, 0))
        return next((each for each in self.transactions.active() if each.index == index), None)

    def stop_leading(self, index: int) -> UnifiedLog:
        """Make another node the leader."""
        partition = self.led.pop(index)
        partition.is_removed = True
        self.roles.stops_leading(partition)
        return partition.log

    def replicate(self, index: int) -> None:
        """Make both followers fetch everything."""
        partition = self.led[index]
        for follower in (2, 3):
            self.fetch(follower, partition, partition.log.log_end_offset)
        self.pass_ms(0)

    def load_transaction(self, transaction: TxnTransitMetadata, *, version: int = 2) -> None:
        """Append the record as an earlier coordinator did, and load it."""
        index = partition_of(transaction.transactional_id, PARTITIONS)
        key, value = transaction_key(transaction.transactional_id), transaction_value(transaction, version)
        batch = build([Record(timestamp_ms=self.now().wall_ms, key=key, value=value)])
        log = self.led[index].log if index in self.led else None
        if log is None:
            config = LogConfig(min_insync_replicas=self.min_isr, cleanup_policy="compact")
            log = run_to_end(open_log(self.disk, f"{TRANSACTION_TOPIC}-{index}", config, self.now(), True))
        log.append(self.now(), batch, 0, origin=BatchOrigin.BROKER)
        self.coordinate(index, log, epoch=1)
        self.pass_ms(0)

    # producers

    def transactional_id_in(self, index: int, prefix: str = "x") -> str:
        """Return a transactional ID that is stored in this partition."""
        return next(f"{prefix}{n}" for n in range(1000) if partition_of(f"{prefix}{n}", PARTITIONS) == index)

    def init_producer_id(
        self, transactional_id: str, expected: tuple[int, int] | None = None, timeout_ms: int = 60_000
    ) -> list[tuple[Error, ProducerIdAndEpoch]]:
        """The returned list gets the response once it is sent."""
        responses: list[tuple[Error, ProducerIdAndEpoch]] = []
        request = InitRequest(transactional_id, timeout_ms, expected and ProducerIdAndEpoch(*expected))
        self.transactions.init_producer_id(request, lambda error, owner: responses.append((error, owner)))
        self.pass_ms(0)
        return responses

    def initialized_producer(self, transactional_id: str, **more: Any) -> ProducerIdAndEpoch:
        ((error, owner),) = self.init_producer_id(transactional_id, **more)
        assert error is ErrorCode.none, error
        return owner

    def add_partitions(
        self, transactional_id: str, owner: tuple[int, int], *indexes: int, version: int = 2, topic: str = "events"
    ) -> list[Error]:
        responses: list[Error] = []
        partitions = tuple((topic, index) for index in indexes or (0,))
        request = AddRequest(transactional_id, ProducerIdAndEpoch(*owner), partitions, version)
        self.transactions.add_partitions(request, responses.append)
        self.pass_ms(0)
        return responses

    def end_transaction(
        self, transactional_id: str, owner: tuple[int, int], *, commits: bool = True, version: int = 2
    ) -> list[tuple[Error, ProducerIdAndEpoch]]:
        responses: list[tuple[Error, ProducerIdAndEpoch]] = []
        request = EndRequest(transactional_id, ProducerIdAndEpoch(*owner), commits, version)
        self.transactions.end_transaction(request, lambda error, next_owner: responses.append((error, next_owner)))
        self.pass_ms(0)
        return responses

    def verify_partitions(self, transactional_id: str, owner: tuple[int, int], *indexes: int) -> Any:
        partitions = tuple(("events", index) for index in indexes or (0,))
        return self.transactions.verify_partitions(AddRequest(transactional_id, ProducerIdAndEpoch(*owner), partitions))

    # state

    def transaction(self, transactional_id: str) -> TxnTransitMetadata:
        entry = self.transactions.find_metadata(transactional_id)
        assert not isinstance(entry, Error), entry
        return entry.current

    def markers(self, index: int = 0) -> list[tuple[str, int, int, int]]:
        """Return (outcome, producer ID, producer epoch, coordinator epoch) of each marker in ``events``."""
        log = self.led_events.by_name["events", index].log
        data = memoryview(log.read(0, 1 << 20, log.log_end_offset)) if log.log_end_offset else memoryview(b"")
        found = []
        for position, header in iterate(data):
            if header.is_control:
                marker = read_marker(data[position : position + header.size_bytes], header)
                assert marker is not None, f"no marker at {header.base_offset}"
                outcome = "commit" if marker[0] is ControlType.COMMIT else "abort"
                found.append((outcome, header.producer_id, header.producer_epoch, marker[1]))
        return found

    def record_values(self, index: int) -> list[bytes | None]:
        log = self.led[index].log
        return [one.value for _, one in read_all(log.read(0, 1 << 22, log.log_end_offset))]


def coordinator_in_state(
    state: TransactionState, owner: tuple[int, int] = PRODUCER, timeout_ms: int = 60_000, **more: Any
) -> tuple[TransactionWorld, str]:
    """Return a coordinator that has loaded an ID in this state, and the ID. An open transaction has partition 0."""
    world = TransactionWorld(**more)
    id_ = world.transactional_id_in(0)
    world.ids.generate(lambda _: None)
    world.pass_ms(0)
    is_open = state is TransactionState.ONGOING
    partitions = {("events", 0): None} if is_open else {}
    now_ms = world.now().wall_ms
    world.load_transaction(
        TxnTransitMetadata(id_, owner[0], timeout_ms, now_ms, state, owner[1], partitions=partitions, started_ms=now_ms)
    )
    return world, id_
