"""A leader of fakes: real partitions and logs on a disk in memory. The test plays the followers and sets the time.

Node 1 leads; 2 and 3 follow. The test keeps the requests of the leader to the controller, and responds to them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData, TopicData
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build
from reference_broker.replication.high_watermarks import HighWatermarkCheckpoints
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.leader.replicas import Followers
from reference_broker.replication.partitions import Partition
from reference_broker.replication.tests.timed_ports import START_MS, TimedPorts
from reference_broker.wire.errors import Error, ErrorCode

TOPIC_ID = b"t" * 16
LAG_MS = 30_000


def broker_epoch_of(broker_id: int) -> int:
    return 100 + broker_id


def registered(broker_id: int) -> BrokerImage:
    return BrokerImage(broker_id, broker_epoch_of(broker_id), b"i" * 16, "127.0.0.1", 9092, fenced=False)


@dataclass(eq=False)
class Session:
    """The session of one follower: the time of its last contact."""

    contact_us: int = 0


@dataclass(eq=False)
class Cached:
    session: Session
    fetch_offset: int = 0
    log_start_offset: int = 0
    live: bool = True
    current_leader_epoch: int = -1
    is_fetched_unnamed: bool = True


@dataclass
class LeaderWorld(TimedPorts):
    """``alter_requests``: AlterPartition requests with callbacks. ``acked``: responses of ``produce``, by its name."""

    min_isr: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    alter_requests: list[tuple[AlterPartitionRequest, Callable[[object], None], Callable[[], None]]] = field(
        default_factory=list
    )
    acked: dict[str, dict[str, Error]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.disk = MemoryDisk()
        self.controller = SimpleNamespace(image=MetadataImage(brokers={each: registered(each) for each in (1, 2, 3)}))
        lifecycle = SimpleNamespace(
            registered_epoch=broker_epoch_of(1), channel=SimpleNamespace(send_request=self._sent)
        )
        replica: Any = SimpleNamespace(controller=self.controller, lifecycle=lifecycle)
        ports: Any = self
        self.config = BrokerConfig.parse(self.settings)
        self.high_watermarks = HighWatermarkCheckpoints(self.disk, ports, 5000)
        self.metrics = Metrics()
        self.leaders = Leaders(ports, 1, self.config, replica, self.high_watermarks, self.metrics)
        self.made: dict[int, Partition] = {}
        """by index"""
        self.sessions: dict[int, Session] = {}
        self.cached: dict[tuple[int, Partition], Cached] = {}

    def _sent(
        self, _key: int, _version: int, body: Any, replied: Callable[[object], None], failed: Callable[[], None]
    ) -> None:
        self.alter_requests.append((body, replied, failed))

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        assert paths
        done()

    # partitions

    def lead(
        self,
        index: int = 0,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        records: int = 0,
        **state: int,
    ) -> Partition:
        config = LogConfig(min_insync_replicas=self.min_isr)
        log = run_to_end(open_log(self.disk, f"events-{index}", config, self.now(), True))
        partition = Partition("events", TOPIC_ID, index, state.get("leader_epoch", 0), log)
        if records:
            log.append(self.now(), batch(records), 0)
        self.made[index] = partition
        self.state(partition, isr, replicas=replicas, **state)
        return partition

    def state(
        self,
        partition: Partition,
        isr: tuple[int, ...],
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        leader_epoch: int = 0,
        partition_epoch: int = 0,
    ) -> None:
        """Publish the metadata of the partition."""
        partition.leader_epoch = leader_epoch
        partition.log.assign_leader_epoch(leader_epoch)
        self.leaders.leads(partition, PartitionImage(replicas, isr, 1, leader_epoch, partition_epoch))

    def append(self, partition: Partition, records: int = 1) -> int:
        """Append as Produce does. Return the log end offset."""
        partition.log.append(self.now(), batch(records), partition.leader_epoch)
        self.leaders.appended(partition)
        partition.changed()
        return partition.log.log_end_offset

    def produce(self, name: str, *partitions: Partition, timeout_ms: int = 1000) -> None:
        """Produce one record to each partition with acks=all. ``acked`` gets the response under ``name``."""
        offsets = [(partition, self.append(partition)) for partition in partitions]
        self.wait(name, offsets, timeout_ms)

    def wait(
        self, name: str, offsets: list[tuple[Partition, int]], timeout_ms: int = 1000
    ) -> Callable[[], None] | None:
        def acknowledged(errors: dict[Partition, Error]) -> None:
            assert name not in self.acked, "a second response"
            self.acked[name] = {partition.log.directory: error for partition, error in errors.items()}

        return self.leaders.acknowledge(offsets, timeout_ms, acknowledged)

    # followers

    def fetch(
        self, follower: int, partition: Partition, offset: int, log_start: int = 0, epoch: int | None = None
    ) -> Error:
        """Fetch with a request that names the partition."""
        error = self.count(follower, partition, offset, log_start, epoch)
        self.leaders.notify_watchers()
        return error

    def count(
        self, follower: int, partition: Partition, offset: int, log_start: int = 0, epoch: int | None = None
    ) -> Error:
        """Fetch likewise, with other partitions of the request still to be recorded."""
        self.contact(follower)
        key = (follower, partition)
        cached = self.cached.setdefault(key, Cached(self.sessions[follower]))
        cached.fetch_offset, cached.log_start_offset = offset, log_start
        broker_epoch = broker_epoch_of(follower) if epoch is None else epoch
        return self.leaders.fetched(partition, cached, follower, broker_epoch)

    def contact(self, follower: int) -> None:
        """Fetch with a request that names no partition."""
        self.sessions.setdefault(follower, Session()).contact_us = self.mono_us

    def followers(self, partition: Partition) -> Followers:
        assert partition.followers is not None
        return partition.followers

    # the controller

    def show_broker(self, broker: BrokerImage) -> None:
        """Publish the metadata of the broker."""
        image = self.controller.image
        self.controller.image = replace(image, brokers={**image.brokers, broker.broker_id: broker})
        delta = MetadataDelta(image)
        delta.brokers[broker.broker_id] = broker
        self.leaders.image_changed(delta, self.controller.image)
        self.pass_ms(0)

    def proposals(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Return (partition, in-sync replicas, partition epoch) of the latest request."""
        self.pass_ms(0)
        body = self.alter_requests[-1][0]
        return [
            (
                int(partition.partition_index),
                tuple(int(epoch.broker_id) for epoch in partition.new_isr_with_epochs),
                int(partition.partition_epoch),
            )
            for topic in body.topics
            for partition in topic.partitions
        ]

    def respond(
        self, error: ErrorCode = ErrorCode.none, top: ErrorCode = ErrorCode.none, published: bool = True
    ) -> None:
        """Respond to the oldest request, as a controller that accepts it, or rejects all. The metadata is published
        right
        after the response if ``published``."""
        self.pass_ms(0)
        body, replied, _ = self.alter_requests.pop(0)
        partitions = tuple(
            PartitionData(
                partition_index=topic_partition.partition_index,
                error_code=error,
                leader_id=BrokerId(1),
                leader_epoch=topic_partition.leader_epoch,
                isr=tuple(each.broker_id for each in topic_partition.new_isr_with_epochs),
                partition_epoch=i32(topic_partition.partition_epoch + 1),
            )
            for topic in body.topics
            for topic_partition in topic.partitions
        )
        topics = (TopicData(topic_id=UUID(bytes=TOPIC_ID), partitions=partitions),) if top is ErrorCode.none else ()
        replied(AlterPartitionResponse(throttle_time=NO_THROTTLE, error_code=top, topics=topics))
        for topic_partition in partitions if published and not error and top is ErrorCode.none else ():
            partition, isr, epoch = (
                self.made[int(topic_partition.partition_index)],
                topic_partition.isr,
                int(topic_partition.partition_epoch),
            )
            if partition.followers is not None and partition.leader_epoch == topic_partition.leader_epoch:
                replicas = (1, *partition.followers.states)
                self.state(
                    partition,
                    tuple(map(int, isr)),
                    replicas=replicas,
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=epoch,
                )
        self.pass_ms(0)

    def lose_request(self) -> None:
        self.pass_ms(0)
        self.alter_requests.pop(0)[2]()


def batch(records: int = 1) -> bytes:
    return build([Record(timestamp_ms=START_MS, key=None, value=b"v%d" % number) for number in range(records)])
