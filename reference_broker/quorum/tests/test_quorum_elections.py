"""Votes and epochs: responses and requests of one node, step by step (as KafkaRaftClientTest)."""

from dataclasses import replace

import pytest
from kio.schema.vote.v2.response import VoteResponse

from reference_broker.quorum.messages import (
    RaftResponse,
    VoteRequest,
    build_begin_quorum_epoch_response,
    build_vote_request,
    build_vote_response,
)
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.raft_handlers import handle_vote
from reference_broker.quorum.roles import START_DELAY_US, Role
from reference_broker.quorum.tests.quorum_alone import Alone, batch, durable_state, granted
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode

STATE = "__cluster_metadata-0/quorum-state"
NOTHING = OffsetAndEpoch(0, 0)
START_MS = START_DELAY_US[1] // 1000
"""A node without a leader requests pre-votes within this time of its start."""
FETCH_TIMEOUT_MS = 2_000
ELECTION_TIMEOUT_MS = 1_000
MAX_DELAY_MS = 50
"""before a follower leaves a leader that does not respond"""
SILENCE_MS = 3_000
"""A leader resigns if no majority has fetched for so long (1.5 times the fetch timeout)."""


def state(node: Alone) -> tuple[Role, int, int]:
    """Return the node's role, epoch and leader (-1 if it knows none)."""
    return node.quorum.role, node.quorum.epoch, node.quorum.leader_id


def prospective() -> Alone:
    """Return a new node of epoch 0 that has requested pre-votes of voters 1 and 2."""
    node = Alone().started()
    node.pass_ms(START_MS)
    return node


def candidate() -> Alone:
    """Return a node that has requested votes of voters 1 and 2 for epoch 1."""
    node = prospective()
    vote_in_all(node, is_granted=True)
    return node


def vote_in_all(node: Alone, *, is_granted: bool, leader: int = -1) -> None:
    """Let all voters respond to the votes that the node has requested."""
    for request in node.take_requests(ApiKey.VOTE):
        request.replied(granted(request, is_granted, leader))


def requested_votes(node: Alone) -> list[tuple[int, bool, int]]:
    """Return the voter, whether it is a pre-vote, and the epoch of each request for a vote since the last call."""
    return [
        (request.peer, request.partition.pre_vote, request.partition.replica_epoch)
        for request in node.take_requests(ApiKey.VOTE)
    ]


# Voting


@pytest.mark.clause("UnattachedStateTest.testGrantVoteWithoutVotedKey")
@pytest.mark.parametrize(
    ("end", "is_granted"),
    [
        (OffsetAndEpoch(1, 4), False),
        (OffsetAndEpoch(9, 3), False),
        (OffsetAndEpoch(2, 4), True),
        (OffsetAndEpoch(1, 5), True),
    ],
)
def test_vote_is_granted_only_for_log_at_least_as_long(end: OffsetAndEpoch, is_granted: bool) -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 4, count=2))
    assert node.request_vote(2, 6, end) == [RaftResponse(ErrorCode.none, -1, 6, is_granted)]
    assert node.quorum.role is Role.UNATTACHED


@pytest.mark.clause(
    "KafkaRaftClientTest.testInvalidVoterReplicaVoteRequest", "KafkaRaftClientTest.testInvalidVoteRequest"
)
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"epoch": 4}, ErrorCode.fenced_leader_epoch),
        ({"candidate": 7}, ErrorCode.inconsistent_voter_set),
        ({"candidate": -1}, ErrorCode.invalid_request),
        ({"voter_id": 2}, ErrorCode.invalid_voter_key),
        ({"end": OffsetAndEpoch(-1, 0)}, ErrorCode.invalid_request),
        ({"end": OffsetAndEpoch(0, -1)}, ErrorCode.invalid_request),
        ({"end": OffsetAndEpoch(0, 6)}, ErrorCode.invalid_request),
    ],
)
def test_vote_errors_are_in_order_of_kafka(changed: dict[str, object], error: Error) -> None:
    node = Alone().following(1, 5)
    votes: dict[str, object] = {"candidate": 2, "epoch": 6, **changed}
    response = node.request_vote(**votes)[0]  # type: ignore[arg-type]
    assert (response.error, response.granted) == (error, False)
    assert node.quorum.epoch == 5


@pytest.mark.parametrize("partitions", [(), (0, 0), ((), (0,)), ((0,), ())])
def test_vote_for_other_partitions_is_rejected(partitions: tuple[object, ...]) -> None:
    body = build_vote_request(VoteRequest("cluster", -1, 2, 6, NOTHING, False))
    ((partition,),) = (topic.partitions for topic in body.topics)
    topics = tuple(
        replace(body.topics[0], partitions=(partition,) * (topic_partition != ())) for topic_partition in partitions
    )
    responses: list[VoteResponse] = []
    handle_vote(Alone().following(1, 5).quorum, replace(body, topics=topics), responses.append)  # type: ignore[arg-type]
    assert [response.error_code for response in responses] == [ErrorCode.invalid_request]


def test_observer_does_not_vote() -> None:
    node = Alone(3, node_id=4).started()
    assert node.request_vote(1, 3)[0].error is ErrorCode.inconsistent_voter_set
    node.pass_ms(20_000)
    assert not node.take_requests(ApiKey.VOTE)


# Pre-vote


def test_pre_votes_are_granted_to_several_candidates() -> None:
    node = Alone(auto_sync=False)
    node.auto_sync = True
    node.started()
    node.auto_sync = False
    assert node.request_vote(1, 0, pre_vote=True)[0].granted
    assert node.request_vote(2, 0, pre_vote=True)[0].granted
    assert not node.syncs


def test_follower_in_contact_with_leader_rejects_pre_vote() -> None:
    node = Alone().following(1, 5)
    assert node.request_vote(2, 5, pre_vote=True)[0].granted, "no contact with the leader yet"
    node.respond_to_fetch()
    assert node.request_vote(2, 5, pre_vote=True) == [RaftResponse(ErrorCode.none, 1, 5, False)]
    assert node.request_vote(1, 5, pre_vote=True)[0].granted, "the leader itself requests it: it leads no more"


@pytest.mark.clause("KafkaRaftClientTest.testLeaderIgnoreVoteRequestOnSameEpoch", "LeaderStateTest.testGrantVote")
def test_leader_rejects_every_vote_of_its_epoch() -> None:
    node = Alone().started().elect(1)
    end = OffsetAndEpoch(9, 0)
    assert node.request_vote(2, node.quorum.epoch, end, pre_vote=True)[0].granted is False
    assert node.request_vote(2, node.quorum.epoch, end)[0].granted is False
    assert node.quorum.is_leader


@pytest.mark.clause("KafkaRaftClientTest.testInitializeAsUnattachedAndBecomeLeader")
def test_pre_vote_precedes_new_epoch() -> None:
    node = prospective()
    assert requested_votes(node) == [(1, True, 0), (2, True, 0)]
    assert state(node) == (Role.PROSPECTIVE, 0, -1)


@pytest.mark.clause("KafkaRaftClientTest.testInitializeAsUnattachedAndBecomeLeader")
def test_majority_of_pre_votes_begins_new_epoch() -> None:
    node = prospective()
    first, _ = node.take_requests(ApiKey.VOTE)
    first.replied(granted(first, True))
    assert requested_votes(node) == [(1, False, 1), (2, False, 1)]
    assert durable_state(node) == (1, -1, 0)


def test_rejected_prospective_returns_to_leader() -> None:
    node = Alone().following(1, 5)
    node.pass_ms(FETCH_TIMEOUT_MS + MAX_DELAY_MS)
    assert node.quorum.role is Role.PROSPECTIVE

    vote_in_all(node, is_granted=False, leader=1)
    assert state(node) == (Role.FOLLOWER, 5, 1)


def test_prospective_retries_unreachable_voters() -> None:
    node = prospective()
    for request in node.take_requests(ApiKey.VOTE):
        request.failed()
    node.pass_ms(60)
    assert [voter for voter, _, _ in requested_votes(node)] == [1, 2]


@pytest.mark.clause("KafkaRaftClientTest.testCandidateWaitsRestOfElectionTimeoutAfterElectionLoss")
def test_candidate_without_majority_retries_in_new_epoch() -> None:
    node = candidate()
    vote_in_all(node, is_granted=False)
    assert state(node) == (Role.CANDIDATE, 1, -1)

    node.pass_ms(ELECTION_TIMEOUT_MS)
    assert node.quorum.role is Role.PROSPECTIVE

    vote_in_all(node, is_granted=True)
    assert state(node) == (Role.CANDIDATE, 2, -1)


# Responses belong to the role that sent the requests


@pytest.mark.clause("KafkaRaftClientTest.testVoteResponseIgnoredAfterBecomingFollower")
def test_late_vote_is_ignored() -> None:
    node = candidate()
    late, _ = node.take_requests(ApiKey.VOTE)
    node.request_vote(2, 3, OffsetAndEpoch(5, 2))
    late.replied(granted(late, True))
    assert state(node) == (Role.UNATTACHED, 3, -1)


def test_late_pre_vote_does_not_count_as_vote() -> None:
    node = prospective()
    first, second = node.take_requests(ApiKey.VOTE)
    first.replied(granted(first, True))
    second.replied(granted(second, True))
    assert node.quorum.role is Role.CANDIDATE


def test_late_failure_is_ignored() -> None:
    node = Alone().following(1, 5)
    (request,) = node.take_requests(ApiKey.FETCH)
    node.begin(2, 6)
    node.sent.clear()
    request.failed()
    node.pass_ms(20)
    assert (node.quorum.role, node.quorum.leader_id) == (Role.FOLLOWER, 2)
    assert not node.take_requests(ApiKey.FETCH)


def fenced_by(leader: int, epoch: int) -> object:
    """Return the response to a vote of a voter that knows a leader of a newer epoch."""
    return build_vote_response(RaftResponse(ErrorCode.fenced_leader_epoch, leader, epoch))


def test_response_with_newer_epoch_ends_role() -> None:
    node = prospective()
    first, _ = node.take_requests(ApiKey.VOTE)
    first.replied(fenced_by(leader=2, epoch=8))
    assert state(node) == (Role.FOLLOWER, 8, 2)


def test_response_of_another_api_is_ignored() -> None:
    node = prospective()
    first, _ = node.take_requests(ApiKey.VOTE)
    first.replied(build_begin_quorum_epoch_response(RaftResponse(ErrorCode.fenced_leader_epoch, 2, 8)))
    assert state(node) == (Role.PROSPECTIVE, 0, -1)


def test_wiped_leader_does_not_follow_itself() -> None:
    node = prospective()
    node.take_requests(ApiKey.VOTE)[0].replied(fenced_by(leader=0, epoch=8))
    assert (node.quorum.role, node.quorum.epoch, node.quorum.voted_id) == (Role.UNATTACHED, 8, 0)


# BeginQuorumEpoch and EndQuorumEpoch


@pytest.mark.clause("KafkaRaftClientTest.testHandleBeginQuorumRequest")
def test_begin_quorum_epoch_makes_follower() -> None:
    node = Alone().started()
    assert node.begin(1, 3) == RaftResponse(ErrorCode.none, 1, 3)
    assert node.notifications[-1] == ("leader", 1, 3)


@pytest.mark.clause("KafkaRaftClientTest.testInvalidVoterReplicaBeginQuorumEpochRequest")
@pytest.mark.parametrize(
    ("leader", "epoch", "voter_id", "error"),
    [
        (1, 2, -1, ErrorCode.fenced_leader_epoch),
        pytest.param(2, 3, -1, ErrorCode.invalid_request, id="two leaders in one epoch"),
        (7, 4, -1, ErrorCode.inconsistent_voter_set),
        (1, 3, 2, ErrorCode.invalid_voter_key),
    ],
)
def test_begin_quorum_epoch_that_does_not_fit_is_rejected(
    leader: int, epoch: int, voter_id: int, error: ErrorCode
) -> None:
    node = Alone().following(1, 3)
    assert node.begin(leader, epoch, voter_id).error is error
    assert state(node) == (Role.FOLLOWER, 3, 1)


def test_begin_quorum_epoch_resets_fetch_timeout() -> None:
    node = Alone().following(1, 5)
    for _ in range(5):
        node.pass_ms(FETCH_TIMEOUT_MS - 500)
        node.begin(1, 5)
    assert node.quorum.role is Role.FOLLOWER

    node.pass_ms(FETCH_TIMEOUT_MS + MAX_DELAY_MS)
    assert node.quorum.role is Role.PROSPECTIVE  # type: ignore[comparison-overlap]  # It changed.


@pytest.mark.clause("KafkaRaftClientTest.testInitializeAsUnattachedAndBecomeLeader")
def test_leader_repeats_begin_quorum_epoch_until_acknowledged() -> None:
    node = Alone().started().elect(1)
    assert [request.peer for request in node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH)] == [1, 2]
    epoch = node.quorum.epoch

    node.pass_ms(900)
    node.fetch(1, 0, 0)
    assert not node.take_requests(ApiKey.BEGIN_QUORUM_EPOCH), "both requests are still in flight"

    node.pass_ms(1000)
    assert node.quorum.epoch == epoch


@pytest.mark.clause("KafkaRaftClientTest.testHandleEndQuorumRequest")
@pytest.mark.parametrize(("node_id", "is_at_once"), [(0, True), (2, False)])
def test_first_successor_starts_election_at_once(node_id: int, is_at_once: bool) -> None:
    node = Alone(node_id=node_id).following(1, 5)
    node.respond_to_fetch()
    assert node.end(1, 5, 0, 2) == RaftResponse(ErrorCode.none, 1, 5)
    node.pass_ms(0)
    assert (node.quorum.role is Role.PROSPECTIVE) is is_at_once


def test_second_successor_grants_pre_vote_of_the_first() -> None:
    node = Alone(node_id=2).following(1, 5)
    node.respond_to_fetch()
    node.end(1, 5, 0, 2)
    assert node.request_vote(0, 5, pre_vote=True)[0].granted


class ShutDownLeader:
    """The leader of epoch 1, which has begun to shut down. Of voters 1 to 3, voter 3 has its whole log and 1 a part."""

    def __init__(self) -> None:
        self.node = Alone(4).started().elect(1, 2)
        self.node.append(3)
        self.node.fetch(1, 1, self.node.quorum.epoch)
        self.node.fetch(3, 3, self.node.quorum.epoch)
        self.node.sent.clear()
        self.ended: list[bool] = []
        self.node.quorum.shut_down(lambda: self.ended.append(True))


@pytest.mark.clause(
    "KafkaRaftClientTest.testEndQuorumEpochSentBasedOnFetchOffset",
    "LeaderStateTest.testGetNonLeaderFollowersByFetchOffsetDescending",
)
def test_shutdown_of_leader_names_successors_by_log_length() -> None:
    node = ShutDownLeader().node
    ends = node.take_requests(ApiKey.END_QUORUM_EPOCH)
    assert [end.peer for end in ends] == [1, 2, 3]
    assert [preferred_candidate.candidate_id for preferred_candidate in ends[0].partition.preferred_candidates] == [
        3,
        1,
        2,
    ]
    assert node.notifications[-2:] == [("lost", 1), ("leader", -1, 1)]


@pytest.mark.clause(
    "KafkaRaftClientTest.testGrantVotesWhenShuttingDown", "KafkaRaftClientTest.testLeaderGracefulShutdown"
)
def test_shutdown_of_leader_completes_when_it_has_helped_to_elect_another() -> None:
    leader = ShutDownLeader()
    assert leader.node.request_vote(3, 2, OffsetAndEpoch(4, 1))[0].granted
    assert leader.ended == [True], "another epoch has started without it"
    assert leader.node.request_vote(1, 3)[0].error is ErrorCode.broker_not_available


@pytest.mark.clause("KafkaRaftClientTest.testLeaderGracefulShutdownTimeout")
def test_shutdown_of_leader_times_out() -> None:
    node = Alone().started().elect(1)
    done: list[bool] = []
    node.quorum.shut_down(lambda: done.append(True))
    node.pass_ms(1999)
    assert not done

    node.pass_ms(1)
    assert done == [True]


def test_shutdown_of_follower_completes_at_once() -> None:
    done: list[bool] = []
    node = Alone().following(1, 5)
    node.quorum.shut_down(lambda: done.append(True))
    node.pass_ms(20_000)
    assert done == [True]
    assert not node.take_requests(ApiKey.VOTE)


# Check quorum


def test_leader_stays_while_a_majority_fetches() -> None:
    node = Alone(5).started().elect(1, 2)
    for _ in range(4):
        node.pass_ms(SILENCE_MS - 100)
        node.fetch(3, 0, 0)
        node.quorum.note_contact(4)
    assert node.quorum.is_leader


@pytest.mark.clause(
    "KafkaRaftClientTest.testLeaderShouldResignLeadershipIfNotGetFetchRequestFromMajorityVoters",
    "LeaderStateTest.testCheckQuorum",
)
def test_leader_resigns_when_majority_is_silent() -> None:
    node = Alone(5).started().elect(1, 2)
    epoch = node.quorum.epoch

    node.pass_ms(SILENCE_MS - 100)
    node.fetch(3, 0, 0)
    node.quorum.note_contact(4)
    node.fetch(9, 0, 0)  # An observer does not count.
    node.pass_ms(SILENCE_MS)
    assert state(node) == (Role.RESIGNED, epoch, -1)
    assert ("leader_resigned", {"epoch": epoch, "why": "a majority of voters was silent"}) in node.notes
    assert {request.peer for request in node.take_requests(ApiKey.END_QUORUM_EPOCH)} == {1, 2, 3, 4}

    node.pass_ms(FETCH_TIMEOUT_MS)
    assert state(node) == (Role.PROSPECTIVE, epoch, -1)


def test_leadership_won_and_lost_are_reported() -> None:
    node = Alone().started().elect(1)
    assert node.notifications[-1] == ("won", 1, 0)
    node.request_vote(2, 9, OffsetAndEpoch(9, 8))
    assert node.notifications[-2:] == [("lost", 1), ("leader", -1, 9)]


@pytest.mark.clause("KafkaRaftClientTest.testInitializeAsUnattachedAndBecomeLeader")
def test_first_record_of_epoch_has_voters() -> None:
    """LeaderChangeMessage 0: version, leader ID, voters, voters that granted their vote, tagged fields."""
    node = Alone().started().elect(1)
    data = node.log.read(0, 1 << 20, 1)
    assert isinstance(node.log, MetadataLog)
    assert [batch.values for batch in node.log.batches(0, 1)] == [()]
    voters = "04" + "0000000000" + "0000000100" + "0000000200"
    assert data.endswith(bytes.fromhex("0000" + "00000000" + voters + voters + "00" + "00"))
