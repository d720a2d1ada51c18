"""State that is durable before a node acts in an epoch or responds, and after a restart."""

import json

import pytest

from reference_broker.quorum.messages import RaftResponse, build_begin_quorum_epoch_request
from reference_broker.quorum.node_files import StartRefused
from reference_broker.quorum.raft_handlers import handle_begin_quorum_epoch
from reference_broker.quorum.roles import START_DELAY_US, Role
from reference_broker.quorum.tests.quorum_alone import Alone, batch, durable_state, granted
from reference_broker.quorum.values import NotLeader, OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

STATE = "__cluster_metadata-0/quorum-state"
NOTHING = OffsetAndEpoch(0, 0)
START_MS = START_DELAY_US[1] // 1000

# A quorum of one


@pytest.mark.clause(
    "KafkaRaftClientTest.testInitializeSingleMemberQuorum",
    "KafkaRaftClientTest.testInitializeAsOnlyVoterWithEmptyElectionState",
    "QuorumStateTest.testInitializeAsOnlyVoter",
)
def test_quorum_of_one_leads_without_network() -> None:
    node = Alone(1).started()
    assert node.quorum.role is Role.LEADER
    assert (node.quorum.epoch, node.quorum.leader_id, node.quorum.high_watermark) == (1, 0, 1)
    assert node.notifications == [("leader", -1, 0), ("leader", -1, 1), ("leader", 0, 1), ("won", 1, 0), ("hw", 1)]
    assert not node.sent


@pytest.mark.clause(
    "KafkaRaftClientTest.testLeaderAppendSingleMemberQuorum", "LeaderStateTest.testUpdateHighWatermarkQuorumSizeOne"
)
def test_quorum_of_one_waits_for_sync() -> None:
    node = Alone(1, auto_sync=False).started()
    assert node.quorum.epoch == 1
    assert node.quorum.role is Role.CANDIDATE
    node.sync_one()  # Its vote.
    assert node.quorum.role is Role.CANDIDATE
    node.sync_one()  # The name of the file that holds it.
    assert node.quorum.role is Role.LEADER  # type: ignore[comparison-overlap]  # It changed.
    with pytest.raises(NotLeader):
        node.append()
    for _ in range(2):
        node.sync_one()  # Its leadership.
    node.append()
    assert node.quorum.high_watermark == -1
    node.sync_all()
    assert node.quorum.high_watermark == 2


# Persist before the response


def test_leader_is_not_reported_before_epoch_is_durable() -> None:
    """Also in queries without a wait: clients that look up the controller, the broker that registers."""
    node = Alone(auto_sync=False).started()
    handle_begin_quorum_epoch(node.quorum, build_begin_quorum_epoch_request("cluster", -1, 1, 5), lambda _: None)
    assert node.quorum.leader_id == node.quorum.reported_leader_id == -1
    node.sync_all()
    assert node.quorum.leader_id == node.quorum.reported_leader_id == 1


def test_leader_is_not_reported_while_prospective() -> None:
    node = Alone().following(1, 5)
    node.pass_ms(2050)
    assert node.quorum.role is Role.PROSPECTIVE
    assert node.quorum.leader_id == 1
    assert node.quorum.reported_leader_id == -1
    assert node.notifications[-1] == ("leader", -1, 5)
    for request in node.take_requests(ApiKey.VOTE):
        request.replied(granted(request, False, leader=1))
    assert (node.quorum.reported_leader_id, node.notifications[-1]) == (1, ("leader", 1, 5))


def test_halt_during_role_change_takes_effect_at_once() -> None:
    node = Alone(auto_sync=False).started()
    responses = node.request_vote(1, 5)
    left: list[bool] = []
    node.quorum.shut_down(lambda: left.append(True))
    assert not left, "a good end waits for the disk"
    node.quorum.halt()
    node.sync_all()
    node.pass_ms(20_000)
    assert node.quorum.stopped
    assert len(responses) == 1
    assert not node.sent


def test_shutdown_of_halted_leader_sends_nothing() -> None:
    node = Alone().started().elect(1)
    node.sent.clear()
    node.quorum.halt()
    left: list[bool] = []
    node.quorum.shut_down(lambda: left.append(True))
    assert left == [True]
    assert not node.sent
    assert node.notifications[-1] == ("lost", 1)
    with pytest.raises(NotLeader):
        node.append()


def test_vote_is_durable_before_response_and_inputs_wait_in_order() -> None:
    node = Alone(auto_sync=False).started()
    first = node.request_vote(1, 5)
    second = node.request_vote(2, 5)
    fetched = node.fetch(1, 0, 0, current=5)
    assert not first + second + fetched
    assert STATE not in node.disk.files
    node.sync_one()
    assert durable_state(node) == (5, -1, 1)
    assert not first + second + fetched, "a power loss could still bring the old file back"
    node.sync_one()
    assert first == [RaftResponse(ErrorCode.none, -1, 5, True)]
    assert second == [RaftResponse(ErrorCode.none, -1, 5, False)]
    assert fetched[0].error_code == ErrorCode.not_leader_or_follower


@pytest.mark.clause("QuorumStateTest.testInitializeAsVotedNoLeader")
def test_restarted_voter_keeps_vote_and_epoch() -> None:
    node = Alone().started()
    node.request_vote(1, 5)
    again = Alone(disk=node.disk).started()
    assert (again.quorum.epoch, again.quorum.voted_id) == (5, 1)
    assert again.request_vote(2, 5)[0].granted is False
    assert again.request_vote(1, 5)[0].granted is True


@pytest.mark.clause("KafkaRaftClientTest.testRejectVotesFromSameEpochAfterResigningLeadership")
def test_restarted_leader_does_not_lead_same_epoch() -> None:
    node = Alone().started().elect(1)
    epoch = node.quorum.epoch
    assert durable_state(node) == (epoch, 0, 0)
    again = Alone(disk=node.disk).started()
    assert again.quorum.role is Role.UNATTACHED
    assert (again.quorum.epoch, again.quorum.voted_id, again.quorum.leader_id) == (epoch, 0, -1)
    assert again.request_vote(1, epoch, OffsetAndEpoch(9, 0))[0].granted is False
    again.elect(1)
    assert again.quorum.epoch == epoch + 1


@pytest.mark.clause("KafkaRaftClientTest.testRejectVotesFromSameEpochAfterResigningCandidacy")
def test_restarted_candidate_seeks_new_epoch() -> None:
    """The candidate may have won that election and written records that it lost."""
    node = Alone().started()
    node.pass_ms(START_MS)
    for request in node.take_requests(ApiKey.VOTE):
        request.replied(granted(request, True))
    assert node.quorum.role is Role.CANDIDATE
    again = Alone(disk=node.disk).started()
    assert (again.quorum.role, again.quorum.epoch, again.quorum.voted_id) == (Role.UNATTACHED, 1, 0)


@pytest.mark.clause(
    "KafkaRaftClientTest.testInitializeAsFollowerEmptyLog",
    "QuorumStateTest.testInitializeAsFollower",
    "FollowerStateTest.testLeaderIdAndEndpoint",
)
def test_restarted_follower_follows_same_leader() -> None:
    node = Alone().following(1, 5)
    again = Alone(disk=node.disk).started()
    assert (again.quorum.role, again.quorum.epoch, again.quorum.leader_id) == (Role.FOLLOWER, 5, 1)
    assert again.take_requests(ApiKey.FETCH)[0].peer == 1


def test_changed_voters_are_rejected_at_start() -> None:
    disk = Alone().following().disk
    with pytest.raises(StartRefused, match=r"voters 0,1,2, not 0,1,2,3,4: give controller.quorum.voters as it was"):
        Alone(5, disk=disk)


def test_quorum_state_file_has_format_of_kafka() -> None:
    node = Alone().following(2, 7)
    assert json.loads(node.disk.files[STATE]) == {
        "clusterId": "",
        "leaderId": 2,
        "leaderEpoch": 7,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 0}, {"voterId": 1}, {"voterId": 2}],
        "data_version": 0,
    }


def test_lost_quorum_state_file_does_not_lower_epoch() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 4))
    del node.disk.files[STATE]
    assert Alone(disk=node.disk).started().quorum.epoch == 4
