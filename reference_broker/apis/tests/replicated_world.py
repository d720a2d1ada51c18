"""The APIs of a node that leads replicated partitions: the fakes of ``replication/tests`` behind a broker.

Node 1 leads; followers 2 and 3 fetch through sessions, as they do from a broker.
"""

from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

from reference_broker.apis.broker import Broker
from reference_broker.apis.records import k00_produce, k01_fetch
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.tests import leader_world
from reference_broker.replication.tests.leader_world import TOPIC_ID, broker_epoch_of
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.markers import MarkerWriter
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

NO_ID = bytes(16)


class ReplicatedWorld(leader_world.LeaderWorld):
    """``partitions``: of topic ``events``, led here with three replicas."""

    def __init__(
        self, partitions: int = 1, min_isr: int = 1, settings: dict[str, str] | None = None, **state: Any
    ) -> None:
        super().__init__(min_isr, settings or {})
        unused: Any = None
        ports: Any = self
        replica: Any = SimpleNamespace(controller=self.controller)
        replication: Any = SimpleNamespace(leaders=self.leaders)
        led = Partitions()
        self.broker = Broker(
            node_id=1,
            config=self.config,
            now=self.now(),
            disk=self.disk,
            ports=ports,
            metrics=self.metrics,
            partitions=led,
            quorum_node=replica,
            replication=replication,
            fetch_sessions=FetchSessionCache(100, Random(2), self.metrics, self.note),
            groups=unused,
            transactions=unused,
            markers=MarkerWriter(ports, led, self.leaders, lambda: self.controller.image, 30_000),
            verifier=AddPartitionsToTxnManager(
                ports, 1, lambda: self.controller.image, self.serve_locally, self.metrics, 30_000
            ),
        )
        self.syncs: list[Any] = []
        self.led = [self.lead(index, **state) for index in range(partitions)]
        for partition in self.led:
            self.broker.partitions.add(partition)
        images = tuple(PartitionImage((1, 2, 3), (1, 2, 3), 1, 0, 0) for _ in self.led)
        topics = {"events": TopicImage("events", TOPIC_ID, images)}
        self.controller.image = MetadataImage(
            brokers=self.controller.image.brokers, topics=topics, topic_names={TOPIC_ID: "events"}
        )

    def sync(self, paths: tuple[str, ...], done: Any) -> None:
        """Hold the sync until the test calls it. Without paths there is nothing to do."""
        if paths:
            self.syncs.append(done)
        else:
            done()

    def serve_locally(self, api_key: int, body: Any, response: Any) -> None:
        """Fail: a test that coordinates transactions here replaces this."""
        raise AssertionError(f"nobody here serves API {api_key} ({body}) for {response}")

    def move_leader(self, index: int = 0, leader: int = 2, epoch: int = 1) -> None:
        """Publish metadata with another leader."""
        partition = self.led[index]
        image = PartitionImage((1, 2, 3), (1, 2, 3), leader, epoch, 1)
        topics = {"events": TopicImage("events", TOPIC_ID, (image,))}
        self.controller.image = MetadataImage(
            brokers=self.controller.image.brokers, topics=topics, topic_names={TOPIC_ID: "events"}
        )
        self.broker.partitions.remove(partition)
        self.leaders.stops_leading(partition)

    # clients

    def send_produce(
        self, *indexes: int, acks: int = -1, timeout_ms: int = 1000, version: int = 12, data: bytes | None = None
    ) -> FakeCall:
        self.broker.now = self.now()
        by_id = version >= 13
        parts = [ProducePartition(index, data or leader_world.batch()) for index in indexes or (0,)]
        topic = ProduceTopic("" if by_id else "events", TOPIC_ID if by_id else NO_ID, parts)
        call = FakeCall(9, "producer", version)
        k00_produce.handle(self.broker, call, ProduceRequest(acks, timeout_ms, [topic]))
        return call

    def consume(self, offset: int, max_wait_ms: int = 500, index: int = 0) -> FakeCall:
        topic = FetchTopic("events", NO_ID, [FetchPartition(index, offset, 1 << 20)])
        return self.send(FetchRequest(max_wait_ms=max_wait_ms, topics=[topic]), "c")

    # followers

    def follow(
        self,
        follower: int,
        session_id: int,
        epoch: int,
        partitions: Iterable[FetchPartition] = (),
        *,
        max_wait_ms: int = 500,
        broker_epoch: int | None = None,
    ) -> FakeCall:
        topics = [FetchTopic("events", NO_ID, [partition]) for partition in partitions]
        replica_epoch = broker_epoch_of(follower) if broker_epoch is None else broker_epoch
        request = FetchRequest(
            replica_id=follower,
            replica_epoch=replica_epoch,
            session_id=session_id,
            session_epoch=epoch,
            max_wait_ms=max_wait_ms,
            topics=topics,
        )
        return self.send(request, f"follower-{follower}")

    def open_follower_session(self, follower: int, offset: int = 0, partitions: int = 1) -> int:
        """Return the ID of a session with the first partitions from ``offset`` on."""
        response = self.follow(
            follower, 0, 0, [fetch_partition(offset, index) for index in range(partitions)], max_wait_ms=0
        ).response
        assert response.session_id
        return response.session_id

    def send(self, request: FetchRequest, client_id: str, version: int = 12) -> FakeCall:
        self.broker.now = self.now()
        call = FakeCall(1, client_id, version)
        response = k01_fetch.handle(self.broker, call, request)
        if response is not None:
            call.respond(response)
        return call

    def be_at(self, mono_us: int) -> None:
        """Set the broker's clock to that of the ports."""
        super().be_at(mono_us)
        if hasattr(self, "broker"):
            self.broker.now = self.now()

    @property
    def partition(self) -> Partition:
        return self.led[0]


def fetch_partition(
    offset: int, index: int = 0, log_start: int = 0, leader_epoch: int = 0, last_epoch: int = -1
) -> FetchPartition:
    return FetchPartition(index, offset, 1 << 20, leader_epoch, last_epoch, log_start)


def produced_partitions(call: FakeCall) -> list[ProducePartitionResponse]:
    response: Any = call.response
    assert isinstance(response, ProduceResponse)
    return [partition for topic in response.responses for partition in topic.partitions]


def errors_of(call: FakeCall) -> list[int]:
    return [int(each.error_code) for each in produced_partitions(call)]


def partitions_of(response: FetchResponse) -> dict[int, PartitionData]:
    assert response.error_code == 0
    return {partition.partition: partition for topic in response.responses for partition in topic.partitions}


def idempotent(sequence: int, records: int = 1) -> bytes:
    values = [Record(timestamp_ms=START_MS, key=None, value=b"%d" % number) for number in range(records)]
    return build(values, producer_id=5, producer_epoch=0, base_sequence=sequence)
