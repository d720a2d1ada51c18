"""What is durable before a node acts in an epoch or answers, and what it knows of it after a restart."""

import json

import pytest

from reference_broker.quorum.messages import RaftResponse, begin_epoch
from reference_broker.quorum.node_files import StartRefused
from reference_broker.quorum.raft_handlers import handle_begin_quorum_epoch
from reference_broker.quorum.roles import START_DELAY_US, Role
from reference_broker.quorum.tests.quorum_alone import Alone, batch, granted, kept
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
def test_a_quorum_of_one_leads_without_a_network() -> None:
    node = Alone(1).started()
    assert node.quorum.role is Role.LEADER
    assert (node.quorum.epoch, node.quorum.leader_id, node.quorum.high_watermark) == (1, 0, 1)
    assert node.news == [("leader", -1, 0), ("leader", -1, 1), ("leader", 0, 1), ("won", 1, 0), ("hw", 1)]
    assert not node.sent


@pytest.mark.clause(
    "KafkaRaftClientTest.testLeaderAppendSingleMemberQuorum", "LeaderStateTest.testUpdateHighWatermarkQuorumSizeOne"
)
def test_a_quorum_of_one_waits_for_its_disk() -> None:
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


# Persist before answer


def test_a_leader_is_not_reported_before_it_is_durable() -> None:
    """Also not by what asks without waiting: clients that ask who the controller is, the broker that registers."""
    node = Alone(auto_sync=False).started()
    handle_begin_quorum_epoch(node.quorum, begin_epoch("cluster", -1, 1, 5), lambda _: None)
    assert node.quorum.leader_id == node.quorum.shown_leader_id == -1
    node.sync_all()
    assert node.quorum.leader_id == node.quorum.shown_leader_id == 1


def test_a_leader_that_is_sought_to_be_replaced_is_not_shown() -> None:
    node = Alone().following(1, 5)
    node.pass_ms(2050)
    assert node.quorum.role is Role.PROSPECTIVE
    assert (node.quorum.leader_id, node.quorum.shown_leader_id, node.news[-1]) == (1, -1, ("leader", -1, 5))
    for each in node.take(ApiKey.VOTE):
        each.replied(granted(each, False, leader=1))
    assert (node.quorum.shown_leader_id, node.news[-1]) == (1, ("leader", 1, 5))


def test_halts_at_once_also_on_its_way_into_another_role() -> None:
    node = Alone(auto_sync=False).started()
    answers = node.ask_vote(1, 5)
    left: list[bool] = []
    node.quorum.shut_down(lambda: left.append(True))
    assert not left, "a good end waits for the disk"
    node.quorum.halt()
    node.sync_all()
    node.pass_ms(20_000)
    assert node.quorum.stopped
    assert len(answers) == 1
    assert not node.sent


def test_a_leader_that_was_halted_has_nothing_more_to_say_when_it_is_queried_to_leave() -> None:
    node = Alone().started().elect(1)
    node.sent.clear()
    node.quorum.halt()
    left: list[bool] = []
    node.quorum.shut_down(lambda: left.append(True))
    assert left == [True]
    assert not node.sent
    assert node.news[-1] == ("lost", 1)
    with pytest.raises(NotLeader):
        node.append()


def test_a_vote_is_durable_before_its_response_and_inputs_wait_in_order() -> None:
    node = Alone(auto_sync=False).started()
    first = node.ask_vote(1, 5)
    second = node.ask_vote(2, 5)
    fetched = node.fetch(1, 0, 0, current=5)
    assert not first + second + fetched
    assert STATE not in node.disk.files
    node.sync_one()
    assert kept(node) == (5, -1, 1)
    assert not first + second + fetched, "a power loss could still bring the old file back"
    node.sync_one()
    assert first == [RaftResponse(ErrorCode.none, -1, 5, True)]
    assert second == [RaftResponse(ErrorCode.none, -1, 5, False)]
    assert fetched[0].error_code == ErrorCode.not_leader_or_follower


@pytest.mark.clause("QuorumStateTest.testInitializeAsVotedNoLeader")
def test_a_restarted_voter_keeps_its_vote_and_epoch() -> None:
    node = Alone().started()
    node.ask_vote(1, 5)
    again = Alone(disk=node.disk).started()
    assert (again.quorum.epoch, again.quorum.voted_id) == (5, 1)
    assert again.ask_vote(2, 5)[0].granted is False
    assert again.ask_vote(1, 5)[0].granted is True


@pytest.mark.clause("KafkaRaftClientTest.testRejectVotesFromSameEpochAfterResigningLeadership")
def test_a_restarted_leader_does_not_lead_its_epoch_again() -> None:
    node = Alone().started().elect(1)
    epoch = node.quorum.epoch
    assert kept(node) == (epoch, 0, 0)
    again = Alone(disk=node.disk).started()
    assert again.quorum.role is Role.UNATTACHED
    assert (again.quorum.epoch, again.quorum.voted_id, again.quorum.leader_id) == (epoch, 0, -1)
    assert again.ask_vote(1, epoch, OffsetAndEpoch(9, 0))[0].granted is False
    again.elect(1)
    assert again.quorum.epoch == epoch + 1


@pytest.mark.clause("KafkaRaftClientTest.testRejectVotesFromSameEpochAfterResigningCandidacy")
def test_a_restarted_candidate_seeks_a_new_epoch() -> None:
    """It may have won that election and written records that it lost."""
    node = Alone().started()
    node.pass_ms(START_MS)
    for each in node.take(ApiKey.VOTE):
        each.replied(granted(each, True))
    assert node.quorum.role is Role.CANDIDATE
    again = Alone(disk=node.disk).started()
    assert (again.quorum.role, again.quorum.epoch, again.quorum.voted_id) == (Role.UNATTACHED, 1, 0)


@pytest.mark.clause(
    "KafkaRaftClientTest.testInitializeAsFollowerEmptyLog",
    "QuorumStateTest.testInitializeAsFollower",
    "FollowerStateTest.testLeaderIdAndEndpoint",
)
def test_a_restarted_follower_follows_on() -> None:
    node = Alone().following(1, 5)
    again = Alone(disk=node.disk).started()
    assert (again.quorum.role, again.quorum.epoch, again.quorum.leader_id) == (Role.FOLLOWER, 5, 1)
    assert again.take(ApiKey.FETCH)[0].peer == 1


def test_other_voters_than_before_are_refused_in_one_sentence() -> None:
    disk = Alone().following().disk
    with pytest.raises(StartRefused, match=r"voters 0,1,2, not 0,1,2,3,4: give controller.quorum.voters as it was"):
        Alone(5, disk=disk)


def test_the_state_file_is_kafkas() -> None:
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


def test_a_lost_state_file_does_not_take_the_epoch_back() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 4))
    del node.disk.files[STATE]
    assert Alone(disk=node.disk).started().quorum.epoch == 4
