"""Transitions of roles, for every role and every input that may end it (Kafka's QuorumStateTest)."""

from collections.abc import Callable

import pytest

from reference_broker.quorum.messages import RaftResponse
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.roles import Role, may_follow
from reference_broker.quorum.tests.quorum_alone import Alone, durable_state, granted
from reference_broker.quorum.tests.quorum_roles import (
    EVERY,
    ROLES,
    SHORT_LOG,
    WITHOUT_LEADER,
    State,
    candidate,
    follower,
    granted_by_one,
    leader,
    prospective,
    prospective_with_leader,
    prospective_with_leader_and_vote,
    resigned,
    seeking,
    unattached,
    voted,
    voted_follower,
    voted_prospective,
)
from reference_broker.quorum.values import NO_NODE, OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def known(node: Alone) -> tuple[Role, int, int, int]:
    """Return the role, the epoch, the leader and the vote."""
    quorum = node.quorum
    return quorum.role, quorum.epoch, quorum.leader_id, quorum.voted_id


@pytest.mark.clause("ProspectiveStateTest.testElectionState")
@pytest.mark.parametrize("state", EVERY)
def test_roles_of_fixtures(state: State) -> None:
    node = state()
    assert node.quorum.role is ROLES[state]
    assert (node.quorum.leader_id == 1) is (state in EVERY[5:9])
    assert (node.quorum.voted_id == 2) is ("voted" in state.__name__ or "vote" in state.__name__)


# Newer epochs


@pytest.mark.clause(
    "QuorumStateTest.testUnattachedToUnattached",
    "QuorumStateTest.testUnattachedVotedToUnattachedHigherEpoch",
    "QuorumStateTest.testFollowerToUnattachedHigherEpoch",
    "QuorumStateTest.testFollowerVotedToUnattachedHigherEpoch",
    "QuorumStateTest.testProspectiveToUnattachedInHigherEpoch",
    "QuorumStateTest.testProspectiveWithLeaderToUnattachedInHigherEpoch",
    "QuorumStateTest.testCandidateToUnattachedHigherEpoch",
    "QuorumStateTest.testLeaderToUnattachedHigherEpoch",
    "QuorumStateTest.testResignedToUnattachedInHigherEpoch",
)
@pytest.mark.parametrize("state", EVERY)
def test_newer_epoch_without_vote_makes_unattached(state: State) -> None:
    node = state()
    epoch = node.quorum.epoch + 1
    assert node.request_vote(1, epoch, SHORT_LOG) == [RaftResponse(ErrorCode.none, NO_NODE, epoch, False)]
    assert known(node) == (Role.UNATTACHED, epoch, NO_NODE, NO_NODE)
    assert durable_state(node) == (epoch, NO_NODE, NO_NODE)


@pytest.mark.clause(
    "KafkaRaftClientTest.testHandleValidVoteRequestAsFollower",
    "KafkaRaftClientTest.testHandleVoteRequestAsProspective",
    "KafkaRaftClientTest.testHandleVoteRequestAsProspectiveWithVotedCandidate",
    "QuorumStateTest.testUnattachedToUnattachedVotedHigherEpoch",
    "QuorumStateTest.testUnattachedVotedToUnattachedVoted",
    "QuorumStateTest.testFollowerToUnattachedVotedHigherEpoch",
)
@pytest.mark.parametrize("state", EVERY)
def test_vote_in_newer_epoch_makes_unattached_voted(state: State) -> None:
    node = state()
    epoch = node.quorum.epoch + 1
    assert node.request_vote(1, epoch, OffsetAndEpoch(9, epoch - 1)) == [
        RaftResponse(ErrorCode.none, NO_NODE, epoch, True)
    ]
    assert known(node) == (Role.UNATTACHED, epoch, NO_NODE, 1)
    assert durable_state(node) == (epoch, NO_NODE, 1)
    assert node.request_vote(2, epoch, OffsetAndEpoch(9, epoch - 1))[0].granted is False


@pytest.mark.clause(
    "KafkaRaftClientTest.testHandleBeginQuorumResponse",
    "QuorumStateTest.testUnattachedToFollowerHigherEpoch",
    "QuorumStateTest.testUnattachedVotedToFollowerHigherEpoch",
    "QuorumStateTest.testFollowerToFollowerHigherEpoch",
    "QuorumStateTest.testFollowerVotedToFollowerHigherEpoch",
    "QuorumStateTest.testProspectiveToFollowerHigherEpoch",
    "QuorumStateTest.testProspectiveWithLeaderToFollowerHigherEpoch",
    "QuorumStateTest.testCandidateToFollowerHigherEpoch",
    "QuorumStateTest.testLeaderToFollowerHigherEpoch",
)
@pytest.mark.parametrize("state", EVERY)
def test_leader_of_newer_epoch_makes_follower(state: State) -> None:
    node = state()
    epoch = node.quorum.epoch + 1
    assert node.begin(2, epoch) == RaftResponse(ErrorCode.none, 2, epoch)
    assert known(node) == (Role.FOLLOWER, epoch, 2, NO_NODE)
    assert durable_state(node) == (epoch, 2, NO_NODE)


# The same epoch


@pytest.mark.clause(
    "KafkaRaftClientPreVoteTest.testProspectiveReceivesBeginQuorumRequest",
    "QuorumStateTest.testUnattachedToFollowerSameEpoch",
    "QuorumStateTest.testUnattachedVotedToFollowerSameEpoch",
    "QuorumStateTest.testProspectiveToFollowerSameEpoch",
    "QuorumStateTest.testProspectiveVotedToAndFromFollowerSameEpoch",
    "QuorumStateTest.testCandidateToFollowerSameEpoch",
)
@pytest.mark.parametrize("state", WITHOUT_LEADER)
def test_node_without_leader_follows_one_of_its_epoch_and_keeps_vote(state: State) -> None:
    node = state()
    epoch, voted_id = node.quorum.epoch, node.quorum.voted_id
    assert node.begin(1, epoch) == RaftResponse(ErrorCode.none, 1, epoch)
    assert known(node) == (Role.FOLLOWER, epoch, 1, voted_id)
    assert durable_state(node) == (epoch, 1, voted_id)


@pytest.mark.clause("QuorumStateTest.testProspectiveWithLeaderToFollowerSameEpoch")
@pytest.mark.parametrize("state", [prospective_with_leader, prospective_with_leader_and_vote])
def test_prospective_follows_lost_leader_again(state: State) -> None:
    node = state()
    voted_id = node.quorum.voted_id
    assert node.begin(1, 5) == RaftResponse(ErrorCode.none, 1, 5)
    assert known(node) == (Role.FOLLOWER, 5, 1, voted_id)


@pytest.mark.clause(
    "QuorumStateTest.testFollowerToFollowerSameEpoch",
    "QuorumStateTest.testFollowerVotedToFollowerSameEpoch",
    "QuorumStateTest.testProspectiveWithLeaderToFollowerSameEpoch",
    "QuorumStateTest.testProspectiveVotedWithLeaderToUnattachedInSameEpoch",
    "QuorumStateTest.testLeaderToFollowerSameEpoch",
)
@pytest.mark.parametrize("state", EVERY[5:])
def test_second_leader_of_epoch_is_rejected(state: State) -> None:
    node = state()
    before = known(node), durable_state(node)
    assert node.begin(2, node.quorum.epoch).error is ErrorCode.invalid_request
    assert (known(node), durable_state(node)) == before


@pytest.mark.clause(
    "KafkaRaftClientTest.testHandleVoteRequestAsFollowerWithVotedCandidate",
    "QuorumStateTest.testUnattachedToUnattachedVotedSameEpoch",
    "QuorumStateTest.testUnattachedVotedToUnattachedSameEpoch",
    "QuorumStateTest.testUnattachedVotedToUnattachedVoted",
    "UnattachedStateTest.testGrantVoteWithoutVotedKey",
    "UnattachedStateTest.testCanGrantVoteWithVotedKey",
    "ProspectiveStateTest.testGrantVote",
    "ProspectiveStateTest.testGrantVoteWithVotedKey",
)
@pytest.mark.parametrize(("state", "voted_id"), [(unattached, 1), (prospective, 1), (voted, 2), (voted_prospective, 2)])
def test_node_without_leader_votes_once_per_epoch(state: State, voted_id: int) -> None:
    node = state()
    assert node.request_vote(voted_id, 5, OffsetAndEpoch(2, 4))[0].granted
    assert node.request_vote(3 - voted_id, 5, OffsetAndEpoch(9, 4))[0].granted is False
    assert known(node)[1:] == (5, NO_NODE, voted_id)
    assert durable_state(node) == (5, NO_NODE, voted_id)


@pytest.mark.clause(
    "KafkaRaftClientTest.testHandleVoteRequestAsFollowerWithElectedLeader",
    "QuorumStateTest.testFollowerVotedToUnattachedSameEpoch",
    "FollowerStateTest.testGrantStandardVote",
    "ProspectiveStateTest.testGrantVoteWithLeader",
)
@pytest.mark.parametrize("state", EVERY[5:])
def test_node_with_leader_does_not_vote_in_its_epoch(state: State) -> None:
    node = state()
    before = known(node)
    for candidate_id in (1, 2):
        assert node.request_vote(candidate_id, node.quorum.epoch, OffsetAndEpoch(9, 4))[0].granted is False
    assert known(node) == before


@pytest.mark.clause("QuorumStateTest.testCannotFollowSelf")
@pytest.mark.parametrize("state", EVERY)
def test_node_does_not_follow_itself(state: State) -> None:
    node = state()
    before = known(node), durable_state(node)
    for epochs in (0, 1):
        assert node.begin(0, node.quorum.epoch + epochs).error is ErrorCode.invalid_request
        assert node.end(0, node.quorum.epoch + epochs).error is ErrorCode.invalid_request
    assert (known(node), durable_state(node)) == before


# Older epochs


@pytest.mark.clause(
    "KafkaRaftClientTest.testEndQuorumIgnoredAsCandidateIfOlderEpoch",
    "KafkaRaftClientTest.testEndQuorumIgnoredAsLeaderIfOlderEpoch",
    "KafkaRaftClientTest.testHandleInvalidVoteRequestWithOlderEpoch",
    "QuorumStateTest.testUnattachedToAnyStateLowerEpoch",
    "QuorumStateTest.testUnattachedVotedToAnyStateLowerEpoch",
    "QuorumStateTest.testFollowerToAnyStateLowerEpoch",
    "QuorumStateTest.testCandidateToAnyStateLowerEpoch",
    "QuorumStateTest.testLeaderToAnyStateLowerEpoch",
)
@pytest.mark.parametrize("state", EVERY)
def test_older_epoch_changes_no_role(state: State) -> None:
    node = state()
    before = known(node), durable_state(node)
    epoch = node.quorum.epoch - 1
    assert node.request_vote(1, epoch, OffsetAndEpoch(9, epoch - 1))[0].error is ErrorCode.fenced_leader_epoch
    assert node.begin(1, epoch).error is ErrorCode.fenced_leader_epoch
    assert node.end(1, epoch, 0).error is ErrorCode.fenced_leader_epoch
    assert (known(node), durable_state(node)) == before


# The way to leadership, and invalid changes


@pytest.mark.clause(
    "QuorumStateTest.testUnattachedToProspective",
    "QuorumStateTest.testUnattachedVotedToProspective",
    "QuorumStateTest.testFollowerToProspective",
    "QuorumStateTest.testProspectiveToCandidate",
    "QuorumStateTest.testProspectiveVotedToAndFromFollowerSameEpoch",
    "QuorumStateTest.testProspectiveVotedToCandidate",
    "QuorumStateTest.testProspectiveWithLeaderToCandidate",
    "QuorumStateTest.testCandidateToLeader",
    "QuorumStateTest.testLeaderToResigned",
    "ProspectiveStateTest.testElectionState",
    "CandidateStateTest.testElectionState",
)
@pytest.mark.parametrize("state", [unattached, voted, follower, voted_follower])
def test_transitions_from_each_role_to_leader_and_resigned(state: State) -> None:
    node = seeking(state())
    assert known(node)[1] == 5, "pre-votes are requested in the epoch in which the node is"
    assert durable_state(node)[0] == 5
    granted_by_one(node)
    assert known(node) == (Role.CANDIDATE, 6, NO_NODE, 0)
    assert durable_state(node) == (6, NO_NODE, 0)
    granted_by_one(node)
    assert known(node) == (Role.LEADER, 6, 0, 0)
    assert durable_state(node) == (6, 0, 0)
    node.quorum.resign("requested by the test")
    assert known(node) == (Role.RESIGNED, 6, NO_NODE, 0)


@pytest.mark.clause(
    "QuorumStateTest.testProspectiveToUnattachedInSameEpoch",
    "QuorumStateTest.testProspectiveVotedToUnattachedInSameEpoch",
    "QuorumStateTest.testProspectiveWithLeaderToUnattachedInSameEpoch",
)
@pytest.mark.parametrize(
    ("state", "role"),
    [
        (prospective, Role.UNATTACHED),
        (voted_prospective, Role.UNATTACHED),
        (prospective_with_leader, Role.FOLLOWER),
        (prospective_with_leader_and_vote, Role.FOLLOWER),
    ],
)
def test_losing_prospective_returns_to_previous_role(state: State, role: Role) -> None:
    node = state()
    leader_id, voted_id = node.quorum.leader_id, node.quorum.voted_id
    for request in node.take_requests(ApiKey.VOTE):
        request.replied(granted(request, False))
    assert known(node) == (role, 5, leader_id, voted_id)


@pytest.mark.clause("QuorumStateTest.testCandidateToProspective")
def test_losing_candidate_becomes_prospective() -> None:
    node = candidate()
    for request in node.take_requests(ApiKey.VOTE):
        request.replied(granted(request, False))
    assert node.quorum.role is Role.CANDIDATE
    seeking(node)
    assert known(node) == (Role.PROSPECTIVE, 6, NO_NODE, 0)


def _unattached(quorum: KafkaRaftClient) -> None:
    quorum.transition_to_unattached(quorum.epoch, voted_id=NO_NODE)


def _follower(quorum: KafkaRaftClient) -> None:
    quorum.transition_to_follower(quorum.epoch, 2)


def _back(quorum: KafkaRaftClient) -> None:
    quorum.transition_to_unattached(quorum.epoch - 1, voted_id=NO_NODE)


FORBIDDEN = {
    KafkaRaftClient.transition_to_leader: (unattached, voted, follower, prospective, leader, resigned),
    KafkaRaftClient.transition_to_candidate: (unattached, voted, follower, candidate, leader, resigned),
    KafkaRaftClient.transition_to_prospective: (prospective, leader),
    _unattached: (follower, candidate, leader, resigned),
    _follower: (follower, voted_follower, leader),
    _back: EVERY,
}


@pytest.mark.clause(
    "QuorumStateTest.testUnattachedToCandidate",
    "QuorumStateTest.testUnattachedToLeaderOrResigned",
    "QuorumStateTest.testUnattachedToAnyStateLowerEpoch",
    "QuorumStateTest.testUnattachedVotedToCandidateOrLeaderOrResigned",
    "QuorumStateTest.testFollowerToUnattachedSameEpoch",
    "QuorumStateTest.testFollowerToFollowerSameEpoch",
    "QuorumStateTest.testFollowerToCandidate",
    "QuorumStateTest.testFollowerToLeaderOrResigned",
    "QuorumStateTest.testProspectiveToProspective",
    "QuorumStateTest.testProspectiveToLeaderOrResigned",
    "QuorumStateTest.testCandidateToUnattachedSameEpoch",
    "QuorumStateTest.testCandidateToCandidate",
    "QuorumStateTest.testLeaderToUnattachedSameEpoch",
    "QuorumStateTest.testLeaderToFollowerSameEpoch",
    "QuorumStateTest.testLeaderToProspective",
    "QuorumStateTest.testLeaderToCandidate",
    "QuorumStateTest.testLeaderToLeader",
)
@pytest.mark.parametrize(
    ("become", "state"), [(become, state) for become, states in FORBIDDEN.items() for state in states]
)
def test_transition_missing_in_table_raises(become: Callable[[KafkaRaftClient], None], state: State) -> None:
    node = state()
    before = known(node), durable_state(node)
    with pytest.raises(AssertionError, match="becomes"):
        become(node.quorum)
    assert (known(node), durable_state(node)) == before


@pytest.mark.clause(
    "KafkaRaftClientTest.testCannotResignIfNotLeader",
    "QuorumStateTest.testUnattachedToLeaderOrResigned",
    "QuorumStateTest.testFollowerToLeaderOrResigned",
    "QuorumStateTest.testProspectiveToLeaderOrResigned",
    "QuorumStateTest.testCandidateToResigned",
)
@pytest.mark.parametrize("state", [unattached, voted, follower, prospective, candidate, resigned])
def test_resign_of_non_leader_raises(state: State) -> None:
    node = state()
    with pytest.raises(AssertionError, match="resigns"):
        node.quorum.resign("the test resigns")


# Observers


@pytest.mark.clause(
    "KafkaRaftClientTest.testCannotResignIfObserver",
    "KafkaRaftClientTest.testUnattachedAsObserverDoesNotBecomeProspectiveAfterElectionTimeout",
    "QuorumStateTest.testObserverUnattachedToFollower",
    "QuorumStateTest.testObserverUnattachedToProspective",
    "QuorumStateTest.testObserverUnattachedToCandidateOrLeaderOrResigned",
    "QuorumStateTest.testObserverFollowerToUnattached",
    "QuorumStateTest.testObserverFollowerToProspectiveOrCandidateOrLeaderOrResigned",
)
def test_observer_is_only_unattached_or_follower() -> None:
    node = Alone(node_id=7).started()
    assert known(node) == (Role.UNATTACHED, 0, NO_NODE, NO_NODE)
    node.pass_ms(20)
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=1, epoch=2)
    assert known(node) == (Role.FOLLOWER, 2, 1, NO_NODE)
    node.respond_to_fetch(error=ErrorCode.not_leader_or_follower, leader=-1, epoch=3)
    assert known(node) == (Role.UNATTACHED, 3, NO_NODE, NO_NODE)
    node.pass_ms(60_000)
    assert known(node) == (Role.UNATTACHED, 3, NO_NODE, NO_NODE), "for as long as there is no leader"
    for become in (
        KafkaRaftClient.transition_to_prospective,
        KafkaRaftClient.transition_to_candidate,
        KafkaRaftClient.transition_to_leader,
    ):
        with pytest.raises(AssertionError, match="becomes"):
            become(node.quorum)
    for after in (Role.PROSPECTIVE, Role.CANDIDATE, Role.LEADER, Role.RESIGNED):
        assert not any(may_follow(Role.FOLLOWER, after, epochs, False) for epochs in (0, 1))


# State that outlasts a role


@pytest.mark.clause("QuorumStateTest.testHighWatermarkRetained")
def test_high_watermark_outlasts_every_role() -> None:
    node = follower()
    assert node.quorum.high_watermark == 2
    node.request_vote(1, 6, SHORT_LOG)
    for step in (seeking, granted_by_one, granted_by_one):
        assert node.quorum.high_watermark == 2
        step(node)
    assert node.quorum.is_leader
    assert node.quorum.high_watermark == 2, "a leader of Kafka forgets it until it commits its first record"
