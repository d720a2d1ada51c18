"""EndQuorumEpoch of a leader that resigns, and the reactions of the others (KafkaRaftClientTest, ResignedStateTest)."""

import pytest

from reference_broker.quorum.messages import RaftResponse, build_end_quorum_epoch_response
from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests.quorum_alone import Alone, Sent
from reference_broker.quorum.values import NotLeader, OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def resigned(voters: int = 3) -> Alone:
    """Return node 0, which led epoch 1 and whose EndQuorumEpoch requests are in flight."""
    node = Alone(voters).started().elect(*range(1, voters))
    node.sent.clear()
    node.quorum.resign("requested by the test")
    return node


def acknowledge(sent: Sent) -> None:
    sent.replied(build_end_quorum_epoch_response(RaftResponse(ErrorCode.none, -1, 1)))


@pytest.mark.clause("KafkaRaftClientTest.testEndQuorumEpochRetriesWhileResigned")
def test_lost_end_quorum_epoch_is_retried() -> None:
    node = resigned()
    first, second = node.take_requests(ApiKey.END_QUORUM_EPOCH)
    acknowledge(first)
    second.failed()
    node.pass_ms(900)
    again = node.take_requests(ApiKey.END_QUORUM_EPOCH)
    assert again, "the other one is notified again"
    assert {each.peer for each in again} == {second.peer}
    acknowledge(again[-1])
    node.pass_ms(90)
    assert not node.take_requests(ApiKey.END_QUORUM_EPOCH)


def test_end_quorum_epoch_of_shutdown_is_not_retried_for_ever() -> None:
    node = Alone().started().elect(1, 2)
    left: list[bool] = []
    node.quorum.shut_down(lambda: left.append(True))
    before = set(node.timers)
    for request in node.take_requests(ApiKey.END_QUORUM_EPOCH):
        request.failed()
    assert left == [True]
    assert set(node.timers) <= before


@pytest.mark.clause(
    "KafkaRaftClientTest.testElectionTimeoutAfterUserInitiatedResign", "ResignedStateTest.testResignedState"
)
def test_resigned_leader_serves_no_fetches_and_starts_election_at_last() -> None:
    node = resigned(2)
    (sent,) = node.take_requests(ApiKey.END_QUORUM_EPOCH)
    acknowledge(sent)
    assert [each.error_code for each in node.fetch(1, 0, 0)] == [ErrorCode.not_leader_or_follower]
    with pytest.raises(NotLeader):
        node.append()
    node.pass_ms(999)
    assert node.quorum.role is Role.RESIGNED
    assert not node.sent, "a voter that knows of it is notified no more"
    node.pass_ms(1001)
    assert node.quorum.role is Role.PROSPECTIVE  # type: ignore[comparison-overlap]  # It changed.


@pytest.mark.clause("KafkaRaftClientPreVoteTest.testHandlePreVoteRequestAsResigned", "ResignedStateTest.testGrantVote")
def test_resigned_leader_grants_pre_votes_but_no_vote_of_its_epoch() -> None:
    node = resigned()
    end = node.log.end
    assert node.request_vote(1, 1, end, pre_vote=True)[0].granted
    assert node.request_vote(1, 1, OffsetAndEpoch(0, 0), pre_vote=True)[0].granted is False, "its log is shorter"
    assert node.request_vote(1, 1, OffsetAndEpoch(9, 0))[0].granted is False
    assert node.request_vote(1, 2, OffsetAndEpoch(9, 1), pre_vote=True) == [RaftResponse(ErrorCode.none, -1, 2, True)]
    assert node.quorum.role is Role.UNATTACHED


def test_resigned_leader_rejects_other_leader_of_its_epoch() -> None:
    node = resigned()
    first, _ = node.take_requests(ApiKey.END_QUORUM_EPOCH)
    first.replied(build_end_quorum_epoch_response(RaftResponse(ErrorCode.none, 1, 1)))
    assert (node.quorum.role, node.quorum.leader_id) == (Role.RESIGNED, -1)
    assert node.begin(1, 1).error is ErrorCode.invalid_request
    assert node.quorum.role is Role.RESIGNED


@pytest.mark.parametrize("comes_back", [False, True], ids=["it requests votes", "it was restarted"])
def test_former_leader_rejects_other_leader_of_its_epoch_also_later(comes_back: bool) -> None:
    node = resigned(2)
    if comes_back:
        node = Alone(2, disk=node.disk).started()
    else:
        node.pass_ms(2000)
    role = node.quorum.role
    assert role is (Role.UNATTACHED if comes_back else Role.PROSPECTIVE)
    node.quorum.maybe_transition(1, 1)
    assert node.begin(1, 1).error is ErrorCode.invalid_request
    assert (node.quorum.role, node.quorum.leader_id) == (role, -1)
    assert node.begin(1, 2).error is ErrorCode.none


@pytest.mark.clause("KafkaRaftClientTest.testHandleBeginQuorumEpochAfterUserInitiatedResign")
def test_resigned_leader_follows_next_leader() -> None:
    node = resigned()
    assert node.begin(1, 2) == RaftResponse(ErrorCode.none, 1, 2)
    assert (node.quorum.role, node.notifications[-1]) == (Role.FOLLOWER, ("leader", 1, 2))


@pytest.mark.clause("KafkaRaftClientTest.testEndQuorumStartsNewElectionImmediatelyIfFollowerUnattached")
def test_end_quorum_epoch_at_unattached_voter_names_leader() -> None:
    """The voter was unattached: it learns the leader, and seeks the election in its turn."""
    node = Alone().started()
    node.request_vote(1, 5)
    assert node.quorum.role is Role.UNATTACHED
    assert node.end(1, 5, 0, 2) == RaftResponse(ErrorCode.none, 1, 5)
    node.pass_ms(0)
    assert (node.quorum.role, node.quorum.epoch) == (Role.PROSPECTIVE, 5)


@pytest.mark.clause("KafkaRaftClientTest.testHandleEndQuorumRequestWithLowerPriorityToBecomeLeader")
def test_end_quorum_epoch_of_newer_epoch_is_accepted() -> None:
    node = Alone().following(2, 4)
    assert node.end(1, 5, 2, 0) == RaftResponse(ErrorCode.none, 1, 5)
    node.pass_ms(0)
    assert node.quorum.role is Role.FOLLOWER, "the other one is first in the row"
    node.pass_ms(50)
    assert (node.quorum.role, node.quorum.epoch) == (Role.PROSPECTIVE, 5)


def test_end_quorum_epoch_of_older_epoch_is_rejected() -> None:
    node = Alone().following(1, 5)
    assert node.end(1, 4, 0) == RaftResponse(ErrorCode.fenced_leader_epoch, 1, 5)
    node.pass_ms(100)
    assert node.quorum.role is Role.FOLLOWER
