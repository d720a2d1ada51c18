"""LeaveGroup, heartbeats and sessions: how members are removed."""

import pytest

from reference_broker.groups.classic_requests import Leaving
from reference_broker.groups.group import GroupState
from reference_broker.groups.tests.membership_world import MembershipWorld
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "GroupMetadataManagerTest.testValidLeaveGroup",
    "GroupMetadataManagerTest.testLeaveGroupUnknownMemberIdExistingGroup",
    "GroupMetadataManagerTest.testLeaveGroupUnknownGroup",
)
def test_leave_starts_rebalance_at_once() -> None:
    world = MembershipWorld()
    assert world.group_manager.leave_group("g", (Leaving("m", None),)) == (
        ErrorCode.none,
        (ErrorCode.unknown_member_id,),
    )
    leader, follower = world.stable(None, None)
    assert world.leave("nobody") == (ErrorCode.unknown_member_id,)
    assert world.group.state is GroupState.STABLE
    assert world.leave(leader) == (ErrorCode.none,)
    assert (world.group.state, world.group.leader) == (GroupState.PREPARING_REBALANCE, follower)
    assert world.leave(follower) == (ErrorCode.none,)
    assert (world.group.state, world.group.generation, world.group.leader) == (GroupState.EMPTY, 2, None)
    assert world.partition.writes[-1].state is GroupState.EMPTY
    assert world.members("removed") == [leader, follower]
    assert world.ports.armed == 0


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMembersValidBatchLeaveGroup",
    "GroupMetadataManagerTest.testStaticMembersUnknownInstanceBatchLeaveGroup",
    "GroupMetadataManagerTest.testStaticMembersFencedInstanceBatchLeaveGroup",
    "GroupMetadataManagerTest.testLeaveGroupStaticMemberWithUnknownMemberId",
    "GroupMetadataManagerTest.testLeaveGroupWithFencedInstanceId",
)
def test_leave_of_several_members_returns_one_error_each() -> None:
    world = MembershipWorld()
    one, two = world.stable("one", "two")
    assert world.leave((one, "two")) == (ErrorCode.fenced_instance_id,)
    assert world.leave(("", "three"), ("", None)) == (ErrorCode.unknown_member_id, ErrorCode.unknown_member_id)
    assert world.group.state is GroupState.STABLE
    assert world.leave(("", "two"), (two, "two"), (one, "one")) == (
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
    )
    assert world.group.state is GroupState.EMPTY  # type: ignore[comparison-overlap]  # It changed.


@pytest.mark.clause(
    "GroupMetadataManagerTest.testPendingMembersLeaveGroup",
    "GroupMetadataManagerTest.testPendingMemberBatchLeaveGroup",
    "GroupMetadataManagerTest.testJoinedMemberPendingMemberBatchLeaveGroup",
    "GroupMetadataManagerTest.testJoinedMemberPendingMemberBatchLeaveGroupWithUnknownMember",
)
def test_leave_of_pending_member_ends_its_wait() -> None:
    world = MembershipWorld()
    (leader,) = world.stable(None)
    pending = world.join().response.member_id
    again = world.join(leader)
    assert not again.responses
    assert world.leave(pending, "nobody") == (ErrorCode.none, ErrorCode.unknown_member_id)
    assert again.response.generation == 2
    other = world.join().response.member_id
    assert world.leave(leader, other) == (ErrorCode.none, ErrorCode.none)
    assert world.group.state is GroupState.EMPTY


def test_leave_completes_pending_requests_of_member() -> None:
    world = MembershipWorld()
    leader, follower = world.stable(None, None)
    joining = world.join(leader)
    assert world.leave(leader) == (ErrorCode.none,)
    assert joining.error is ErrorCode.unknown_member_id
    world.join(follower)
    world.sync(follower)
    newcomer, _ = world.new()
    world.join(follower)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    syncing = world.sync(newcomer)
    world.leave(newcomer)
    assert syncing.error is ErrorCode.unknown_member_id


# --- heartbeats -----------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testHeartbeatUnknownGroup",
    "GroupMetadataManagerTest.testHeartbeatEmptyGroup",
    "GroupMetadataManagerTest.testHeartbeatUnknownMemberExistingGroup",
    "GroupMetadataManagerTest.testHeartbeatIllegalGeneration",
    "GroupMetadataManagerTest.testValidHeartbeat",
    "GroupMetadataManagerTest.testHeartbeatDuringPreparingRebalance",
    "GroupMetadataManagerTest.testHeartbeatDuringRebalanceCausesRebalanceInProgress",
    "GroupMetadataManagerTest.testHeartbeatDuringCompletingRebalance",
)
def test_heartbeat_errors_by_state_and_generation() -> None:
    world = MembershipWorld()
    assert world.heartbeat("m", 1) is ErrorCode.unknown_member_id
    member, _ = world.new()
    assert world.heartbeat(member) is ErrorCode.rebalance_in_progress
    world.pass_ms(0)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    assert world.heartbeat(member) is ErrorCode.none
    world.sync(member)
    assert world.heartbeat(member) is ErrorCode.none
    assert world.heartbeat("m") is ErrorCode.unknown_member_id
    assert world.heartbeat(member, 0) is ErrorCode.illegal_generation
    world.leave(member)
    assert world.heartbeat(member) is ErrorCode.unknown_member_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testClassicGroupMemberSessionTimeout",
    "GroupMetadataManagerTest.testClassicGroupMemberHeartbeatMaintainsSession",
    "GroupMetadataManagerTest.testHeartbeatExpirationShouldRemoveMember",
)
def test_member_expires_at_end_of_session() -> None:
    world = MembershipWorld()
    (member,) = world.stable(None, session_ms=10_000)
    for _ in range(5):
        world.pass_ms(9999)
        assert world.heartbeat(member) is ErrorCode.none
    world.pass_ms(9999)
    assert member in world.group.members
    world.pass_ms(1)
    assert world.heartbeat(member) is ErrorCode.unknown_member_id


@pytest.mark.clause("GroupMetadataManagerTest.testClassicGroupMemberSessionTimeoutDuringRebalance")
def test_silent_member_delays_rebalance_until_session_expires() -> None:
    world = MembershipWorld()
    leader, silent = world.stable(None, None)
    again = world.join(leader)
    world.pass_ms(9999)
    assert not again.responses
    world.pass_ms(1)
    assert (again.response.generation, list(world.group.members)) == (2, [leader])
    assert world.members("expired") == [silent]


def test_joining_member_needs_no_heartbeats() -> None:
    world = MembershipWorld()
    leader, follower = world.stable(None, None)
    again = world.join(leader)
    world.alive_ms(40_000, follower)
    assert not again.responses
    assert leader in world.group.members


def test_shortened_session_expires_earlier() -> None:
    world = MembershipWorld()
    (member,) = world.stable(None, session_ms=100_000)
    world.join(member, session_ms=10_000)
    world.sync(member)
    world.pass_ms(10_000)
    assert world.members("expired") == [member]


def test_accepted_commit_extends_session() -> None:
    world = MembershipWorld()
    (member,) = world.stable(None)
    for _ in range(3):
        world.pass_ms(9999)
        world.group_manager.extend_session(world.partition, "g", member)
    assert member in world.group.members
    world.group_manager.extend_session(world.partition, "g", "nobody")
    world.group_manager.extend_session(world.partition, "none", member)


def test_heartbeats_set_no_timers() -> None:
    world = MembershipWorld()
    ids = world.stable(*[None] * 20)
    before = world.ports.timers_set
    for _ in range(50):
        world.pass_ms(100)
        for member_id in ids:
            world.heartbeat(member_id)
    assert world.ports.timers_set == before
    world.pass_ms(9000)
    assert world.ports.timers_set - before <= len(ids)
