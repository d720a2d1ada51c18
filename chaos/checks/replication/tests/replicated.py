"""A cluster as the checks of replicated partitions see it, for their tests."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

from chaos.checks.check import CheckContext, ReplicaCheck, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.history import History
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.replication.committed_records import CHECKPOINT, NoAckedLost
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.suite import check_kinds
from chaos.checks.tests.stub_node import StubBroker, StubImages, StubNode, StubPublisher, node_partitions
from reference_broker.core.events import Reply, Request
from reference_broker.log.config import LogConfig
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.delta import MetadataDelta, TopicChange
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage, PartitionImage, TopicImage
from reference_broker.ports.disk import MemoryDisk
from reference_broker.quorum.values import Provenance
from reference_broker.records.record import Record, build
from reference_broker.replication.partitions import Partition
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.tags import Tag

TOPIC_ID = b"\x01" * 16
KEY = (TOPIC_ID, 0)
SECOND_US = 1_000_000
IN_SYNC_US = 10 * SECOND_US


def batch(offset: int, epoch: int, value: bytes = b"v") -> bytes:
    made = bytes(build([Record(timestamp_ms=0, value=value)], leader_epoch=epoch))
    return offset.to_bytes(8, "big") + made[8:]


@dataclass
class Epochs:
    """The leader epochs of a log's batches, and those that begin at its end."""

    log: "Log"
    empty: list[int] = field(default_factory=list)
    wrong: dict[int, int] = field(default_factory=dict)
    """by offset"""
    beyond: int = 0

    @property
    def latest(self) -> int:
        held = self.log.held
        return self.empty[-1] if self.empty else self.epoch_at(len(held) - 1) if held else 0

    @property
    def starts(self) -> list[int]:
        return [0, len(self.log.held) + self.beyond] if self.empty else [0]

    def epoch_at(self, offset: int) -> int:
        return self.wrong.get(offset, int.from_bytes(self.log.held[offset][12:16]))


@dataclass
class Log:
    """Batch n is at offset n."""

    topic_id: bytes = TOPIC_ID
    directory: str = "t-0"
    high_watermark: int = 0
    log_start_offset: int = 0
    cleaned_offset: int = 0
    held: list[bytes] = field(default_factory=list)
    unsynced: int = 0
    config: LogConfig = field(default_factory=LogConfig)
    bases: list[int] = field(default_factory=lambda: [0])
    is_offline: bool = False

    def __post_init__(self) -> None:
        self.epochs = Epochs(self)

    @property
    def local_log_start_offset(self) -> int:
        return self.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return len(self.held)

    @property
    def synced_offset(self) -> int:
        return len(self.held) - self.unsynced

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(self.held[offset:end])


class Cluster:
    """Three replicas of one partition, as the view looks at them."""

    def __init__(self, tombstone_horizon: bool = False) -> None:
        self.view = ReplicaView(FaultTimes(), min_insync=2)
        settings = Settings(in_sync_us=IN_SYNC_US, tombstone_horizon=tombstone_horizon)
        self.context = CheckContext(settings, QuorumView(3, 0, FaultTimes()), self.view)
        self.checks = [kind(self.context) for kind in check_kinds() if issubclass(kind, ReplicaCheck)]
        (self.acked,) = (check for check in self.checks if isinstance(check, NoAckedLost))
        self.logs = [Log() for _ in range(3)]
        self.incarnations = [0, 0, 0]
        self.epochs = [0, -1, -1]
        self.now_us = 100 * SECOND_US
        self.state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
        self.min_isr = 2
        self.checkpoint = b""
        """the file of high watermarks that a new process finds"""
        self.offset = 0
        self.known: dict[int, MetadataImage] = {}
        """images of nodes whose metadata is late"""
        self.view.image(self.now_us, 0, None, self.image())

    def image(self) -> MetadataImage:
        topics = {"t": TopicImage("t", TOPIC_ID, (self.state,))}
        configs = {(TOPIC_RESOURCE, "t"): {"min.insync.replicas": str(self.min_isr)}}
        provenance = Provenance(self.offset)
        return MetadataImage(provenance, topics=topics, topic_names={TOPIC_ID: "t"}, configs=configs)

    def change(self, min_isr: int = 0, **fields: Any) -> None:
        """The metadata has a newer state of the partition, and another min.insync.replicas if one is given."""
        before_image = self.image()
        before = before_image.topics["t"]
        self.offset += 1
        is_changed = bool(fields) or not min_isr
        if is_changed:
            self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **fields)
        if min_isr:
            self.min_isr = min_isr
        after = self.image()
        changes = [TopicChange(before, after.topics["t"], (0,))] if is_changed else []
        configs: dict[tuple[int, str], dict[str, str] | None] = {(TOPIC_RESOURCE, "t"): {}} if min_isr else {}
        delta = MetadataDelta(before_image, topics=tuple(changes), configs=configs)
        self.view.image(self.now_us, 0, delta, after)

    def node(self, number: int) -> Any:
        """Return a node as it is now: it leads the partition, or follows the node that does."""
        log, leads = self.logs[number], self.epochs[number] >= 0
        partition = Partition("t", TOPIC_ID, 0, self.epochs[number], cast(UnifiedLog, log))
        if not leads:
            partition.followed_leader = next((each for each in range(3) if self.epochs[each] >= 0), -1)
        partitions = node_partitions(partition)
        partitions.topic_ids["t"] = TOPIC_ID
        disk = MemoryDisk()
        if self.checkpoint:
            disk.append(CHECKPOINT, [self.checkpoint])
        images = StubImages(self.known.get(number) or self.image())
        broker = StubBroker(number, partitions=partitions, controller=images, disk=disk)
        publisher = StubPublisher(not_led=[] if leads else [log], log=log)
        return StubNode(broker, ready=False, _publisher=publisher)

    def observe(self, *numbers: int) -> None:
        for number in numbers or (0, 1, 2):
            self.now_us += 1
            self.view.observe(self.now_us, self.incarnations[number], self.node(number))

    def append(self, *batches: bytes, to: tuple[int, ...] = (0, 1, 2)) -> None:
        for number in to:
            self.logs[number].held += batches
        self.observe(*to)

    def commit(self, offset: int, *numbers: int) -> None:
        for number in numbers or (0, 1, 2):
            self.logs[number].high_watermark = offset
            self.observe(number)

    def acknowledge(self, offset: int, acks: int = -1, by: int = 0) -> None:
        node, tag = self.node(by), Tag(0, 9, "p")
        response = ProduceResponse([ProduceTopicResponse("t", b"", [ProducePartitionResponse(0, 0, offset)])])
        request = Request(1, 7, 0, 9, "p", ProduceRequest(acks, 1000, []), tag)
        self.acked.acted(self.now_us, node, request, [Reply(1, 7, 0, 9, response, tag)])
        self.view.observe(self.now_us, self.incarnations[by], node)

    def restart(self, number: int) -> None:
        self.view.gone(number)
        self.logs[number] = replace(self.logs[number], held=list(self.logs[number].held))
        self.incarnations[number] += 1

    def lead(self, number: int, epoch: int) -> None:
        self.logs[number].epochs.empty.append(epoch)
        self.epochs = [epoch if each == number else -1 for each in range(3)]

    def broken(self) -> list[str]:
        for check in self.checks:
            check.end(History(end_us=self.now_us))
        return [check.guarantee for check in self.checks if check.violations]


def in_order() -> Cluster:
    """Node 0 leads epoch 0; three batches are committed everywhere."""
    made = Cluster()
    made.append(*(batch(each, 0) for each in range(3)))
    made.commit(3)
    return made
