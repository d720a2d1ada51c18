"""A leader without a majority resigns in time, a voter without a leader seeks votes in time, and a log that diverges is
cut where it diverges (KIP-595)."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.check import CheckContext, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.log.batches import BatchIdentity
from chaos.checks.metadata.tests.metadata_quorum import SECOND_US, Quorum, batch, settled
from chaos.checks.quorum.liveness import LATE_US, LeaderKeepsMajority, PreVotesRefused, VotesSought
from chaos.checks.quorum.quorum_view import QuorumView, Seen
from chaos.checks.quorum.synced_before_sent import MAX_REPEATED, DivergenceCut
from chaos.checks.replication.replica_view import ReplicaView
from chaos.checks.tests.stub_node import StubBroker, StubLog, StubMetadataLog, StubNode, StubQuorumNode
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Effect, Event, Note, PeerDown, PeerReply, Reply, Request, Send, TimerFired
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.messages import (
    RaftResponse,
    VoteRequest,
    build_begin_quorum_epoch_request,
    build_end_quorum_epoch_request,
    build_fetch_request,
    build_fetch_response,
    build_vote_request,
    build_vote_response,
)
from reference_broker.quorum.metadata_log import VALID, Diverging, Validity
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag

FETCH, VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH = 1, 52, 53, 54
MS = 1000
FETCH_MS, ELECTION_MS, BACKOFF_MS = 2000, 1000, 500
KEEPS_US = FETCH_MS * MS * 3 // 2 + LATE_US
LEADERLESS_US = (2 * ELECTION_MS + BACKOFF_MS) * MS + LATE_US
SILENT_US = LEADERLESS_US + 2 * FETCH_MS * MS
STEP_US = 100 * MS


class Voter:
    """Node 1 of three voters in epoch 5. A look at it comes every 100 ms."""

    def __init__(self) -> None:
        self.fault_times = FaultTimes()
        self.view = QuorumView(3, 0, self.fault_times)
        context = CheckContext(Settings(), self.view, ReplicaView(self.fault_times))
        self.leads, self.seeks, self.cuts = LeaderKeepsMajority(context), VotesSought(context), DivergenceCut(context)
        self.refuses = PreVotesRefused(context)
        config = replace(
            BrokerConfig(),
            controller_quorum_fetch_timeout_ms=FETCH_MS,
            controller_quorum_election_timeout_ms=ELECTION_MS,
            controller_quorum_election_backoff_max_ms=BACKOFF_MS,
        )
        self.log = StubLog(log_end_offset=20, synced_offset=20)
        replica: Any = StubQuorumNode(log=StubMetadataLog(self.log))
        self.node: Any = StubNode(StubBroker(1, config=config, quorum_node=replica))
        self.at_us = 0
        self.member = self.view.nodes[1]
        self.member.replica = replica
        self.happens(None)

    def happens(self, event: Event | None, *effects: Effect) -> None:
        for check in (self.leads, self.seeks, self.cuts, self.refuses):
            check.acted(self.at_us, self.node, event, effects)

    def sees(self, leader_id: int, epoch: int = 5, end: int = 20) -> None:
        before, self.member.seen = self.member.seen, Seen(0, epoch, leader_id == 1, leader_id, 10, 0, end, end)
        for check in (self.leads, self.seeks):
            check.changed(self.at_us, self.member, before, self.member.seen)

    def passes(self, time_us: int) -> "Voter":
        until_us = self.at_us + time_us
        while self.at_us < until_us:
            self.at_us = min(self.at_us + STEP_US, until_us)
            self.happens(Request(1, 1, 3, 1, "", None, Tag(3, 1, "")))
        return self

    def is_fetched(self, replica_id: int, epoch: int = 5) -> None:
        body = build_fetch_request("c", replica_id, epoch, OffsetAndEpoch(9, 5), 0, 0, 100)
        self.happens(Request(1, 1, FETCH, 17, "", body, Tag(FETCH, 17, "")))

    def gets(self, validity: Validity = VALID, records: bytes = b"", cut_to: int = -1) -> None:
        """A response to its fetch from node 0, which leads."""
        body = build_fetch_response(ErrorCode.none, 0, 5, 10, 0, validity, records)
        if cut_to >= 0:
            self.log.log_end_offset = cut_to
        self.happens(PeerReply(0, Channel.RAFT, 1, body), *([Note("truncated", (("offset", cut_to),))] * (cut_to >= 0)))

    def sends(self, key: int, body: object) -> None:
        self.happens(TimerFired(1), Send(0, Channel.RAFT, 1, key, 1, body, Tag(key, 1, ""), 1000, ""))

    def fetches(self) -> None:
        self.sends(FETCH, build_fetch_request("c", 1, 5, OffsetAndEpoch(20, 5), 0, 0, 100))

    def grants(self, candidate: int = 2, *, epoch: int = 5, granted: bool = True) -> None:
        """A pre-vote, or its refusal."""
        body = build_vote_request(VoteRequest("c", 1, candidate, epoch, OffsetAndEpoch(20, 5), True))
        tag = Tag(VOTE, 2, "")
        response = build_vote_response(RaftResponse(ErrorCode.none, 0, epoch, granted=granted))
        self.happens(Request(1, 1, VOTE, 2, "", body, tag), Reply(1, 1, VOTE, 2, response, tag))

    @property
    def explanations(self) -> str:
        checks = self.leads, self.seeks, self.cuts, self.refuses
        return " ".join(violation.explanation for check in checks for violation in check.violations)


@pytest.fixture
def voter() -> Voter:
    return Voter()


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("contact", ["none", "one voter", "of an older epoch", "an observer", "itself"])
def test_leader_without_a_majority_resigns_in_time(voter: Voter, contact: str) -> None:
    voter.sees(1)
    for _ in range(20):
        voter.passes(KEEPS_US // 10)
        if contact != "none":
            sender = {"an observer": 4, "itself": 1}.get(contact, 2)
            voter.is_fetched(sender, 4 if contact == "of an older epoch" else 5)
    assert ("still leads" in voter.explanations) is (contact != "one voter"), voter.explanations


@pytest.mark.parametrize("paused", [True, False])
def test_leader_that_was_paused_resigns_later(voter: Voter, paused: bool) -> None:
    voter.sees(1)
    if paused:
        voter.fault_times.node(1, KEEPS_US)
    assert bool(voter.passes(2 * KEEPS_US - STEP_US).explanations) is not paused


def test_leader_that_resigned_in_time_is_right(voter: Voter) -> None:
    voter.sees(1)
    voter.passes(KEEPS_US - STEP_US).sees(-1)
    assert not voter.passes(LEADERLESS_US - STEP_US).explanations


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("sought", [True, False])
def test_voter_without_known_leader_seeks_votes(voter: Voter, sought: bool) -> None:
    voter.sees(1)
    voter.sees(-1)
    for _ in range(4):
        voter.passes(LEADERLESS_US - STEP_US)
        if sought:
            voter.sends(VOTE, build_vote_request(VoteRequest("c", 0, 1, 5, OffsetAndEpoch(20, 5), pre_vote=True)))
    assert ("has not sought votes" in voter.explanations) is not sought


@pytest.mark.parametrize(
    ("contact", "right"), [("a response", True), ("a refusal", False), ("an announcement", True), ("nothing", False)]
)
def test_voter_without_contact_from_leader_seeks_votes(voter: Voter, contact: str, right: bool) -> None:
    voter.sees(0)
    for _ in range(3):
        voter.passes(SILENT_US - STEP_US)
        if contact == "a response":
            voter.gets()
        elif contact == "a refusal":
            refused = build_fetch_response(ErrorCode.not_leader_or_follower, 0, 5, 10, 0)
            voter.happens(PeerReply(0, Channel.RAFT, 1, refused))
        elif contact == "an announcement":
            voter.happens(
                Request(
                    1,
                    1,
                    BEGIN_QUORUM_EPOCH,
                    1,
                    "",
                    build_begin_quorum_epoch_request("c", 1, 0, 5),
                    Tag(BEGIN_QUORUM_EPOCH, 1, ""),
                )
            )
    assert ("has not sought votes" not in voter.explanations) is right


@pytest.mark.parametrize("event", ["voted", "epoch", "paused", "nothing"])
def test_vote_or_a_new_epoch_delays_the_next_election(voter: Voter, event: str) -> None:
    voter.sees(-1)
    voter.passes(LEADERLESS_US - STEP_US)
    if event == "voted":
        voter.happens(TimerFired(1), Note("voted", (("epoch", 5), ("candidate", 2))))
    elif event == "epoch":
        voter.sees(-1, 6)
    elif event == "paused":
        voter.fault_times.node(1, voter.at_us)
    assert bool(voter.passes(LEADERLESS_US - STEP_US).explanations) is (event == "nothing")


LOG = {0: (0, 9, 2), 10: (10, 14, 4), 15: (15, 19, 5)}
"""The log of the voter: first and last offset and epoch of its batches."""


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(
    ("epoch", "end", "cut_to", "right"),
    [
        (4, 12, 10, True),  # It has epoch 4 too, and 12 is inside its batch.
        (4, 15, 15, True),
        (4, 18, 15, True),  # The leader has more of epoch 4.
        (4, 18, 18, False),
        (4, 18, 20, False),
        (4, 18, 10, False),  # It has cut more than diverges.
        (4, 10, 10, True),
        (4, 10, 15, False),
        (3, 12, 10, True),  # It does not have epoch 3, and what it has of older ones ends at 10.
        (3, 12, 12, False),
        (3, 8, 10, True),  # The next fetch names epoch 2.
        (2, 9, 10, False),
    ],
)
def test_log_is_cut_where_it_diverges(voter: Voter, epoch: int, end: int, cut_to: int, right: bool) -> None:
    voter.sees(0)
    voter.member.batches = {base: BatchIdentity(base, of, 0, last, False) for base, (_, last, of) in LOG.items()}
    voter.gets(Diverging(OffsetAndEpoch(end, epoch)), cut_to=cut_to)
    assert ("cuts its log" not in voter.explanations) is right, voter.explanations


@pytest.mark.parametrize("moves", [True, False])
def test_follower_gets_past_a_divergence(voter: Voter, moves: bool) -> None:
    for each in range(MAX_REPEATED):
        voter.sees(0, end=20 - each if moves else 20)
        voter.gets(Diverging(OffsetAndEpoch(12, 4)))
    assert ("times in a row" not in voter.explanations) is moves


@pytest.fixture
def quorum() -> Quorum:
    return settled()


@pytest.mark.thorough
@pytest.mark.parametrize("touched", ["", "leader", "one voter", "two voters", "links of two voters"])
def test_leader_may_be_deposed_only_after_a_fault_of_it_or_of_a_majority(quorum: Quorum, touched: str) -> None:
    quorum.now_us += 20 * SECOND_US
    nodes = {"leader": (0,), "one voter": (1,), "two voters": (1, 2)}.get(touched, ())
    for node in nodes:
        quorum.fault_times.node(node, quorum.now_us - SECOND_US)
    if touched == "links of two voters":
        quorum.fault_times.link(0, 1, quorum.now_us - SECOND_US)
        quorum.fault_times.link(2, 0, quorum.now_us - SECOND_US)
    quorum.elect(2, 2)
    assert quorum.broken() == (["stable-leadership"] if touched in ("", "one voter") else [])


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


SETTLED_US, SESSION_US = 6 * SECOND_US, 12 * SECOND_US


@pytest.mark.thorough
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
@pytest.mark.parametrize("touched", ["leader", "voters", "links"])
def test_leader_falls_only_soon_after_a_fault(quorum: Quorum, touched: str, too_long_ago_us: int) -> None:
    quorum.now_us += 20 * SECOND_US
    until_us = quorum.now_us + 1 - SETTLED_US - too_long_ago_us  # The new leader is seen in the next microsecond.
    for number in {"leader": (0,), "voters": (1, 2), "links": ()}[touched]:
        quorum.fault_times.node(number, until_us)
    for number in (1, 2) if touched == "links" else ():
        quorum.fault_times.link(number, 0, until_us)
    quorum.nodes[1].is_leader, quorum.nodes[1].epoch, quorum.nodes[1].leader_id = True, 2, 1
    quorum.observe(1)
    assert ("stable-leadership" in quorum.broken()) is bool(too_long_ago_us)


@pytest.mark.thorough
@pytest.mark.parametrize("too_long_ago_us", [0, 1])
@pytest.mark.parametrize("touched", ["broker", "controller", "link"])
def test_broker_is_fenced_only_soon_after_a_fault(quorum: Quorum, touched: str, too_long_ago_us: int) -> None:
    quorum.now_us += 60 * SECOND_US
    until_us = quorum.now_us - SESSION_US - too_long_ago_us
    if touched == "link":
        quorum.fault_times.link(3, 0, until_us)
    else:
        quorum.fault_times.node(3 if touched == "broker" else 0, until_us)
    quorum.note(0, "broker_fenced", broker=3)
    assert quorum.broken() == (["no-false-fencing"] if too_long_ago_us else [])


@pytest.mark.parametrize(("waited_us", "right"), [(SESSION_US, True), (SESSION_US + 1, False)])
def test_new_controller_has_no_heartbeats_yet(quorum: Quorum, waited_us: int, right: bool) -> None:
    led_us = quorum.now_us + 2  # The second look of ``elect`` sees node 1.
    quorum.elect(1, 2)
    quorum.now_us = led_us + waited_us
    quorum.note(1, "broker_fenced", broker=3)
    assert ("no-false-fencing" not in quorum.broken()) is right


@pytest.mark.clause("T-7")
@pytest.mark.parametrize("late_us", [0, FETCH_MS * MS - 1])
def test_follower_that_hears_from_its_leader_grants_no_pre_vote(voter: Voter, late_us: int) -> None:
    voter.sees(0)
    voter.fetches()
    voter.gets()
    voter.at_us += late_us
    voter.grants(granted=False)
    assert not voter.explanations
    voter.grants()
    assert "node 1 grants a pre-vote in epoch 5, which node 0 leads" in voter.explanations


@pytest.mark.clause("T-7")
def test_leader_grants_no_pre_vote_in_its_epoch(voter: Voter) -> None:
    voter.sees(1)
    voter.grants()
    assert "which node 1 leads" in voter.explanations


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(
    "why",
    ["silent", "no response yet", "resigned", "refused", "broken", "diverges", "seeks", "restarted", "epoch", "itself"],
)
def test_follower_whose_leader_may_be_gone_may_grant_a_pre_vote(voter: Voter, why: str) -> None:
    voter.sees(0)
    voter.fetches()
    if why not in ("no response yet", "seeks"):
        voter.gets()
    if why == "silent":
        voter.at_us += FETCH_MS * MS
    elif why == "resigned":
        body = build_end_quorum_epoch_request("c", 0, 5, (2, 1))
        voter.happens(Request(1, 1, END_QUORUM_EPOCH, 1, "", body, Tag(END_QUORUM_EPOCH, 1, "")))
    elif why == "refused":
        error = build_fetch_response(ErrorCode.not_leader_or_follower, 2, 6, 10, 0, VALID, b"")
        voter.happens(PeerReply(0, Channel.RAFT, 1, error))
    elif why == "broken":
        voter.happens(PeerDown(0, Channel.RAFT))
    elif why == "diverges":
        voter.gets(Diverging(OffsetAndEpoch(15, 4)))
    elif why == "seeks":  # The response to its earlier fetch comes late.
        voter.sends(VOTE, build_vote_request(VoteRequest("c", 1, 1, 5, OffsetAndEpoch(20, 5), True)))
        voter.gets()
    elif why == "restarted":
        voter.happens(None)
    elif why == "epoch":
        voter.sees(-1, epoch=6)
    voter.grants(0 if why == "itself" else 2, epoch=6 if why == "epoch" else 5)
    assert not voter.explanations
