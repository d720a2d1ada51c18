"""A node sends no epoch and no vote that a power loss would take back, and votes once in an epoch (KIP-595)."""

import json
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checks.check import CheckContext, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.log.batches import BatchIdentity
from chaos.checks.metadata.tests.metadata_quorum import Quorum, batch, settled
from chaos.checks.quorum.quorum_view import QuorumView, Seen
from chaos.checks.quorum.safety import HighWatermarkOfLeaders
from chaos.checks.quorum.synced_before_sent import (
    QUORUM_STATE,
    EpochDurableBeforeUse,
    FetchFromDurableEnd,
    MetadataFetchResponses,
    OneVotePerEpoch,
)
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubMetadataLog, StubNode, StubQuorum, StubQuorumNode
from chaos.sim.disk import SimDisk
from reference_broker.core.events import Note, Reply, Request, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.messages import (
    RaftResponse,
    VoteRequest,
    build_begin_quorum_epoch_request,
    build_fetch_request,
    build_fetch_response,
    build_vote_request,
    build_vote_response,
)
from reference_broker.quorum.metadata_log import VALID, Diverging, NeedsSnapshot, Validity
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

FETCH, VOTE, BEGIN_QUORUM_EPOCH = 1, 52, 53
END = OffsetAndEpoch(10, 3)


class Voter:
    """Node 1, whose log ends at 10 in epoch 3."""

    def __init__(self) -> None:
        self.fault_times = FaultTimes()
        context = self.context = CheckContext(
            Settings(), QuorumView(3, 0, self.fault_times), ReplicaView(self.fault_times)
        )
        self.epochs, self.votes = EpochDurableBeforeUse(context), OneVotePerEpoch(context)
        self.fetches = FetchFromDurableEnd(context)
        self.view = context.quorum
        self.disk = SimDisk(Random(1))
        self.quorum = StubQuorum(node_id=1)
        log = StubLog(log_start_offset=10, log_end_offset=10, synced_offset=10)
        replica = StubQuorumNode(quorum=self.quorum, log=StubMetadataLog(log, END, start_offset=10))
        self.node: Any = StubNode(StubBroker(1, disk=self.disk, quorum_node=replica))
        self.restart(0)

    def write(self, epoch: int, voted_id: int, *, synced: bool = True) -> None:
        """Write quorum-state."""
        state = {"leaderId": -1, "leaderEpoch": epoch, "votedId": voted_id}
        self.disk.write(QUORUM_STATE + ".tmp", json.dumps(state).encode())
        self.disk.make_durable(QUORUM_STATE + ".tmp")
        self.disk.rename(QUORUM_STATE + ".tmp", QUORUM_STATE)
        if synced:
            self.disk.make_durable(QUORUM_STATE)

    def restart(self, incarnation: int) -> None:
        for check in (self.epochs, self.votes):
            check.acted(0, self.node, None, ())
        self.view.nodes[1].replica = None
        self.view.observe(0, incarnation, self.node, False)

    def send(self, key: int, body: Any) -> None:
        effect = Send(0, Channel.RAFT, 1, key, 1, body, Tag(key, 1, ""), 1000, "")
        for check in (self.epochs, self.votes):
            check.acted(0, self.node, None if key < 0 else Request(9, 9, 0, 0, "", None, Tag(0, 0, "")), (effect,))

    def reply(self, key: int, body: Any, request: Any = None) -> None:
        event = Request(1, 1, key, 1, "", request, Tag(key, 1, ""))
        for check in (self.epochs, self.votes):
            check.acted(0, self.node, event, (Reply(1, 1, key, 1, body, Tag(key, 1, "")),))

    def grant(self, candidate: int, epoch: int, end: OffsetAndEpoch = END, *, pre_vote: bool = False) -> None:
        request = build_vote_request(VoteRequest("c", 1, candidate, epoch, end, pre_vote))
        self.reply(VOTE, build_vote_response(RaftResponse(ErrorCode.none, -1, epoch, granted=True)), request)

    def refuse(self, end: OffsetAndEpoch, leader_id: int = -1, *, pre_vote: bool = False) -> None:
        """Refuse node 2 its vote of epoch 5."""
        request = build_vote_request(VoteRequest("c", 1, 2, 5, end, pre_vote))
        self.reply(VOTE, build_vote_response(RaftResponse(ErrorCode.none, leader_id, 5, granted=False)), request)

    def fetch(self, end: OffsetAndEpoch) -> str:
        """Return what is wrong with a fetch. The last batch that the view has seen is at offset 9, in epoch 3."""
        self.view.nodes[1].batches[9] = BatchIdentity(9, 3, 0, 9, False)
        effect = Send(
            0, Channel.RAFT, 1, FETCH, 1, build_fetch_request("c", 1, 5, end, 0, 0, 100), Tag(FETCH, 1, ""), 1000, ""
        )
        self.fetches.acted(0, self.node, None, (effect,))
        return " ".join(violation.explanation for violation in self.fetches.violations)

    def fetch_violation(
        self,
        offset: int,
        epoch: int,
        validity: Validity | None,
        records: bytes = b"",
        *,
        start: int = 10,
        appends_first: bool = False,
        counted: int = -1,
    ) -> str:
        """Return what is wrong with a leader's response to a fetch. Its log begins at ``start``, after a snapshot if
        that is not 0. With ``appends_first`` the same event appends the first batch of its epoch. ``counted`` is the
        end that it counts of the fetcher."""
        self.quorum.state = SimpleNamespace(voters={3: SimpleNamespace(end_offset=counted)})
        replica, member = self.node.broker.quorum_node, self.view.nodes[1]
        replica.store.ids = [OffsetAndEpoch(start, 2)] if start else []
        replica.log.start_offset = replica.log.log.log_start_offset = start
        replica.log.log.log_end_offset = 20
        member.seen = Seen(0, 5, True, 1, 20, 10, 20, 20)
        member.batches = {start: BatchIdentity(start, 3, 0, 14, False), 15: BatchIdentity(15, 5, 0, 19, False)}
        if appends_first:
            member.seen = member.seen._replace(end_offset=15)
            del member.batches[15]
        request = build_fetch_request("c", 3, 5, OffsetAndEpoch(offset, epoch), 0, 0, 100)
        response = build_fetch_response(ErrorCode.none, 1, 5, 20, 10, validity or VALID, records)
        tag, check = Tag(FETCH, 1, ""), MetadataFetchResponses(self.context)
        check.acted(0, self.node, Request(1, 1, FETCH, 1, "", request, tag), (Reply(1, 1, FETCH, 1, response, tag),))
        return " ".join(violation.explanation for violation in check.violations)

    def broken(self) -> list[str]:
        return [check.guarantee for check in (self.epochs, self.votes) if check.violations]


@pytest.fixture
def voter() -> Voter:
    return Voter()


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("what", ["announces", "fetches", "serves", "seeks votes"])
def test_epoch_is_durable_before_a_message_names_it(voter: Voter, what: str, synced: bool) -> None:
    voter.write(4, 1)
    voter.write(5, 1, synced=synced)
    if what == "announces":
        voter.send(BEGIN_QUORUM_EPOCH, build_begin_quorum_epoch_request("c", 0, 1, 5))
    elif what == "fetches":
        voter.send(FETCH, build_fetch_request("c", 1, 5, END, 0, 0, 100))
    elif what == "serves":
        voter.reply(FETCH, build_fetch_response(ErrorCode.none, 0, 5, 0, 0))
    else:
        voter.send(VOTE, build_vote_request(VoteRequest("c", 0, 1, 5, END, pre_vote=True)))
    assert voter.broken() == ([] if synced else ["monotonic-epoch"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("excuse", ["", "has voted", "knows a leader", "newer log", "pre-vote", "another epoch"])
def test_voter_that_is_free_to_vote_grants_a_new_enough_log_its_vote(voter: Voter, excuse: str) -> None:
    voter.write(6 if excuse == "another epoch" else 5, 0 if excuse == "has voted" else -1)
    end = OffsetAndEpoch(11, 2) if excuse == "newer log" else END
    voter.refuse(end, 0 if excuse == "knows a leader" else -1, pre_vote=excuse == "pre-vote")
    assert bool(voter.votes.violations) is (not excuse)


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("epoch", "voted_id", "right"), [(5, 2, True), (5, 0, False), (5, -1, False), (6, -1, True)])
def test_vote_is_durable_before_it_is_sent(voter: Voter, epoch: int, voted_id: int, right: bool) -> None:
    voter.write(epoch, voted_id)
    voter.grant(2, 5)
    assert voter.broken() == ([] if right else ["one-leader-per-epoch"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("replaced", [True, False])
def test_directory_votes_once_in_an_epoch(voter: Voter, replaced: bool) -> None:
    voter.write(5, 1)
    voter.send(VOTE, build_vote_request(VoteRequest("c", 0, 1, 5, END, pre_vote=False)))
    voter.grant(0, 5, pre_vote=True)
    assert voter.broken() == []
    if replaced:
        voter.fault_times.directory(1)
    voter.write(5, 2)
    voter.grant(2, 5)
    assert voter.broken() == ([] if replaced else ["one-leader-per-epoch"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("pre_vote", [True, False])
@pytest.mark.parametrize(("end", "right"), [(OffsetAndEpoch(10, 3), True), (OffsetAndEpoch(9, 3), False)])
def test_only_a_log_that_is_as_new_gets_a_vote(voter: Voter, end: OffsetAndEpoch, right: bool, pre_vote: bool) -> None:
    voter.write(5, 2)
    voter.grant(2, 5, end, pre_vote=pre_vote)
    assert voter.broken() == ([] if right else ["one-leader-per-epoch"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("epoch", "voted_id", "right"), [(5, 2, True), (5, -1, False), (6, -1, True)])
def test_new_process_has_the_vote_of_the_one_before(voter: Voter, epoch: int, voted_id: int, right: bool) -> None:
    voter.write(5, 2)
    voter.grant(2, 5)
    voter.quorum.epoch, voter.quorum.voted_id = epoch, voted_id
    voter.restart(1)
    assert voter.broken() == ([] if right else ["one-leader-per-epoch"])


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(
    ("end", "synced", "words"),
    [
        (OffsetAndEpoch(10, 3), True, ""),
        (OffsetAndEpoch(0, 0), False, ""),
        (OffsetAndEpoch(10, 3), False, "5 of 8 bytes"),
        (OffsetAndEpoch(9, 3), True, "its log ends at 10"),
        (OffsetAndEpoch(10, 2), True, "its log ends with batch 9..9 of epoch 3"),
    ],
)
def test_voter_fetches_from_the_durable_end_of_its_log(
    voter: Voter, end: OffsetAndEpoch, synced: bool, words: str
) -> None:
    voter.node.broker.quorum_node.log.log.log_start_offset = 0
    log = "__cluster_metadata-0/00000000000000000000.log"
    voter.disk.append(log, [b"first"])
    voter.disk.make_durable(log)
    voter.disk.append(log, [b"end"])
    if synced:
        voter.disk.make_durable(log)
    explanations = voter.fetch(end)
    assert words in explanations
    assert bool(words) is bool(explanations)


@pytest.mark.clause("S-9")
@pytest.mark.parametrize(("epoch", "right"), [(4, True), (3, False)])
def test_voter_fetches_from_the_end_of_the_snapshot_that_replaced_its_log(
    voter: Voter, epoch: int, right: bool
) -> None:
    voter.node.broker.quorum_node.store.ids = [OffsetAndEpoch(10, 4)]
    assert ("snapshots [(10, 4)]" in voter.fetch(OffsetAndEpoch(10, epoch))) is not right


SNAPSHOT, EARLIER = NeedsSnapshot(OffsetAndEpoch(10, 2)), Diverging(OffsetAndEpoch(15, 3))
OWN_END = Diverging(OffsetAndEpoch(20, 5))


@pytest.mark.clause("S-10", "T-7")
@pytest.mark.parametrize(
    ("offset", "epoch", "right", "wrong"),
    [
        (20, 5, None, SNAPSHOT),
        (15, 3, None, EARLIER),
        (10, 2, None, SNAPSHOT),
        (16, 3, EARLIER, None),
        (17, 4, EARLIER, OWN_END),
        (21, 5, OWN_END, None),
        (0, 0, SNAPSHOT, None),
        (9, 2, SNAPSHOT, EARLIER),
        (10, 3, SNAPSHOT, None),
        (12, 1, SNAPSHOT, EARLIER),
        (12, 3, None, NeedsSnapshot(OffsetAndEpoch(9, 2))),
        (0, 0, SNAPSHOT, NeedsSnapshot(OffsetAndEpoch(9, 2))),
    ],
)
def test_leader_compares_the_log_of_each_fetcher(
    voter: Voter, offset: int, epoch: int, right: Validity | None, wrong: Validity | None
) -> None:
    """The leader's log has epoch 3 from 10 to 14 and epoch 5 from 15 to 19, and its snapshot ends at 10 in epoch 2."""
    assert voter.fetch_violation(offset, epoch, right) == ""
    assert f"a fetch from {offset} in epoch {epoch}: " in voter.fetch_violation(offset, epoch, wrong)


def test_offset_of_a_fetch_that_diverges_does_not_count(voter: Voter) -> None:
    assert voter.fetch_violation(18, 3, EARLIER, counted=12) == ""
    assert voter.fetch_violation(20, 5, VALID, counted=20) == ""
    assert "counts 18 as the end of voter 3" in voter.fetch_violation(18, 3, EARLIER, counted=18)


@pytest.mark.parametrize(("offset", "epoch"), [(16, 3), (17, 4)])
def test_first_batch_of_an_epoch_ends_the_one_before(voter: Voter, offset: int, epoch: int) -> None:
    assert voter.fetch_violation(offset, epoch, EARLIER, appends_first=True) == ""
    assert "epoch 3 ends at 15" in voter.fetch_violation(
        offset, epoch, Diverging(OffsetAndEpoch(20, 3)), appends_first=True
    )


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("base", "validity", "right"), [(15, None, True), (16, None, False), (15, EARLIER, False)])
def test_records_continue_the_log_of_the_fetcher(
    voter: Voter, base: int, validity: Validity | None, right: bool
) -> None:
    offset = 15 if validity is None else 16
    assert (voter.fetch_violation(offset, 3, validity, base.to_bytes(8, "big")) == "") is right


def high_watermarks(quorum: Quorum) -> HighWatermarkOfLeaders:
    return next(check for check in quorum.checks if isinstance(check, HighWatermarkOfLeaders))


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("offset", "right"), [(4, True), (3, False)])
def test_leader_commits_its_own_first_record_before_it_reports_anything(offset: int, right: bool) -> None:
    quorum: Quorum = settled()
    quorum.commit(2, 1)
    for check in quorum.checks:
        check.violations.clear()  # Node 1 went back only for this test.
    quorum.fault_times.node(0, quorum.now_us)
    quorum.elect(1, 2)
    elected = Note("leader_elected", (("epoch", 2), ("start_offset", 3)))
    high_watermarks(quorum).acted(quorum.now_us, quorum.nodes[1].node, None, [elected])
    quorum.append(batch(3, 2))
    quorum.commit(offset, 1)
    assert ("monotonic-high-watermark" in quorum.broken()) is not right


@pytest.mark.clause("T-8")
@pytest.mark.parametrize(("offset", "led", "right"), [(3, False, True), (4, False, False), (4, True, True)])
def test_follower_high_watermark_does_not_exceed_leader_s(offset: int, led: bool, right: bool) -> None:
    quorum = settled()
    quorum.nodes[3].high_watermark = offset - 1
    quorum.append(batch(3, 1))
    if led:
        noted = Note("high_watermark", (("offset", offset),))
        high_watermarks(quorum).acted(quorum.now_us, quorum.nodes[0].node, None, [noted])
        quorum.nodes[0].is_leader = False
    quorum.commit(offset, 3)
    explanation = [violation.explanation for check in quorum.checks for violation in check.violations]
    assert any("no leader up to that epoch" in each for each in explanation) is not right


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("end", "epoch", "right"), [(0, 1, True), (0, 0, False), (15, 3, False), (1, 1, False)])
def test_epoch_below_all_known_ones_ends_where_the_first_begins(
    voter: Voter, end: int, epoch: int, right: bool
) -> None:
    assert (voter.fetch_violation(1, 1, Diverging(OffsetAndEpoch(end, epoch)), start=0) == "") is right
