"""Each check of the quorum stays silent on a right history of replicas and speaks on one that breaks its guarantee."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chaos.checks.check import Check, CheckContext, QuorumCheck, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.history import History
from chaos.checks.metadata_snapshots import SnapshotTransfer
from chaos.checks.metadata_transactions import PUBLISHED_WITHIN_US, PublishedWhenCommitted
from chaos.checks.quorum_liveness import QuorumConverges
from chaos.checks.quorum_view import QuorumView
from chaos.checks.replica_view import ReplicaView
from chaos.checks.suite import CheckSuite, check_kinds
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from chaos.tests.check_context import note_row
from chaos.tests.stub_node import StubBroker, StubImages, StubMetadataLog, StubNode, StubQuorumNode, StubSnapshotStore
from reference_broker.core.events import Note, TimerFired
from reference_broker.metadata.features import METADATA_VERSION, METADATA_VERSION_FEATURE
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
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
            store=StubSnapshotStore([OffsetAndEpoch(*each) for each in self.snapshots]),
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
        self.checks = [each(context) for each in check_kinds() if issubclass(each, QuorumCheck | SnapshotTransfer)]
        for each in self.checks:
            if isinstance(each, QuorumConverges):
                each.expected = True
        quiet: list[Check] = [each for each in self.checks if type(each).inspect is Check.inspect]
        self.suite = CheckSuite(quiet, context)
        self.nodes = [Replica(number) for number in range(4)]
        self.now_us = 0

    def observe(self, number: int, thorough: bool = False) -> None:
        self.now_us += 1
        node = self.nodes[number]
        self.view.nodes[number].replica = None  # The fake creates its values on each access.
        self.view.observe(self.now_us, node.incarnation, node.node, thorough)

    def end(self) -> None:
        for each in self.checks:
            each.end(History(end_us=self.now_us))

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


@pytest.fixture
def quorum() -> Quorum:
    return settled()


def test_correct_history_violates_nothing(quorum: Quorum) -> None:
    quorum.now_us += 20 * SECOND_US
    quorum.fault_times.node(0, quorum.now_us)
    quorum.elect(1, 2)
    quorum.append(batch(3, 2, BeginTransactionRecord()), batch(4, 2, EndTransactionRecord()))
    quorum.commit(5)
    for number in range(4):
        quorum.observe(number, thorough=True)
    quorum.end()
    assert quorum.broken() == []


def test_two_leaders_of_one_epoch_violate_one_leader_per_epoch(quorum: Quorum) -> None:
    quorum.nodes[1].is_leader = True
    quorum.observe(1)
    assert quorum.broken() == ["one-leader-per-epoch"]


def test_nodes_that_follow_different_leaders_in_one_epoch_are_a_violation(quorum: Quorum) -> None:
    quorum.nodes[3].leader_id = 1
    quorum.observe(3)
    assert quorum.broken() == ["one-leader-per-epoch"]


def test_epoch_that_goes_back_is_a_violation(quorum: Quorum) -> None:
    quorum.nodes[1].epoch, quorum.nodes[1].leader_id = 0, -1
    quorum.observe(1)
    assert quorum.broken() == ["monotonic-epoch"]


@pytest.mark.parametrize("voted", [True, False])
def test_restart_that_forgets_an_epoch_is_a_violation(quorum: Quorum, voted: bool) -> None:
    node = quorum.nodes[1]
    node.epoch, node.leader_id = 2, -1
    quorum.observe(1)
    if voted:
        quorum.note(1, "voted", epoch=2, candidate=2)
    node.epoch, node.incarnation = 1, 1
    quorum.observe(1)
    assert quorum.broken() == (["monotonic-epoch"] if voted else [])


def test_different_batches_at_one_offset_and_epoch_are_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0,))
    quorum.append(batch(3, 1, time_ms=5), to=(1,))
    assert quorum.broken() == ["log-matching"]


def test_equal_batches_after_different_ones_are_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), batch(4, 3), to=(0,))
    quorum.append(batch(3, 2), batch(4, 3), to=(1,))
    assert quorum.broken() == ["log-matching"]


def test_gap_in_a_metadata_log_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(5, 1), to=(0,))
    assert quorum.broken() == ["log-matching"]


@pytest.mark.parametrize(("epoch", "broken"), [(1, []), (2, ["log-matching"]), (0, ["log-matching"])])
def test_epoch_that_is_not_the_batch_s_is_a_violation(quorum: Quorum, epoch: int, broken: list[str]) -> None:
    quorum.nodes[1].wrong_epochs[3] = epoch
    quorum.append(batch(3, 1))
    assert quorum.broken() == broken


def test_leader_that_lacks_a_committed_batch_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0, 1, 3))
    quorum.commit(4, 0)
    quorum.fault_times.node(0, quorum.now_us)
    quorum.nodes[2].is_leader, quorum.nodes[2].epoch, quorum.nodes[2].leader_id = True, 2, 2
    quorum.observe(2)
    assert quorum.broken() == ["leader-completeness"]


def test_node_with_another_batch_below_its_high_watermark_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0, 1))
    quorum.commit(4, 0)
    quorum.append(batch(3, 2), to=(3,))
    quorum.commit(4, 3)
    assert quorum.broken() == ["leader-completeness"]


def test_truncation_below_the_high_watermark_is_a_violation(quorum: Quorum) -> None:
    quorum.note(1, "truncated", offset=2)
    assert quorum.broken() == ["leader-completeness"]


def test_high_watermark_that_goes_back_is_a_violation(quorum: Quorum) -> None:
    quorum.commit(2, 1)
    assert quorum.broken() == ["monotonic-high-watermark"]


def test_new_leader_with_a_smaller_high_watermark_is_a_violation(quorum: Quorum) -> None:
    quorum.fault_times.node(0, quorum.now_us)
    quorum.nodes[1].incarnation, quorum.nodes[1].high_watermark = 1, -1
    quorum.observe(1)
    quorum.elect(1, 2)
    quorum.commit(2, 1)
    assert quorum.broken() == ["monotonic-high-watermark"]


def test_high_watermark_above_what_a_majority_has_durably_is_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1))
    quorum.nodes[1].synced_offset = quorum.nodes[2].synced_offset = 3
    quorum.observe(1)
    quorum.observe(2)
    quorum.commit(4, 0)
    assert quorum.broken() == ["majority-high-watermark"]


@pytest.mark.thorough
@pytest.mark.parametrize("touched", ["", "leader", "one voter", "two voters", "links of two voters"])
def test_leader_may_be_deposed_only_after_a_fault_of_it_or_of_a_majority(quorum: Quorum, touched: str) -> None:
    quorum.now_us += 20 * SECOND_US
    nodes = {"leader": (0,), "one voter": (1,), "two voters": (1, 2)}.get(touched, ())
    for each in nodes:
        quorum.fault_times.node(each, quorum.now_us - SECOND_US)
    if touched == "links of two voters":
        quorum.fault_times.link(0, 1, quorum.now_us - SECOND_US)
        quorum.fault_times.link(2, 0, quorum.now_us - SECOND_US)
    quorum.elect(2, 2)
    assert quorum.broken() == (["stable-leadership"] if touched in ("", "one voter") else [])


def test_log_start_above_0_without_a_snapshot_is_a_violation(quorum: Quorum) -> None:
    node = quorum.nodes[1]
    node.start_offset, node.held = 2, node.held[2:]
    quorum.observe(1)
    assert quorum.broken() == ["snapshot-at-log-start"]


@pytest.mark.parametrize(("snapshot", "right"), [((2, 1), True), ((2, 0), False), ((4, 1), False)])
def test_snapshot_must_end_at_a_committed_batch(quorum: Quorum, snapshot: tuple[int, int], right: bool) -> None:
    node = quorum.nodes[1]
    node.snapshots = [snapshot]
    node.start_offset, node.held = 2, node.held[2:]
    quorum.observe(1)
    assert quorum.broken() == ([] if right else ["snapshot-at-log-start"])


@pytest.mark.parametrize("number", [0, 1])
def test_leader_that_loads_a_snapshot_is_a_violation(quorum: Quorum, number: int) -> None:
    quorum.note(number, "snapshot_loaded", end_offset=3, epoch=1)
    assert quorum.broken() == (["leader-never-loads-snapshot"] if number == 0 else [])


def test_different_images_at_one_offset_are_a_violation(quorum: Quorum) -> None:
    for node, digest in ((0, "aa"), (1, "aa"), (2, "bb")):
        quorum.suite.trace(note_row(0, node, PUBLISHED, offset=2, digest=digest, partitions=1))
    assert quorum.broken() == ["snapshot-equals-replay"]


BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("markers", "right"),
    [((BEGIN, END, BEGIN, ABORT), True), ((BEGIN, BEGIN), False), ((BEGIN, ABORT, ABORT), False), ((END,), False)],
)
def test_each_begin_has_one_end(quorum: Quorum, markers: tuple[MetadataRecord, ...], right: bool) -> None:
    quorum.append(*(batch(3 + place, 1, marker) for place, marker in enumerate(markers)))
    quorum.commit(3 + len(markers))
    assert quorum.broken() == ([] if right else ["one-abort-per-begin"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("first", "right"), [(ABORT, True), (NoOpRecord(), False), (END, False)])
def test_new_controller_aborts_before_anything_else(quorum: Quorum, first: MetadataRecord, right: bool) -> None:
    quorum.append(batch(3, 1, BEGIN), batch(4, 1), batch(5, 2, first))
    quorum.commit(6)
    assert ("one-abort-per-begin" in quorum.broken()) is not right


@pytest.mark.clause("T-3")
@pytest.mark.parametrize(("offset", "broken"), [(3, False), (4, True), (5, True)])
def test_no_metadata_is_published_after_misplaced_marker(quorum: Quorum, offset: int, broken: bool) -> None:
    (check,) = (each for each in quorum.checks if each.guarantee == "misplaced-markers-refused")
    quorum.append(batch(3, 1, BEGIN), batch(4, 1, BEGIN), batch(5, 1, END))
    check.trace(note_row(1, 2, PUBLISHED, offset=2))
    check.trace(note_row(2, 2, PUBLISHED, offset=offset))
    quorum.commit(6)
    quorum.end()
    assert bool(check.violations) is broken


@pytest.mark.clause("T-7")
def test_node_without_metadata_version_at_the_end_is_a_violation(quorum: Quorum) -> None:
    for number in range(4):
        quorum.nodes[number].image = EMPTY_IMAGE
        quorum.observe(number)
    quorum.end()
    assert quorum.broken() == ["bootstrapped"]


def test_nodes_that_disagree_at_the_end_are_a_violation(quorum: Quorum) -> None:
    quorum.append(batch(3, 1), to=(0, 1))
    quorum.commit(4, 0, 1)
    quorum.end()
    assert quorum.broken() == ["quorum-converges"]


@pytest.mark.parametrize("restarted", [False, True])
def test_process_registers_once(quorum: Quorum, restarted: bool) -> None:
    quorum.note(3, "broker_registered", epoch=7)
    quorum.note(3, "broker_registered", epoch=7)
    if restarted:
        quorum.nodes[3].incarnation = 1
        quorum.observe(3)
    quorum.note(3, "broker_registered", epoch=9)
    assert quorum.broken() == ([] if restarted else ["no-false-fencing"])


@pytest.mark.parametrize("touched", ["", "broker", "link"])
def test_broker_may_be_fenced_only_after_a_fault_of_it_or_of_its_link(quorum: Quorum, touched: str) -> None:
    quorum.now_us += 60 * SECOND_US
    if touched == "broker":
        quorum.fault_times.node(3, quorum.now_us)
    if touched == "link":
        quorum.fault_times.link(3, 0, quorum.now_us)
    quorum.note(0, "broker_fenced", broker=3)
    assert quorum.broken() == ([] if touched else ["no-false-fencing"])


def publish(quorum: Quorum, number: int, offset: int) -> None:
    check = next(each for each in quorum.checks if isinstance(each, PublishedWhenCommitted))
    noted = Note("metadata_published", (("offset", offset), ("epoch", 1)))
    check.acted(quorum.now_us, quorum.nodes[number].node, TimerFired(1), [noted])


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("offset", "right"), [(2, True), (3, False)])
def test_only_committed_metadata_is_published(quorum: Quorum, offset: int, right: bool) -> None:
    publish(quorum, 1, offset)
    assert quorum.broken() == ([] if right else ["torn-metadata"])


@pytest.mark.clause("T-8")
@pytest.mark.parametrize("end", [END, ABORT, None])
@pytest.mark.parametrize(("offset", "right"), [(2, True), (3, False), (4, False)])
def test_no_part_of_a_transaction_is_published(
    quorum: Quorum, offset: int, right: bool, end: MetadataRecord | None
) -> None:
    quorum.append(batch(3, 1, BEGIN), batch(4, 1), *([] if end is None else [batch(5, 1, end)]))
    quorum.nodes[1].published = 2
    quorum.commit(5 if end is None else 6)
    publish(quorum, 1, offset)
    quorum.nodes[1].epoch = 2
    quorum.observe(1)
    assert ("torn-metadata" in quorum.broken()) is not right


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(
    ("published", "waited_us", "open_at", "touched", "right"),
    [
        (2, 0, 0, False, False),
        (2, -10, 0, False, True),
        (3, 0, 0, False, True),
        (2, 0, 3, False, True),
        (1, 0, 3, False, False),
        (2, 0, 0, True, True),
    ],
)
def test_committed_metadata_is_published_in_time(
    quorum: Quorum, published: int, waited_us: int, open_at: int, touched: bool, right: bool
) -> None:
    quorum.now_us += 2 * PUBLISHED_WITHIN_US
    quorum.observe(1, thorough=True)
    quorum.nodes[1].epoch = 2
    quorum.observe(1)
    quorum.nodes[1].published = published
    quorum.append(batch(3, 1, *([BEGIN] if open_at else [])))
    quorum.commit(4)
    if touched:
        quorum.fault_times.node(1, quorum.now_us)
    quorum.now_us += PUBLISHED_WITHIN_US + waited_us
    quorum.nodes[1].epoch = 3
    quorum.observe(1)
    assert ("torn-metadata" in quorum.broken()) is not right


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("published", "right"), [(2, True), (1, False)])
def test_node_with_half_a_transaction_publishes_records_before_it(quorum: Quorum, published: int, right: bool) -> None:
    quorum.now_us += 2 * PUBLISHED_WITHIN_US
    quorum.observe(1, thorough=True)
    quorum.nodes[1].published = published
    quorum.append(batch(3, 1, BEGIN), batch(4, 1), batch(5, 1, END))
    quorum.commit(6, 0, 2, 3)
    quorum.commit(5, 1)
    quorum.now_us += PUBLISHED_WITHIN_US + 1
    quorum.nodes[1].epoch = 3
    quorum.observe(1)
    assert ("torn-metadata" in quorum.broken()) is not right
