"""Snapshots of the metadata log: downloads, requests, and files that are kept or deleted."""

import json
from random import Random
from typing import Any

import pytest

from chaos.checks.metadata.snapshots import SnapshotRequested, SnapshotsKept, SnapshotTransfer
from chaos.checks.metadata.tests.metadata_quorum import Quorum, settled
from chaos.checks.tests.check_context import check_context, note_row
from chaos.checks.tests.stub_node import StubBroker, StubNode, StubQuorum, StubQuorumNode, StubSnapshotStore
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Event, Note, PeerReply, Reply, Request, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.messages import build_fetch_response
from reference_broker.quorum.metadata_log import NeedsSnapshot
from reference_broker.quorum.snapshots.messages import Piece, SnapshotRequest, request_for, response_of
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from reports.rows import TraceRow

Step = tuple[str, dict[str, int] | dict[str, str]]
SIZE = 1000


def start(position: int = 0, leader: int = 1, end_offset: int = 70) -> Step:
    where = {"leader": leader, "end_offset": end_offset, "epoch": 3, "position": position, "size": SIZE}
    return "download_started", where


def chunks(*positions: int, size: int = SIZE) -> list[Step]:
    return [("download_chunk", {"position": position, "bytes": 100, "size": size}) for position in positions]


def all_from(position: int) -> list[Step]:
    return chunks(*range(position, SIZE, 100))


def growing(last: int) -> list[Step]:
    """Three snapshots of 400, 1,000, and 1,200 bytes, each lost before its last chunk, and ``last`` chunks of a fourth.

    The three together have 2,600 bytes, and four beginnings may cost a chunk each.
    """
    sizes = (400, 1000, 1200)
    lost = [(start(0, 1, end), *chunks(*range(0, size - 100, 100), size=size)) for end, size in enumerate(sizes)]
    return [*(step for each in lost for step in each), start(0, 1, 90), *chunks(*range(0, 100 * last, 100), size=1400)]


RESTARTED: Step = ("restarted", {})
"""No row: the rows after it are those of the next process."""
DONE: Step = ("download_finished", {"bytes": SIZE})
DISCARDED: Step = ("download_discarded", {"why": "the leader's is shorter"})
DAMAGED: Step = ("download_discarded", {"why": "00000000000000000070-0000000003.checkpoint.part at byte 83: wrong CRC"})


@pytest.mark.clause("S-8", "S-11", "S-15")
@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([start(), *all_from(0), DONE], []),
        ([start(), *chunks(0, 100), start(200), *all_from(200), DONE], []),
        ([start(), *chunks(0, 100), start(100)], ["from byte 100", "holds 200"]),
        ([start(), *chunks(0, 100), RESTARTED, start(100), *all_from(100), DONE], []),
        ([start(), *chunks(0, 100), RESTARTED, start(200), *all_from(200), DONE], []),
        ([start(), *chunks(0, 100), RESTARTED, start(0)], ["from byte 0", "100 were durable"]),
        ([start(), *chunks(0, 100), RESTARTED, start(300)], ["from byte 300", "holds 200"]),
        ([start(), *chunks(0, 100), start(0, leader=2), *all_from(0), DONE, start(), *all_from(0)], []),
        ([start(), *chunks(0, 100, 200), DISCARDED, start(end_offset=90), *all_from(0), DONE], []),
        ([start(), *chunks(0, 100, 200), start(0), *all_from(0), DONE], ["in 2 starts"]),
        ([start(), *chunks(0, 100), start(200, leader=2)], ["holds 200 bytes of", "from byte 200"]),
        ([start(), *chunks(0, 100), start(200, end_offset=90)], ["holds 200 bytes of", "from byte 200"]),
        ([start(), *chunks(0, 100), DISCARDED, start(200)], ["holds 0 bytes"]),
        ([start(), *chunks(0, 100, 200), DISCARDED, start(), *all_from(0), DONE], ["in 2 starts"]),
        ([start(), *all_from(0), DAMAGED], ["put together a damaged snapshot"]),
        ([start(200)], ["holds nothing"]),
        ([start(), *chunks(0, 100), start(300)], ["from byte 300", "holds 200"]),
        ([start(), *chunks(0, 100, 100)], ["holds 200", "took those at 100"]),
        (chunks(0), ["did not request"]),
        ([start(), *chunks(*range(0, 3000, 100), size=-1)], []),
        (growing(7), []),
        (growing(8), ["fetched 3100 bytes until it has", "at most 3000"]),
        ([chunk for end in range(5) for chunk in (start(0, 1, end), *chunks(*range(0, 900, 100)))], ["until it has"]),
    ],
)
def test_download_may_fetch_a_snapshot_once_and_a_chunk_for_each_restart(steps: list[Step], words: list[str]) -> None:
    check = SnapshotTransfer(check_context())
    incarnation = 0
    for at, (what, fields) in enumerate(steps):
        if what == "restarted":
            incarnation += 1
        else:
            check.trace(TraceRow(4, incarnation, at, at, what, detail=json.dumps(fields)))
    explanation = " ".join(violation.explanation for violation in check.violations)
    assert bool(check.violations) is bool(words), explanation
    for word in words:
        assert word in explanation


def test_nodes_are_judged_each_by_itself() -> None:
    check = SnapshotTransfer(check_context())
    for node in (3, 4):
        for at, (what, fields) in enumerate([start(), *all_from(0), DONE]):
            check.trace(TraceRow(node, 0, at, at, what, detail=json.dumps(fields)))
    assert check.violations == []


FETCH_SNAPSHOT = 59
OLD, NEW = OffsetAndEpoch(70, 3), OffsetAndEpoch(90, 3)
SECOND_US = 1_000_000
KEPT_US = 60 * SECOND_US


def path(snapshot: OffsetAndEpoch, suffix: str = "") -> str:
    return f"__cluster_metadata-0/{snapshot.offset:020d}-{snapshot.epoch:010d}.checkpoint{suffix}"


class StoreOnDisk(StubSnapshotStore):
    """The snapshots on a disk."""

    def __init__(self, ids: list[OffsetAndEpoch], disk: SimDisk) -> None:
        super().__init__(ids)
        self._disk = disk

    def size(self, snapshot: OffsetAndEpoch) -> int:
        return self._disk.size(path(snapshot))


class Node:
    """Node 1 in epoch 5, with the snapshots that are written to its disk."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.ids: list[OffsetAndEpoch] = []
        replica = StubQuorumNode(quorum=StubQuorum(epoch=5), store=StoreOnDisk(self.ids, self.disk))
        self.node = StubNode(StubBroker(1, disk=self.disk, quorum_node=replica)).as_node()
        self.requested, self.kept = SnapshotRequested(check_context()), SnapshotsKept(check_context())
        self.now_us = 0

    def act(self, event: Event | None, *effects: Any) -> None:
        for check in (self.requested, self.kept):
            check.acted(self.now_us, self.node, event, effects)

    def note(self, what: str, snapshot: OffsetAndEpoch, *more: Note) -> None:
        fields = (("offset", snapshot.offset), ("end_offset", snapshot.offset), ("epoch", snapshot.epoch))
        self.act(PeerReply(0, Channel.RAFT, 1, None), Note(what, fields), *more)

    def hold(self, snapshot: OffsetAndEpoch, *, synced: bool = True) -> None:
        self.disk.append(path(snapshot), [b"whole"])
        if synced:
            self.disk.make_durable(path(snapshot))
        self.ids.append(snapshot)
        self.note("snapshot_renamed", snapshot)

    def delete(self, snapshot: OffsetAndEpoch, *before: Note) -> None:
        self.ids.remove(snapshot)
        fields = (("end_offset", snapshot.offset), ("epoch", snapshot.epoch))
        self.act(PeerReply(0, Channel.RAFT, 1, None), *before, Note("snapshot_deleted", fields))

    def serve(self, position: int) -> None:
        """Serve a byte of the older snapshot, of which more remain."""
        wanted = SnapshotRequest("c", 3, "__cluster_metadata", 0, 5, OLD, position, 1)
        body = request_for(wanted.cluster_id, 3, 5, OLD, position, 1)
        response = response_of([(wanted, Piece(ErrorCode.none, 1, 5, OLD, 5, position, b"w"))], None)
        tag = Tag(FETCH_SNAPSHOT, 1, "")
        self.act(Request(1, 1, FETCH_SNAPSHOT, 1, "", body, tag), Reply(1, 1, FETCH_SNAPSHOT, 1, response, tag))

    def name(self, snapshot: OffsetAndEpoch, leader: int = 0) -> None:
        body = build_fetch_response(ErrorCode.none, leader, 5, 0, 0, NeedsSnapshot(snapshot))
        self.act(PeerReply(leader, Channel.RAFT, 1, body))

    def request(self, snapshot: OffsetAndEpoch, position: int, epoch: int = 5) -> None:
        body, tag = request_for("c", 1, epoch, snapshot, position, 100), Tag(FETCH_SNAPSHOT, 1, "")
        self.act(PeerReply(0, Channel.RAFT, 1, None), Send(0, Channel.RAFT, 1, FETCH_SNAPSHOT, 1, body, tag, 100, ""))

    def explanations(self) -> str:
        return " ".join(
            violation.explanation for check in (self.requested, self.kept) for violation in check.violations
        )


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.mark.clause("S-8", "S-10", "S-11")
@pytest.mark.parametrize(
    ("snapshot", "position", "epoch", "words"),
    [
        (NEW, 3, 5, ""),
        (OLD, 0, 5, "had named (90, 3)"),
        (NEW, 3, 4, "is in epoch 5"),
        (NEW, 0, 5, "holds 3 bytes"),
        (NEW, 4, 5, "holds 3 bytes"),
    ],
)
def test_request_continues_the_snapshot_that_was_named_last(
    node: Node, snapshot: OffsetAndEpoch, position: int, epoch: int, words: str
) -> None:
    node.name(OLD)
    node.name(NEW)
    node.name(OLD, leader=2)
    node.disk.append(path(NEW, ".part"), [b"abc"])
    node.disk.make_durable(path(NEW, ".part"))
    node.request(snapshot, position, epoch)
    assert words in node.explanations()
    assert bool(words) is bool(node.explanations())


@pytest.mark.clause("S-11")
def test_next_piece_is_requested_when_the_last_one_is_durable(node: Node) -> None:
    node.name(NEW)
    node.disk.append(path(NEW, ".part"), [b"abc"])
    node.request(NEW, 3)
    assert "a power loss would leave it 0 bytes" in node.explanations()


@pytest.mark.clause("S-9", "S-15")
@pytest.mark.parametrize(("synced", "offset", "right"), [(True, 90, True), (True, 91, False), (False, 90, False)])
def test_log_is_deleted_only_before_a_durable_snapshot(node: Node, synced: bool, offset: int, right: bool) -> None:
    node.hold(NEW, synced=synced)
    node.note("log_deleted_before", OffsetAndEpoch(offset, 3))
    assert ("no snapshot that reaches there" in node.explanations()) is not right


@pytest.mark.clause("S-15")
def test_newest_snapshot_is_never_deleted(node: Node) -> None:
    node.hold(OLD)
    node.now_us += 2 * KEPT_US
    node.delete(OLD)
    assert "its newest" in node.explanations()


@pytest.mark.clause("S-15")
@pytest.mark.parametrize(("after_us", "installs", "right"), [(0, False, True), (-1, False, False), (-1, True, True)])
def test_superseded_snapshot_stays_for_a_minute(node: Node, after_us: int, installs: bool, right: bool) -> None:
    node.hold(OLD)
    node.now_us += KEPT_US
    node.hold(NEW)
    node.now_us += KEPT_US + after_us
    node.delete(OLD, *([Note("download_finished", (("bytes", 5),))] if installs else []))
    assert bool(node.explanations()) is not right


@pytest.mark.clause("S-15")
@pytest.mark.parametrize(("position", "after_us", "right"), [(1, 0, False), (1, 2 * SECOND_US, True), (0, 0, True)])
def test_snapshot_stays_while_a_download_of_it_advances(node: Node, position: int, after_us: int, right: bool) -> None:
    node.hold(OLD)
    node.hold(NEW)
    node.serve(0)
    node.now_us += KEPT_US
    node.serve(position)
    node.now_us += after_us
    node.delete(OLD)
    assert ("further bytes" in node.explanations()) is not right


@pytest.mark.clause("S-15")
@pytest.mark.parametrize("renamed", [False, True])
def test_deletion_that_a_power_loss_has_undone_is_repeated_at_once(node: Node, renamed: bool) -> None:
    node.hold(OLD)
    node.hold(NEW)
    node.delete(OLD, Note("download_finished", (("bytes", 5),)))
    assert not node.explanations()
    node.ids.insert(0, OLD)
    if renamed:
        node.note("snapshot_renamed", OLD)
    node.delete(OLD)
    assert ("after a newer one" in node.explanations()) is renamed


@pytest.fixture
def quorum() -> Quorum:
    return settled()


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
