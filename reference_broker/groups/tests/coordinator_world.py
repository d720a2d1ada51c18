"""A group coordinator on a real leader (``leader_world``).

Node 1 leads partitions of the offsets topic, with logs in memory. The test plays the followers and sets the time.
"""

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.partitioner import partition_of
from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.groups.offset_metadata_manager import (
    BROKERS_RETENTION,
    CommitRequest,
    CommitVerified,
    FetchedOffset,
    OffsetsTransaction,
    RequestedOffset,
)
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.control import build_marker
from reference_broker.replication.partitions import Partition
from reference_broker.replication.replica_manager import ReplicaManager
from reference_broker.replication.tests.leader_world import LeaderWorld
from reference_broker.wire.errors import Error, ErrorCode

FEATURE = "crucible.metadata.epoch"
PARTITIONS = 4
OFFSETS_TOPIC_ID = b"o" * 16


class Verifying:
    """The coordinator of all transactions. ``requests``: the transactions to be verified, with the callbacks that the
    test
    calls. The callback gets ``result`` at once if that is not None."""

    def __init__(self) -> None:
        self.result: Error | None = ErrorCode.none
        self.requests: list[tuple[OffsetsTransaction, CommitVerified]] = []

    def verify(self, led: Partition, transaction: OffsetsTransaction, verified: CommitVerified) -> None:  # noqa: ARG002
        self.requests.append((transaction, verified))
        if self.result is not None:
            verified(self.result)


class CoordinatorWorld(LeaderWorld):
    """``replicas``: of the offsets topic. Node 1 leads its partitions once ``lead_offsets`` is called. Topic ``t`` has
    three partitions."""

    def __init__(self, replicas: tuple[int, ...] = (1,), min_isr: int = 1, **config: str) -> None:
        super().__init__(min_isr)
        self.parsed = BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()})
        self.replicas = replicas
        self.show(t=3)
        ports: Any = self
        self.groups = GroupCoordinator(
            ports, self.parsed, self.leaders, lambda: self.controller.image, self.metrics, Random(5)
        )
        fetchers: Any = SimpleNamespace(await_marker=lambda _: None)  # Nothing is followed here.
        self.roles = ReplicaManager(self.leaders, fetchers, [self.groups])
        self.led: dict[int, Partition] = {}
        self.groups.offset_manager.verifier = self.verifying = Verifying()
        self.groups.start()

    def sync(self, paths: tuple[str, ...], done: Any) -> None:  # noqa: ARG002 - memory is durable
        done()

    # metadata

    def show(self, level: int = 0, **topics: int) -> None:
        """Show these topics with these partition counts beside the offsets topic. ``level``: of the metadata epoch."""
        state = PartitionImage(self.replicas, self.replicas, 1, 0, 0)
        images = {name: TopicImage(name, (name.encode() * 16)[:16], (state,) * count) for name, count in topics.items()}
        images[OFFSETS_TOPIC] = TopicImage(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, (state,) * PARTITIONS)
        self.controller.image = MetadataImage(
            brokers=self.controller.image.brokers,
            topics=images,
            topic_names={image.topic_id: name for name, image in images.items()},
            features={FEATURE: level},
        )

    def delete_topic(self, name: str) -> None:
        image = self.controller.image
        delta = MetadataDelta(image)
        delta.remove_topic(image.topics[name].topic_id)
        self.controller.image = delta.build(image.provenance)
        self.groups.image_changed(delta, self.controller.image)

    # roles

    def lead_offsets(self, index: int, log: UnifiedLog | None = None, epoch: int = 0) -> GroupCoordinatorShard | None:
        """Start to lead. ``pass_ms`` runs the loading."""
        if log is None:
            log = run_to_end(open_log(self.disk, f"{OFFSETS_TOPIC}-{index}", self.log_config(), self.now(), True))
        partition = self.led[index] = Partition(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, index, epoch, log)
        log.assign_leader_epoch(epoch)
        if len(self.replicas) == 1:
            log.advance_high_watermark(log.log_end_offset)
        self.roles.leads(partition, PartitionImage(self.replicas, self.replicas, 1, epoch, 0))
        return next((each for each in self.groups.active() if each.index == index), None)

    def log_config(self) -> LogConfig:
        return LogConfig(min_insync_replicas=self.min_isr, cleanup_policy="compact")

    def lose(self, index: int) -> UnifiedLog:
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

    # groups

    def group_in(self, index: int, prefix: str = "g") -> str:
        """Return the name of a group that is stored in this partition."""
        return next(f"{prefix}{n}" for n in range(1000) if partition_of(f"{prefix}{n}", PARTITIONS) == index)

    def commit(
        self,
        group: str,
        *offsets: int,
        epoch: int | None = None,
        generation: int = -1,
        member: str = "",
        topic: str = "t",
        metadata: str | None = "",
        retention_ms: int = BROKERS_RETENTION,
    ) -> list[list[Error]]:
        """Commit partitions 0, 1 ... of the topic. The returned list gets the response once it is sent."""
        responses: list[list[Error]] = []
        wanted = tuple(RequestedOffset(topic, at, one, 3, metadata, epoch) for at, one in enumerate(offsets))
        request = CommitRequest(group, generation, member, None, wanted, retention_ms=retention_ms)
        self.groups.offset_manager.commit_offsets(request, responses.append)
        return responses

    def transact(
        self,
        group: str,
        *offsets: int,
        producer: int = 7,
        epoch: int = 0,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
        topic: str = "t",
        metadata: str | None = "",
    ) -> list[list[Error]]:
        """Commit inside a transaction of this producer, otherwise as ``commit``."""
        responses: list[list[Error]] = []
        wanted = tuple(RequestedOffset(topic, at, one, 3, metadata) for at, one in enumerate(offsets))
        transaction = OffsetsTransaction(f"txn-{producer}", producer, epoch, 5)
        request = CommitRequest(group, generation, member, instance, wanted, transaction=transaction)
        self.groups.offset_manager.commit_offsets(request, responses.append)
        return responses

    def end(self, index: int, *, commit: bool, producer: int = 7, epoch: int = 0) -> None:
        """Append a marker, as the marker writer does."""
        led = self.led[index]
        marker = build_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=self.now().wall_ms,
        )
        offset = led.log.append(self.now(), marker, led.leader_epoch, origin=BatchOrigin.BROKER).first_offset
        self.leaders.appended(led)
        led.changed()
        self.groups.marker_appended(index, producer, epoch, offset, commit)

    def stable(self, group: str, topic: str = "t", count: int = 3) -> list[tuple[int, Error]] | None:
        """Return offsets and errors of these partitions from OffsetFetch with ``require_stable``, or None if its
        response
        is pending."""
        responses: list[list[tuple[int, Error]]] = []

        def responded(error: Error, found: list[FetchedOffset]) -> None:
            unstable = ErrorCode.unstable_offset_commit
            responses.append([(offset_of(each), unstable if each.is_unstable else error) for each in found])

        self.groups.offset_manager.fetch_offsets(group, [(topic, range(count))], responded, requires_stable=True)
        return responses[0] if responses else None

    def fetched(self, group: str) -> dict[tuple[str, int], int]:
        """Return all offsets of a group."""
        error, found = self.offsets_of(group)
        assert error is ErrorCode.none
        return {(each.topic, each.partition): offset_of(each) for each in found}

    def offsets_of(
        self, group: str, wanted: Sequence[tuple[str, Sequence[int]]] | None = None
    ) -> tuple[Error, list[FetchedOffset]]:
        """Return the immediate response to OffsetFetch."""
        responses: list[tuple[Error, list[FetchedOffset]]] = []
        self.groups.offset_manager.fetch_offsets(group, wanted, lambda error, found: responses.append((error, found)))
        (response,) = responses
        return response

    def active(self, index: int) -> GroupCoordinatorShard:
        return next(each for each in self.groups.active() if each.index == index)


def offset_of(found: FetchedOffset) -> int:
    return -1 if found.commit is None else found.commit.offset
