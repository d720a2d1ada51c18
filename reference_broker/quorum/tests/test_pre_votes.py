"""Granting pre-votes, and the effects of their responses (Kafka's KafkaRaftClientPreVoteTest, KIP-996)."""

import pytest

from reference_broker.quorum.messages import RaftResponse, VoteRequest, build_vote_request, build_vote_response
from reference_broker.quorum.raft_handlers import handle_vote
from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests import quorum_roles as roles
from reference_broker.quorum.tests.quorum_alone import CLUSTER, Alone, Sent, granted
from reference_broker.quorum.values import NO_NODE, OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode

LONG_LOG = OffsetAndEpoch(9, 4)


def pre_vote(node: Alone, candidate: int, end: OffsetAndEpoch = LONG_LOG, epochs: int = 0) -> RaftResponse:
    (response,) = node.request_vote(candidate, node.quorum.epoch + epochs, end, pre_vote=True)
    return response


def election_of(node: Alone) -> tuple[Role, int, int, int]:
    quorum = node.quorum
    return quorum.role, quorum.epoch, quorum.leader_id, quorum.voted_id


# Granting


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsCandidate",
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsUnattachedVoted",
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsResigned",
    "KafkaRaftClientPreVoteTest.testRejectPreVoteIfRemoteLogIsNotUpToDate",
    "UnattachedStateTest.testCanGrantVoteWithVotedKey",
    "ProspectiveStateTest.testGrantVote",
    "ProspectiveStateTest.testGrantVoteWithVotedKey",
    "ProspectiveStateTest.testGrantVoteWithLeader",
    "CandidateStateTest.testGrantVote",
)
@pytest.mark.parametrize(
    "state", [each for each in roles.EVERY if each not in (roles.leader, roles.follower, roles.voted_follower)]
)
def test_pre_vote_without_live_leader_is_granted_by_log_length(state: roles.State) -> None:
    node = state()
    before = election_of(node)
    if state is roles.resigned:
        long_log = OffsetAndEpoch(9, 6)
    else:
        long_log = LONG_LOG
    for candidate in (1, 1, 2):
        response = pre_vote(node, candidate, long_log)
        assert response == RaftResponse(ErrorCode.none, before[2], before[1], True)
    for short in (OffsetAndEpoch(1, 4), OffsetAndEpoch(9, 3)):
        assert pre_vote(node, 1, short).granted is False
    assert election_of(node) == before


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsFollower",
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsFollowerWithVotedCandidate",
    "KafkaRaftClientPreVoteTest.testFollowerGrantsPreVoteIfHasNotFetchedYet",
    "FollowerStateTest.testPreVoteIfHasNotFetchedFromLeaderYet",
    "FollowerStateTest.testPreVoteAfterSuccessfulFetchFromLeader",
)
@pytest.mark.parametrize("state", [roles.follower, roles.voted_follower])
def test_follower_grants_pre_votes_until_first_fetch_from_leader(state: roles.State) -> None:
    node = state()
    before = election_of(node)
    assert pre_vote(node, 2) == RaftResponse(ErrorCode.none, 1, 5, True)
    node.sent[:] = [each for each in node.sent if each.peer == 1][-1:]
    node.respond_to_fetch()
    assert pre_vote(node, 2) == RaftResponse(ErrorCode.none, 1, 5, False)
    assert election_of(node) == before


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testLeaderRejectPreVoteRequestOnSameEpoch", "LeaderStateTest.testGrantVote"
)
def test_leader_rejects_pre_votes() -> None:
    node = roles.leader()
    assert pre_vote(node, 1, OffsetAndEpoch(9, 6)) == RaftResponse(ErrorCode.none, 0, 6, False)
    assert node.quorum.is_leader


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsFollower",
    "KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsCandidate",
)
@pytest.mark.parametrize("state", roles.EVERY)
def test_pre_vote_of_newer_epoch_ends_every_role_without_vote(state: roles.State) -> None:
    node = state()
    epoch = node.quorum.epoch + 1
    assert pre_vote(node, 2, OffsetAndEpoch(9, epoch), epochs=1) == RaftResponse(ErrorCode.none, NO_NODE, epoch, True)
    assert election_of(node) == (Role.UNATTACHED, epoch, NO_NODE, NO_NODE)


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testHandleInvalidPreVoteRequestWithOlderEpoch",
    "KafkaRaftClientPreVoteTest.testPreVoteRequestClusterIdValidation",
    "KafkaRaftClientPreVoteTest.testInvalidVoterReplicaPreVoteRequest",
    "KafkaRaftClientPreVoteTest.testInvalidPreVoteRequest",
)
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"epoch": 4}, ErrorCode.fenced_leader_epoch),
        ({"cluster_id": ""}, ErrorCode.inconsistent_cluster_id),
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"voter_id": 2}, ErrorCode.invalid_voter_key),
        ({"end": OffsetAndEpoch(-5, 0)}, ErrorCode.invalid_request),
        ({"end": OffsetAndEpoch(0, -1)}, ErrorCode.invalid_request),
        ({"end": OffsetAndEpoch(0, 6)}, ErrorCode.invalid_request),
        ({"end": OffsetAndEpoch(9, 5)}, ErrorCode.none),
    ],
)
def test_pre_votes_are_validated_like_votes(changed: dict[str, object], error: Error) -> None:
    """Only the epoch of the log may be that of the request, because no epoch starts."""
    node = roles.follower()
    before = election_of(node)
    requests: dict[str, object] = {"candidate": 2, "epoch": 5, "end": LONG_LOG, "pre_vote": True, **changed}
    (response,) = node.request_vote(**requests)  # type: ignore[arg-type]
    assert (response.error, response.granted) == (error, error is ErrorCode.none)
    assert election_of(node) == before


# Effects of the responses


def pre_votes_of(node: Alone) -> list[Sent]:
    """Return the pre-votes in flight, one to each other voter."""
    requests = [request for request in node.take_requests(ApiKey.VOTE) if request.partition.pre_vote]
    assert [request.peer for request in requests] == [1, 2]
    return requests


@pytest.mark.clause(
    "KafkaRaftClientTest.testVoteResponseIgnoredAfterBecomingFollower",
    "KafkaRaftClientPreVoteTest.testPreVoteResponseIgnoredAfterBecomingFollower",
)
def test_pre_vote_responses_are_ignored_by_follower() -> None:
    node = roles.prospective()
    requests = pre_votes_of(node)
    node.begin(2, 5)
    for request in requests:
        request.replied(granted(request, True))
    assert election_of(node) == (Role.FOLLOWER, 5, 2, NO_NODE)


@pytest.mark.clause("KafkaRaftClientPreVoteTest.testProspectiveWithoutLeaderTransitionsToFollower")
def test_granted_pre_vote_with_leader_makes_follower() -> None:
    node = roles.prospective()
    pre_votes_of(node)[0].replied(build_vote_response(RaftResponse(ErrorCode.none, 2, 5, True)))
    assert election_of(node) == (Role.FOLLOWER, 5, 2, NO_NODE)


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testProspectiveTransitionsToUnattachedOnElectionFailure",
    "ProspectiveStateTest.testElectionTimeout",
)
def test_losing_prospective_without_leader_becomes_unattached() -> None:
    node = roles.prospective()
    pre_votes_of(node)
    node.pass_ms(2000)
    assert node.quorum.role is Role.UNATTACHED, "no response within the time of an election"
    roles.seeking(node)
    for each in pre_votes_of(node):
        each.replied(granted(each, False))
    assert node.quorum.role is Role.UNATTACHED
    roles.seeking(node)
    assert node.quorum.epoch == 5
    pre_votes_of(node)


@pytest.mark.clause("KafkaRaftClientPreVoteTest.testProspectiveWithLeaderTransitionsToFollower")
def test_losing_prospective_with_leader_becomes_follower() -> None:
    node = roles.prospective_with_leader()
    pre_votes_of(node)
    node.pass_ms(1999)
    assert node.quorum.role is Role.FOLLOWER
    assert [request.peer for request in node.take_requests(ApiKey.FETCH)] == [1]
    roles.seeking(node)
    for each in pre_votes_of(node):
        each.replied(granted(each, False))
    assert election_of(node) == (Role.FOLLOWER, 5, 1, NO_NODE)
    assert [request.peer for request in node.take_requests(ApiKey.FETCH)] == [1]
    roles.seeking(node)
    pre_votes_of(node)[0].replied(build_vote_response(RaftResponse(ErrorCode.fenced_leader_epoch, 2, 6)))
    assert election_of(node) == (Role.FOLLOWER, 6, 2, NO_NODE)


@pytest.mark.clause("KafkaRaftClientPreVoteTest.testPreVoteRequestTimeout")
def test_pre_vote_without_response_is_retried() -> None:
    node = roles.prospective()
    first, second = pre_votes_of(node)
    first.failed()
    second.failed()
    node.pass_ms(50)
    again, _ = pre_votes_of(node)
    again.replied(granted(again, True))
    assert election_of(node) == (Role.CANDIDATE, 6, NO_NODE, 0)


# Counting


def first_election(voters: int) -> Alone:
    """Return node 0 with its first pre-vote requests, in epoch 0."""
    node = Alone(voters).started()
    node.pass_ms(100)
    assert node.quorum.role is (Role.LEADER if voters == 1 else Role.PROSPECTIVE)
    return node


def respond(node: Alone, *grants: bool) -> None:
    for each, is_granted in zip(node.take_requests(ApiKey.VOTE), grants, strict=False):
        each.replied(granted(each, is_granted))


@pytest.mark.clause("ProspectiveStateTest.testSingleNodeQuorum", "CandidateStateTest.testSingleNodeQuorum")
def test_quorum_of_one_needs_no_pre_votes() -> None:
    node = first_election(1)
    assert election_of(node) == (Role.LEADER, 1, 0, 0)


@pytest.mark.clause(
    "ProspectiveStateTest.testTwoNodeQuorumVoteRejected",
    "ProspectiveStateTest.testTwoNodeQuorumVoteGranted",
    "ProspectiveStateTest.testThreeNodeQuorumVoteGranted",
    "ProspectiveStateTest.testThreeNodeQuorumVoteRejected",
    "EpochElectionTest.testStateOnInitialization",
    "EpochElectionTest.testRecordGrantedVote",
    "EpochElectionTest.testRecordRejectedVote",
)
@pytest.mark.parametrize(
    ("voters", "grants", "role"),
    [
        (2, (False,), Role.UNATTACHED),
        (2, (True,), Role.CANDIDATE),
        (3, (), Role.PROSPECTIVE),
        (3, (False,), Role.PROSPECTIVE),
        (3, (False, False), Role.UNATTACHED),
        (3, (False, True), Role.CANDIDATE),
        (3, (True,), Role.CANDIDATE),
        (3, (True, False), Role.CANDIDATE),
        (5, (True,), Role.PROSPECTIVE),
        (5, (True, False, False, True), Role.CANDIDATE),
        (5, (True, False, False, False), Role.UNATTACHED),
    ],
)
def test_majority_of_pre_votes_makes_candidate(voters: int, grants: tuple[bool, ...], role: Role) -> None:
    node = first_election(voters)
    respond(node, *grants)
    assert node.quorum.role is role


@pytest.mark.clause(
    "KafkaRaftClientTest.testInitializeAsCandidateAndBecomeLeaderQuorumOfThree",
    "QuorumStateTest.testCandidateToLeaderWithoutGrantedVote",
    "CandidateStateTest.testTwoNodeQuorumVoteRejected",
    "CandidateStateTest.testTwoNodeQuorumVoteGranted",
    "CandidateStateTest.testThreeNodeQuorumVoteGranted",
    "CandidateStateTest.testThreeNodeQuorumVoteRejected",
    "EpochElectionTest.testRecordGrantedVote",
    "EpochElectionTest.testRecordRejectedVote",
)
@pytest.mark.parametrize(
    ("voters", "grants", "role"),
    [
        (2, (False,), Role.PROSPECTIVE),
        (2, (True,), Role.LEADER),
        (3, (), Role.CANDIDATE),
        (3, (False, False), Role.PROSPECTIVE),
        (3, (False, True), Role.LEADER),
        (3, (True,), Role.LEADER),
        (3, (True, False), Role.LEADER),
        (5, (True, False, False, False), Role.PROSPECTIVE),
    ],
)
def test_majority_of_votes_makes_leader(voters: int, grants: tuple[bool, ...], role: Role) -> None:
    """A candidate that has lost requests pre-votes after a delay."""
    node = first_election(voters)
    respond(node, *[True] * (voters // 2))
    assert node.quorum.role is Role.CANDIDATE
    respond(node, *grants)
    node.pass_ms(200)
    assert election_of(node)[:2] == (role, 1)
    assert node.quorum.voted_id == 0, "it remembers its vote for itself"


@pytest.mark.clause(
    "ProspectiveStateTest.testCannotGrantOrRejectNonVoters", "CandidateStateTest.testCannotGrantOrRejectNonVoters"
)
@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_vote_of_non_voter_is_rejected(is_pre_vote: bool) -> None:
    node = roles.candidate()
    assert {request.peer for request in node.take_requests(ApiKey.VOTE)} == {1, 2}
    body = build_vote_request(VoteRequest(CLUSTER, 0, 7, 6, OffsetAndEpoch(9, 5), is_pre_vote))
    responses: list[object] = []
    handle_vote(node.quorum, body, responses.append)
    assert responses == [build_vote_response(RaftResponse(ErrorCode.inconsistent_voter_set, NO_NODE, 6))]
    assert node.quorum.role is Role.CANDIDATE
