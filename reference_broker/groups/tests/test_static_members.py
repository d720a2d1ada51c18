"""Static members: an instance that restarts, and clients that still use its old member ID."""

import pytest

from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import GroupState
from reference_broker.groups.tests.membership_world import BOTH, MembershipWorld
from reference_broker.wire.errors import Error, ErrorCode

ROUND_ROBIN = (MemberProtocol("roundrobin", b"r"),)


def pair(world: MembershipWorld, **how: object) -> tuple[str, str]:
    """Return leader "one" and follower "two" of a stable group."""
    leader, follower = world.stable("one", "two", **how)
    assert world.group.static_members == {"one": leader, "two": follower}
    return leader, follower


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberJoinAsFirstMember",
    "GroupMetadataManagerTest.testGetDifferentStaticMemberIdAfterEachRejoin",
)
def test_static_member_gets_new_member_id_with_each_join() -> None:
    world = MembershipWorld()
    joining = world.join(instance="one")
    world.pass_ms(0)
    first = joining.response.member_id
    assert first.startswith("one-")
    world.sync(first, instance="one")
    later = [world.join(instance="one").response.member_id for _ in range(3)]
    assert len(dict.fromkeys([first, *later])) == 4
    assert world.group.generation == 1


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithUnknownMemberId",
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateSucceeds",
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateNoError",
)
def test_restarted_static_follower_keeps_assignment_without_rebalance() -> None:
    world = MembershipWorld()
    leader, old = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    assert not again.responses
    (write,) = [each for each in world.partition.writes if len(each.assignments) == 2][1:]
    write.written(ErrorCode.none)
    new = again.response.member_id
    assert write.assignments == {leader: leader.encode(), new: old.encode()}
    assert (again.response.generation, again.response.leader, again.response.skip_assignment) == (1, leader, False)
    assert world.group.state is GroupState.STABLE
    assert world.sync(new, instance="two").response.assignment == old.encode()
    assert world.heartbeat(old, instance="two") is ErrorCode.fenced_instance_id
    assert world.heartbeat(old) is ErrorCode.unknown_member_id
    assert world.heartbeat(new, instance="two") is ErrorCode.none


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberRejoinWithLeaderIdAndUnknownMemberId")
def test_restarted_static_leader_skips_assignment() -> None:
    world = MembershipWorld()
    old, follower = pair(world)
    again = world.join(instance="one").response
    assert (again.leader, again.skip_assignment, again.generation) == (again.member_id, True, 1)
    assert [each.member_id for each in again.members] == [again.member_id, follower]
    assert world.group.leader == again.member_id
    older = world.join(instance="one", version=8).response
    assert (older.leader, older.skip_assignment, older.members) == (again.member_id, False, ())
    assert older.leader != older.member_id == world.group.leader
    assert old not in world.group.members


@pytest.mark.clause(
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateErrors",
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchangedPersistenceFailure",
)
def test_failed_write_reverts_new_member_id() -> None:
    world = MembershipWorld()
    leader, follower = pair(world)
    world.partition.fails = ErrorCode.not_coordinator
    again = world.join(instance="two", protocols=BOTH, session_ms=7000)
    assert (again.error, again.response.member_id) == (ErrorCode.not_coordinator, "")
    assert list(world.group.members) == [leader, follower]
    assert len(world.group.members[follower].protocols) == 1
    assert world.group.members[follower].session_timeout_ms == 10_000
    assert world.heartbeat(follower, instance="two") is ErrorCode.none


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchanged"
)
def test_changed_protocols_with_same_selection_cause_no_rebalance() -> None:
    world = MembershipWorld()
    pair(world)
    assert world.join(instance="two", protocols=BOTH).response.protocol == "range"
    assert world.group.state is GroupState.STABLE


@pytest.mark.clause(
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateWithUpdatedProtocolTriggersRebalance",
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWithSelectedProtocolChanged",
)
def test_changed_protocols_with_other_selection_cause_rebalance() -> None:
    world = MembershipWorld()
    leader, _ = pair(world, protocols=BOTH)
    again = world.join(instance="two", protocols=ROUND_ROBIN)
    assert not again.responses
    assert world.group.state is GroupState.PREPARING_REBALANCE
    world.join(leader, instance="one", protocols=BOTH)
    assert (again.response.generation, again.response.protocol) == (2, "roundrobin")


@pytest.mark.clause("GroupMetadataManagerTest.testReplaceStaticMemberInCompletingRebalanceStateTriggersRebalance")
def test_restart_before_assignment_causes_rebalance() -> None:
    world = MembershipWorld()
    first, second = world.join(instance="one"), world.join(instance="two")
    world.pass_ms(0)
    leader = first.response.member_id
    assert second.response.leader == leader
    again = world.join(instance="two")
    assert not again.responses
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.join(leader, instance="one").response.generation == again.response.generation == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupReplaceStaticMember",
    "GroupMetadataManagerTest.testStaticMemberFenceDuplicateRejoiningFollowerAfterMemberIdChanged",
)
def test_duplicate_instance_fences_pending_join_of_first() -> None:
    world = MembershipWorld()
    waiting = world.join(instance="one")
    assert not waiting.responses
    second = world.join(instance="one")
    assert (waiting.error, waiting.response.member_id) == (
        ErrorCode.fenced_instance_id,
        world.members("fenced")[0],
    )
    world.pass_ms(0)
    assert second.error is ErrorCode.none
    assert len(world.group.members) == 1


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberFenceDuplicateSyncingFollowerAfterMemberIdChanged")
def test_duplicate_instance_fences_pending_sync_of_first() -> None:
    world = MembershipWorld()
    world.join(instance="one")
    second = world.join(instance="two")
    world.pass_ms(0)
    waiting = world.sync(second.response.member_id, instance="two")
    world.join(instance="two")
    assert waiting.error is ErrorCode.fenced_instance_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithMismatchedInstanceId",
    "GroupMetadataManagerTest.testStaticMemberRejoinAsLeaderWithMismatchedInstanceId",
    "GroupMetadataManagerTest.testStaticMemberSyncAsLeaderWithInvalidMemberId",
    "GroupMetadataManagerTest.testStaticMemberHeartbeatLeaderWithInvalidMemberId",
    "GroupMetadataManagerTest.testStaticMemberJoinWithUnknownInstanceIdAndKnownMemberId",
    "GroupMetadataManagerTest.testStaticMemberFenceDuplicateRejoinedFollower",
)
def test_mismatched_instance_and_member_id_are_rejected() -> None:
    world = MembershipWorld()
    leader, follower = pair(world)
    assert world.join(follower, instance="one").error is ErrorCode.fenced_instance_id
    assert world.join(leader, instance="two").error is ErrorCode.fenced_instance_id
    assert world.join(leader, instance="three").error is ErrorCode.unknown_member_id
    assert world.join("gone", instance="one").error is ErrorCode.fenced_instance_id
    assert world.sync("gone", instance="one").error is ErrorCode.fenced_instance_id
    assert world.heartbeat("gone", instance="one") is ErrorCode.fenced_instance_id
    assert world.heartbeat(leader, instance="three") is ErrorCode.unknown_member_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithLeaderIdAndKnownMemberId",
    "GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithKnownMemberIdAndNoProtocolChange",
    "GroupMetadataManagerTest.testStaticMemberRejoinWithKnownMemberId",
    "GroupMetadataManagerTest.testStaticMemberRejoinWithFollowerIdAndChangeOfProtocol",
)
def test_static_member_rejoining_with_known_member_id() -> None:
    world = MembershipWorld()
    leader, follower = pair(world)
    assert world.join(follower, instance="two").response.generation == 1
    assert world.group.state is GroupState.STABLE
    assert not world.join(leader, instance="one").responses
    assert world.group.state is GroupState.PREPARING_REBALANCE  # type: ignore[comparison-overlap]  # It changed.
    world = MembershipWorld()
    _, follower = pair(world)
    assert not world.join(follower, instance="two", protocols=BOTH).responses
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_rebalance_during_write_of_new_member_id_includes_it() -> None:
    world = MembershipWorld()
    leader, _ = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    world.join(leader, instance="one")
    assert again.response.generation == 2
    for each in world.partition.writes:
        each.written(ErrorCode.not_coordinator)
    assert again.response.member_id in world.group.members


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.not_coordinator])
def test_leave_during_write_of_new_member_id(error: Error) -> None:
    world = MembershipWorld()
    leader, _ = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    third = world.join(instance="two")
    assert again.error is ErrorCode.fenced_instance_id
    for each in world.partition.writes[1:]:
        each.written(error)
    assert third.error is error
    world.leave(("", "two"))
    assert list(world.group.members) == [leader]


def test_silent_static_member_expires_after_session() -> None:
    world = MembershipWorld()
    leader, follower = pair(world)
    world.alive_ms(10_000, leader)
    assert world.members("expired") == [follower]
    assert world.group.static_members == {"one": leader}
    assert world.heartbeat(leader) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.not_coordinator])
def test_static_member_expires_after_write_longer_than_session(error: Error) -> None:
    world = MembershipWorld()
    leader, _ = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    world.alive_ms(12_000, leader)
    assert not again.responses
    assert len(world.group.members) == 2, "a member with a pending response does not expire"
    world.partition.writes[-1].written(error)
    assert again.error is error
    world.alive_ms(10_000, leader)
    assert list(world.group.members) == [leader]


def test_absent_static_members_set_few_timers() -> None:
    """The rebalance timeout of its members ends at once, but the wait for joins does not."""
    world = MembershipWorld()
    _, dynamic = world.stable("one", None)
    for member in world.group.members.values():
        member.rebalance_timeout_ms = 0
    world.leave(dynamic)
    before = world.ports.timers_set
    world.pass_ms(5000)
    assert world.ports.timers_set - before <= 10
    assert world.group.state is GroupState.PREPARING_REBALANCE
