"""What becomes of groups when a partition is taken up, dropped, or a group is deleted."""

import pytest

from reference_broker.groups.group import Group, GroupState, Member, MemberProtocol
from reference_broker.groups.tests.membership_world import WALL_MS, FakePartition, World
from reference_broker.ports.slicing import SERVED_GROUPS_PER_SLICE
from reference_broker.wire.errors import Error, ErrorCode


def recorded(group_id: str, *member_ids: str) -> Group:
    """As it is read from the log."""
    members = tuple(
        Member(each, None, "c", "/h", 60_000, 10_000, (MemberProtocol("range", b""),), each.encode())
        for each in member_ids
    )
    leader = member_ids[0] if member_ids else None
    return Group.loaded(group_id, 7, "consumer", "range" if members else None, leader, WALL_MS, members)


@pytest.mark.clause(
    "GroupMetadataManagerTest.testOnLoadedSchedulesClassicGroupMemberHeartbeats",
    "GroupMetadataManagerTest.testOnClassicGroupStateTransitionOnLoading",
)
def test_a_loaded_group_goes_on_and_its_members_have_one_session_to_be_heard() -> None:
    world = World()
    world.partition.groups["g"] = recorded("g", "a", "b")
    world.membership.loaded(world.partition)
    assert world.in_state(GroupState.STABLE) == 1
    assert world.heartbeat("a", 7) is ErrorCode.none
    assert world.sync("b", 7).answer.assignment == b"b"
    world.pass_ms(5000)
    assert world.heartbeat("a", 7) is ErrorCode.none
    world.pass_ms(5000)
    assert world.members("expired") == ["b"]
    assert world.join("a").answer.generation == 8


def test_many_groups_are_taken_up_in_slices_and_one_that_is_asked_for_at_once() -> None:
    world = World()
    count = 3 * SERVED_GROUPS_PER_SLICE + 1
    for index in range(count):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "a")
    world.membership.loaded(world.partition)
    assert world.metrics.groups.value == SERVED_GROUPS_PER_SLICE
    assert world.heartbeat("a", 7, group=f"g{count - 1}") is ErrorCode.none
    assert world.metrics.groups.value == SERVED_GROUPS_PER_SLICE + 1
    world.pass_ms(0)
    assert world.metrics.groups.value == count
    world.pass_ms(10_000)
    assert world.in_state(GroupState.EMPTY) == count


@pytest.mark.clause(
    "GroupMetadataManagerTest.testClassicGroupOnUnloadedEmptyAndPreparingRebalance",
    "GroupMetadataManagerTest.testClassicGroupOnUnloadedCompletingRebalance",
)
def test_a_lost_partition_answers_all_who_wait() -> None:
    world = World()
    world.partition.holds = True
    joining = world.new()[1]
    first, _ = world.new(group="other")
    world.membership.serve(world.partition, world.partition.add_group(Group("none", WALL_MS)))
    world.pass_ms(0)
    syncing = world.sync(first, 1, group="other")
    second = world.new()[1]
    lost = world.lose()
    assert joining.error is ErrorCode.none
    assert second.error is ErrorCode.not_coordinator
    assert syncing.error is ErrorCode.not_coordinator
    assert world.heartbeat(first, 1, group="other") is ErrorCode.not_coordinator
    assert world.ports.armed <= 1
    lost.writes[0].written(ErrorCode.none)
    world.pass_ms(600_000)
    assert world.metrics.groups.value == 0
    assert all(each.state is GroupState.DEAD for each in lost.groups.values())


def test_a_partition_that_comes_back_has_other_groups_of_the_same_names() -> None:
    """Loaded again while the groups of its former life are still being dropped."""
    world = World()
    count = 2 * SERVED_GROUPS_PER_SLICE
    for index in range(count):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "a")
    world.membership.loaded(world.partition)
    world.pass_ms(0)
    lost, world.store.partition = world.lose(), FakePartition()
    for index in range(count):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "b")
    world.membership.loaded(world.partition)
    last = f"g{count - 1}"
    assert world.heartbeat("a", 7, group=last) is ErrorCode.unknown_member_id
    assert world.heartbeat("b", 7, group=last) is ErrorCode.none
    world.pass_ms(5000)
    assert world.metrics.groups.value == count
    world.membership.extend_session(world.partition, last, "b")
    world.pass_ms(5000)
    assert world.in_state(GroupState.STABLE) == 1
    assert world.heartbeat("b", 7, group=last) is ErrorCode.none
    world.membership.unloaded(lost)
    assert world.heartbeat("b", 7, group=last) is ErrorCode.none


def test_from_the_moment_a_partition_is_lost_nothing_happens_to_its_groups() -> None:
    """Those whose turn to be dropped has not come, too."""
    world = World()
    for index in range(SERVED_GROUPS_PER_SLICE):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "a")
    world.membership.loaded(world.partition)
    world.partition.holds = True
    member, _ = world.new()
    world.pass_ms(0)
    syncing = world.sync(member)
    group, lost = world.group, world.lose()
    lost.writes[0].written(ErrorCode.none)
    assert group.state is GroupState.COMPLETING_REBALANCE
    world.pass_ms(0)
    assert (group.state, syncing.error) == (GroupState.DEAD, ErrorCode.not_coordinator)


def test_unloading_what_was_never_asked_for() -> None:
    world = World()
    world.lose()
    assert world.metrics.groups.value == 0


# --- deleting -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("GroupMetadataManagerTest.testClassicGroupDelete")
def test_only_groups_without_members_are_deleted() -> None:
    world = World()
    errors: list[Error] = []
    world.membership.delete("g", errors.append)
    (member,) = world.stable(None)
    world.membership.delete("g", errors.append)
    world.leave(member)
    world.partition.holds = True
    world.membership.delete("g", errors.append)
    assert errors == [ErrorCode.group_id_not_found, ErrorCode.non_empty_group]
    write = world.partition.writes[-1]
    assert write.state is GroupState.DEAD
    assert not world.partition.groups
    write.written(ErrorCode.none)
    assert errors[2:] == [ErrorCode.none]
    assert world.metrics.groups.value == 0
    world.store.is_loading = True
    world.membership.delete("g", errors.append)
    assert errors[3:] == [ErrorCode.coordinator_load_in_progress]


def test_a_deleted_group_begins_anew() -> None:
    world = World()
    (member,) = world.stable(None)
    world.leave(member)
    world.membership.delete("g", list[Error]().append)
    assert world.heartbeat(member, 1) is ErrorCode.unknown_member_id
    _, joining = world.new()
    world.pass_ms(0)
    assert joining.answer.generation == 1


@pytest.mark.clause("GroupMetadataManagerTest.testClassicGroupMaybeDelete")
def test_a_group_is_unused_when_nobody_is_in_it_or_about_to_be() -> None:
    world = World()
    (member,) = world.stable(None)
    group, partition = world.group, world.partition
    assert not world.membership.delete_unused(partition, group)
    world.leave(member)
    pending = world.join().answer.member_id
    assert not world.membership.delete_unused(partition, group)
    world.leave(pending)
    assert world.membership.delete_unused(partition, group)
    assert partition.writes[-1].state is GroupState.DEAD
    assert not partition.groups
    assert world.ports.armed == 0
