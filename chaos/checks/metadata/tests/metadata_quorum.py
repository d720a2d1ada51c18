"""A quorum of three voters and an observer, and the checks that follow it."""

from dataclasses import dataclass, field, replace
from typing import Any

from chaos.checks.check import Check, CheckContext, QuorumCheck, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.history import History
from chaos.checks.metadata.snapshots import SnapshotTransfer
from chaos.checks.quorum.liveness import QuorumConverges
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.suite import CheckSuite, check_kinds
from chaos.checks.tests.check_context import note_row
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubImages,
    StubMetadataLog,
    StubNode,
    StubQuorumNode,
    StubSnapshotStore,
)
from reference_broker.core.events import Note
from reference_broker.metadata.features import METADATA_VERSION, METADATA_VERSION_FEATURE
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    encode,
)
from reference_broker.quorum.values import OffsetAndEpoch, Provenance
from reference_broker.records.batch import read_header
from reference_broker.records.record import Record, build

BASE_OFFSET_BYTES = 8
BOOTSTRAPPED = MetadataImage(features={METADATA_VERSION_FEATURE: METADATA_VERSION})
SECOND_US = 1_000_000


def batch(offset: int, epoch: int, *records: MetadataRecord, time_ms: int = 0) -> bytes:
    """A batch of NoOpRecord, if nothing else is given. The log begins with the level of metadata.version."""
    usual = (
        NoOpRecord() if offset else FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
    )
    values = [Record(timestamp_ms=time_ms, value=encode(record)) for record in records or (usual,)]
    return offset.to_bytes(BASE_OFFSET_BYTES, "big") + bytes(build(values, leader_epoch=epoch))[BASE_OFFSET_BYTES:]


@dataclass
class Replica:
    """A node as the view looks at it: each batch has one record, so batch n has offset ``start + n``."""

    node_id: int
    epoch: int = 0
    leader_id: int = -1
    is_leader: bool = False
    high_watermark: int = -1
    start_offset: int = 0
    synced_offset: int = 0
    held: list[bytes] = field(default_factory=list)
    incarnation: int = 0
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    image: MetadataImage = BOOTSTRAPPED
    published: int | None = None
    """offset of its image; None means all that it knows to be committed"""
    wrong_epochs: dict[int, int] = field(default_factory=dict)
    """by offset: the epoch that its log has there, if it is not the batch's"""

    @property
    def log_start_offset(self) -> int:
        return self.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.start_offset + len(self.held)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(self.held[offset - self.start_offset : end - self.start_offset])

    def epoch_at(self, offset: int) -> int:
        epochs = {header.base_offset: header.leader_epoch for header in map(read_header, self.held)}
        return {**epochs, **self.wrong_epochs}[offset]

    @property
    def node(self) -> Any:
        member: Any = self
        last = self.high_watermark - 1
        image = replace(self.image, provenance=Provenance(last if self.published is None else self.published))
        replica = StubQuorumNode(
            quorum=member,
            log=StubMetadataLog(member, start_offset=self.start_offset),
            store=StubSnapshotStore([OffsetAndEpoch(*snapshot) for snapshot in self.snapshots]),
        )
        broker = StubBroker(self.node_id, controller=StubImages(image, last_offset=last), quorum_node=replica)
        return StubNode(broker)


class Quorum:
    """Three voters and an observer, all checks on."""

    def __init__(self) -> None:
        self.fault_times = FaultTimes()
        self.view = QuorumView(3, 1, self.fault_times)
        context = CheckContext(
            Settings(settled_us=6 * SECOND_US), self.view, ReplicaView(self.fault_times, expected=False)
        )
        self.checks = [kind(context) for kind in check_kinds() if issubclass(kind, QuorumCheck | SnapshotTransfer)]
        for check in self.checks:
            if isinstance(check, QuorumConverges):
                check.expected = True
        quiet: list[Check] = [check for check in self.checks if type(check).inspect is Check.inspect]
        self.suite = CheckSuite(quiet, context)
        self.nodes = [Replica(number) for number in range(4)]
        self.now_us = 0

    def observe(self, number: int, thorough: bool = False) -> None:
        self.now_us += 1
        node = self.nodes[number]
        self.view.nodes[number].replica = None  # The fake creates its values on each access.
        self.view.observe(self.now_us, node.incarnation, node.node, thorough)

    def end(self) -> None:
        for check in self.checks:
            check.end(History(end_us=self.now_us))

    def note(self, number: int, what: str, **fields: int | str) -> None:
        self.suite.note(number, Note(what, tuple(fields.items())))
        self.suite.trace(note_row(self.now_us, number, what, **fields))

    def elect(self, number: int, epoch: int) -> None:
        for node in self.nodes:
            node.is_leader = node.node_id == number
            node.epoch, node.leader_id = epoch, number
        for each in range(4):
            self.observe(each)

    def append(self, *written: bytes, to: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        for number in to:
            node = self.nodes[number]
            node.held += written
            node.synced_offset = node.log_end_offset
            self.observe(number)

    def commit(self, offset: int, *numbers: int) -> None:
        for number in sorted(numbers or (0, 1, 2, 3), key=lambda each: not self.nodes[each].is_leader):
            self.nodes[number].high_watermark = offset
            self.observe(number)

    def broken(self) -> list[str]:
        return [check.guarantee for check in self.checks if check.violations]


def settled() -> Quorum:
    """Node 0 leads epoch 1 and has committed three batches."""
    made = Quorum()
    made.elect(0, 1)
    made.append(*(batch(each, 1) for each in range(3)))
    made.commit(3)
    return made


BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()
