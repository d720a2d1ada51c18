"""State of a node after a restart, and its file (KafkaRaftClientTest, FileQuorumStateStoreTest)."""

import json
from typing import Any

import pytest

from reference_broker.quorum.messages import RaftResponse
from reference_broker.quorum.node_files import (
    QUORUM_STATE,
    TEMPORARY_SUFFIX,
    QuorumStateData,
    StartRefused,
    put_in_place,
    read_quorum_state,
    write_quorum_state,
)
from reference_broker.quorum.roles import Role
from reference_broker.quorum.tests import quorum_roles as roles
from reference_broker.quorum.tests.quorum_alone import Alone, batch
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def restarted(node: Alone) -> Alone:
    return Alone(len(node.quorum.voters), disk=node.disk).started()


@pytest.mark.clause(
    "KafkaRaftClientTest.testInitializeAsResignedAndOnlyVoter",
    "KafkaRaftClientTest.testInitializeAsLeaderFromStateStoreSingleMemberQuorum",
    "QuorumStateTest.testInitializeAsOnlyVoter",
)
def test_single_voter_leads_next_epoch_after_restart() -> None:
    node = Alone(1).started()
    again = restarted(node)
    assert (again.quorum.role, again.quorum.epoch) == (Role.LEADER, 2)
    assert again.quorum.high_watermark == 2, "its log has the record that opened each of its epochs"


@pytest.mark.clause(
    "KafkaRaftClientTest.testGrantVotesFromHigherEpochAfterResigningLeadership",
    "KafkaRaftClientTest.testGrantVotesFromHigherEpochAfterResigningCandidacy",
)
@pytest.mark.parametrize("state", [roles.leader, roles.candidate])
def test_restarted_candidate_votes_only_in_newer_epoch(state: roles.State) -> None:
    again = restarted(state())
    assert (again.quorum.epoch, again.quorum.voted_id) == (6, 0)
    assert again.request_vote(1, 6, OffsetAndEpoch(9, 5))[0].granted is False
    assert again.request_vote(1, 7, OffsetAndEpoch(9, 6)) == [RaftResponse(ErrorCode.none, -1, 7, True)]
    assert restarted(again).quorum.voted_id == 1


@pytest.mark.clause("KafkaRaftClientTest.testInitializeAsFollowerNonEmptyLog")
def test_restarted_follower_fetches_from_log_end() -> None:
    node = Alone().following(1, 5)
    node.respond_to_fetch(batch(0, 3, count=2) + batch(2, 5))
    (sent,) = restarted(node).take_requests(ApiKey.FETCH)
    assert (sent.peer, sent.partition.fetch_offset, sent.partition.last_fetched_epoch) == (1, 3, 5)


@pytest.mark.clause("QuorumStateTest.testInitializeVotedAndLeaderAreDifferent")
def test_restarted_follower_that_voted_for_other_node_follows_leader() -> None:
    again = restarted(roles.voted_follower())
    quorum = again.quorum
    assert quorum.role == Role.FOLLOWER
    assert quorum.epoch == 5
    assert quorum.leader_id == 1
    assert quorum.voted_id == 2


@pytest.mark.clause("QuorumStateTest.testInitializeVotedAndLeaderAreSame")
def test_restarted_follower_that_voted_for_leader_follows_it() -> None:
    node = roles.voted()
    node.begin(2, 5)
    quorum = restarted(node).quorum
    assert quorum.role == Role.FOLLOWER
    assert quorum.epoch == 5
    assert quorum.leader_id == 2
    assert quorum.voted_id == 2


@pytest.mark.clause("QuorumStateTest.testInitializePrimordialEpoch")
def test_node_without_files_starts_in_epoch_zero() -> None:
    quorum = Alone().started().quorum
    assert quorum.role == Role.UNATTACHED
    assert quorum.epoch == 0
    assert quorum.leader_id == -1
    assert quorum.voted_id == -1


@pytest.mark.clause("QuorumStateTest.testInitializeAsUnattached", "FileQuorumStateStoreTest.testReload")
def test_restarted_unattached_voter_keeps_epoch() -> None:
    quorum = restarted(roles.unattached()).quorum
    assert quorum.role == Role.UNATTACHED
    assert quorum.epoch == 5
    assert quorum.leader_id == -1
    assert quorum.voted_id == -1


# The file


@pytest.mark.clause(
    "FileQuorumStateStoreTest.testWriteReadElectedLeader",
    "FileQuorumStateStoreTest.testWriteReadVotedCandidate",
    "FileQuorumStateStoreTest.testWriteReadUnknownLeader",
    "FileQuorumStateStoreTest.testCreateAndClear",
    "ElectionStateTest.testQuorumStateDataRoundTrip",
)
@pytest.mark.parametrize(
    "state",
    [
        QuorumStateData(leader_id=2, leader_epoch=7, voted_id=-1, voters=(0, 1, 2)),
        QuorumStateData(leader_id=2, leader_epoch=7, voted_id=1, voters=(0, 1, 2)),
        QuorumStateData(leader_id=-1, leader_epoch=7, voted_id=1, voters=(0, 1, 2)),
        QuorumStateData(leader_id=-1, leader_epoch=7, voted_id=-1, voters=(0, 1, 2)),
    ],
    ids=["leader", "leader and vote", "vote", "neither"],
)
def test_quorum_state_file_round_trip(state: QuorumStateData) -> None:
    node = Alone()
    assert read_quorum_state(node.disk) is None
    done: list[bool] = []
    put_in_place(node.disk, node, write_quorum_state(node.disk, state), lambda: done.append(True))
    assert done == [True]
    assert read_quorum_state(node.disk) == state
    assert not node.disk.exists(QUORUM_STATE + TEMPORARY_SUFFIX)


@pytest.mark.clause("FileQuorumStateStoreTest.testCantReadVersionQuorumState")
@pytest.mark.parametrize("changed", [{"data_version": 2}, {"data_version": 1}, {"data_version": None}])
def test_quorum_state_file_of_other_version_is_rejected(changed: dict[str, Any]) -> None:
    """Kafka writes version 1 in clusters whose voters can change (KIP-853), without voters in it."""
    disk = roles.follower().disk
    fields = json.loads(disk.files[QUORUM_STATE])
    disk.files[QUORUM_STATE] = bytearray(json.dumps(fields | changed).encode())
    with pytest.raises(StartRefused, match="version"):
        Alone(disk=disk)
