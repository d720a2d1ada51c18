"""Static members: an instance that starts again, and whoever still uses its old ID."""

import pytest

from reference_broker.groups.group import GroupState, MemberProtocol
from reference_broker.groups.tests.membership_world import BOTH, World
from reference_broker.wire.errors import Error, ErrorCode

ROUND_ROBIN = (MemberProtocol("roundrobin", b"r"),)


def pair(world: World, **how: object) -> tuple[str, str]:
    """Leader "one" and follower "two" of a stable group."""
    leader, follower = world.stable("one", "two", **how)
    assert world.group.static_members == {"one": leader, "two": follower}
    return leader, follower


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberJoinAsFirstMember",
    "GroupMetadataManagerTest.testGetDifferentStaticMemberIdAfterEachRejoin",
)
def test_a_static_member_joins_at_once_and_gets_another_id_each_time() -> None:
    world = World()
    joining = world.join(instance="one")
    world.pass_ms(0)
    first = joining.answer.member_id
    assert first.startswith("one-")
    world.sync(first, instance="one")
    later = [world.join(instance="one").answer.member_id for _ in range(3)]
    assert len(dict.fromkeys([first, *later])) == 4
    assert world.group.generation == 1


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberRejoinAsFollowerWithUnknownMemberId",
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateSucceeds",
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateNoError",
)
def test_a_follower_that_starts_again_causes_no_rebalance_and_keeps_its_assignment() -> None:
    world = World()
    leader, old = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    assert not again.answers
    (write,) = [each for each in world.partition.writes if len(each.assignments) == 2][1:]
    write.written(ErrorCode.none)
    new = again.answer.member_id
    assert write.assignments == {leader: leader.encode(), new: old.encode()}
    assert (again.answer.generation, again.answer.leader, again.answer.skip_assignment) == (1, leader, False)
    assert world.group.state is GroupState.STABLE
    assert world.sync(new, instance="two").answer.assignment == old.encode()
    assert world.heartbeat(old, instance="two") is ErrorCode.fenced_instance_id
    assert world.heartbeat(old) is ErrorCode.unknown_member_id
    assert world.heartbeat(new, instance="two") is ErrorCode.none


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberRejoinWithLeaderIdAndUnknownMemberId")
def test_a_leader_that_starts_again_does_not_assign_again() -> None:
    world = World()
    old, follower = pair(world)
    again = world.join(instance="one").answer
    assert (again.leader, again.skip_assignment, again.generation) == (again.member_id, True, 1)
    assert [each.member_id for each in again.members] == [again.member_id, follower]
    assert world.group.leader == again.member_id
    older = world.join(instance="one", version=8).answer
    assert (older.leader, older.skip_assignment, older.members) == (again.member_id, False, ())
    assert older.leader != older.member_id == world.group.leader
    assert old not in world.group.members


@pytest.mark.clause(
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateErrors",
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchangedPersistenceFailure",
)
def test_a_new_id_that_cannot_be_written_is_taken_back() -> None:
    world = World()
    leader, follower = pair(world)
    world.partition.fails = ErrorCode.not_coordinator
    again = world.join(instance="two", protocols=BOTH, session_ms=7000)
    assert (again.error, again.answer.member_id) == (ErrorCode.not_coordinator, "")
    assert list(world.group.members) == [leader, follower]
    assert len(world.group.members[follower].protocols) == 1
    assert world.group.members[follower].session_timeout_ms == 10_000
    assert world.heartbeat(follower, instance="two") is ErrorCode.none


@pytest.mark.clause(
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWhileSelectProtocolUnchanged"
)
def test_other_protocols_that_do_not_change_the_groups_cause_no_rebalance() -> None:
    world = World()
    pair(world)
    assert world.join(instance="two", protocols=BOTH).answer.protocol == "range"
    assert world.group.state is GroupState.STABLE


@pytest.mark.clause(
    "GroupMetadataManagerTest.testReplaceStaticMemberInStableStateWithUpdatedProtocolTriggersRebalance",
    "GroupMetadataManagerTest.testStaticMemberRejoinWithUnknownMemberIdAndChangeOfProtocolWithSelectedProtocolChanged",
)
def test_other_protocols_that_change_the_groups_cause_one() -> None:
    world = World()
    leader, _ = pair(world, protocols=BOTH)
    again = world.join(instance="two", protocols=ROUND_ROBIN)
    assert not again.answers
    assert world.group.state is GroupState.PREPARING_REBALANCE
    world.join(leader, instance="one", protocols=BOTH)
    assert (again.answer.generation, again.answer.protocol) == (2, "roundrobin")


@pytest.mark.clause("GroupMetadataManagerTest.testReplaceStaticMemberInCompletingRebalanceStateTriggersRebalance")
def test_before_the_assignment_is_known_a_new_id_always_causes_one() -> None:
    world = World()
    first, second = world.join(instance="one"), world.join(instance="two")
    world.pass_ms(0)
    leader = first.answer.member_id
    assert second.answer.leader == leader
    again = world.join(instance="two")
    assert not again.answers
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.join(leader, instance="one").answer.generation == again.answer.generation == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupReplaceStaticMember",
    "GroupMetadataManagerTest.testStaticMemberFenceDuplicateRejoiningFollowerAfterMemberIdChanged",
)
def test_a_second_process_of_an_instance_fences_the_first_that_still_joins() -> None:
    world = World()
    waiting = world.join(instance="one")
    assert not waiting.answers
    second = world.join(instance="one")
    assert (waiting.error, waiting.answer.member_id) == (
        ErrorCode.fenced_instance_id,
        world.members("fenced")[0],
    )
    world.pass_ms(0)
    assert second.error is ErrorCode.none
    assert len(world.group.members) == 1


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberFenceDuplicateSyncingFollowerAfterMemberIdChanged")
def test_and_the_one_that_still_waits_for_its_assignment() -> None:
    world = World()
    world.join(instance="one")
    second = world.join(instance="two")
    world.pass_ms(0)
    waiting = world.sync(second.answer.member_id, instance="two")
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
def test_an_instance_is_who_it_says_only_with_its_own_member_id() -> None:
    world = World()
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
def test_with_its_member_id_a_static_member_joins_like_any_other() -> None:
    world = World()
    leader, follower = pair(world)
    assert world.join(follower, instance="two").answer.generation == 1
    assert world.group.state is GroupState.STABLE
    assert not world.join(leader, instance="one").answers
    assert world.group.state is GroupState.PREPARING_REBALANCE  # type: ignore[comparison-overlap]  # It changed.
    world = World()
    _, follower = pair(world)
    assert not world.join(follower, instance="two", protocols=BOTH).answers
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_a_rebalance_that_begins_while_the_new_id_is_written_takes_it_along() -> None:
    world = World()
    leader, _ = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    world.join(leader, instance="one")
    assert again.answer.generation == 2
    for each in world.partition.writes:
        each.written(ErrorCode.not_coordinator)
    assert again.answer.member_id in world.group.members


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.not_coordinator])
def test_a_member_that_leaves_while_its_new_id_is_written(error: Error) -> None:
    world = World()
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


def test_a_static_member_that_is_silent_for_its_session_is_given_up() -> None:
    world = World()
    leader, follower = pair(world)
    world.alive_ms(10_000, leader)
    assert world.members("expired") == [follower]
    assert world.group.static_members == {"one": leader}
    assert world.heartbeat(leader) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.not_coordinator])
def test_and_so_is_one_whose_new_id_took_longer_to_write_than_its_session(error: Error) -> None:
    world = World()
    leader, _ = pair(world)
    world.partition.holds = True
    again = world.join(instance="two")
    world.alive_ms(12_000, leader)
    assert not again.answers
    assert len(world.group.members) == 2, "a member that waits for an answer is excused"
    world.partition.writes[-1].written(error)
    assert again.error is error
    world.alive_ms(10_000, leader)
    assert list(world.group.members) == [leader]


def test_a_group_of_silent_static_members_does_not_keep_the_node_busy() -> None:
    """Whose rebalance timeout is over at once: the wait for somebody to join is not."""
    world = World()
    _, dynamic = world.stable("one", None)
    for member in world.group.members.values():
        member.rebalance_timeout_ms = 0
    world.leave(dynamic)
    before = world.ports.timers_set
    world.pass_ms(5000)
    assert world.ports.timers_set - before <= 10
    assert world.group.state is GroupState.PREPARING_REBALANCE
