"""Groups when their partition is loaded or unloaded, or when they are deleted."""

import pytest

from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.tests.membership_world import WALL_MS, FakePartition, MembershipWorld
from reference_broker.ports.slicing import SERVED_GROUPS_PER_SLICE
from reference_broker.wire.errors import Error, ErrorCode


def recorded(group_id: str, *member_ids: str) -> Group:
    """Return the group as it is read from the log."""
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
def test_members_of_loaded_group_get_one_session_timeout() -> None:
    world = MembershipWorld()
    world.partition.groups["g"] = recorded("g", "a", "b")
    world.group_manager.loaded(world.partition)
    assert world.in_state(GroupState.STABLE) == 1
    assert world.heartbeat("a", 7) is ErrorCode.none
    assert world.sync("b", 7).response.assignment == b"b"
    world.pass_ms(5000)
    assert world.heartbeat("a", 7) is ErrorCode.none
    world.pass_ms(5000)
    assert world.members("expired") == ["b"]
    assert world.join("a").response.generation == 8


def test_loaded_groups_are_served_in_slices_and_requested_one_at_once() -> None:
    world = MembershipWorld()
    count = 3 * SERVED_GROUPS_PER_SLICE + 1
    for index in range(count):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "a")
    world.group_manager.loaded(world.partition)
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
def test_lost_partition_completes_all_pending_requests() -> None:
    world = MembershipWorld()
    world.partition.holds = True
    joining = world.new()[1]
    first, _ = world.new(group="other")
    world.group_manager.serve(world.partition, world.partition.add_group(Group("none", WALL_MS)))
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


def test_reloaded_partition_has_new_groups_of_same_names() -> None:
    """The partition is loaded again while the groups of the earlier load are still being dropped."""
    world = MembershipWorld()
    count = 2 * SERVED_GROUPS_PER_SLICE
    for index in range(count):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "a")
    world.group_manager.loaded(world.partition)
    world.pass_ms(0)
    lost, world.store.partition = world.lose(), FakePartition()
    for index in range(count):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "b")
    world.group_manager.loaded(world.partition)
    last = f"g{count - 1}"
    assert world.heartbeat("a", 7, group=last) is ErrorCode.unknown_member_id
    assert world.heartbeat("b", 7, group=last) is ErrorCode.none
    world.pass_ms(5000)
    assert world.metrics.groups.value == count
    world.group_manager.extend_session(world.partition, last, "b")
    world.pass_ms(5000)
    assert world.in_state(GroupState.STABLE) == 1
    assert world.heartbeat("b", 7, group=last) is ErrorCode.none
    world.group_manager.unloaded(lost)
    assert world.heartbeat("b", 7, group=last) is ErrorCode.none


def test_groups_of_lost_partition_do_not_change() -> None:
    """Also to groups whose turn to be dropped has not come."""
    world = MembershipWorld()
    for index in range(SERVED_GROUPS_PER_SLICE):
        world.partition.groups[f"g{index}"] = recorded(f"g{index}", "a")
    world.group_manager.loaded(world.partition)
    world.partition.holds = True
    member, _ = world.new()
    world.pass_ms(0)
    syncing = world.sync(member)
    group, lost = world.group, world.lose()
    lost.writes[0].written(ErrorCode.none)
    assert group.state is GroupState.COMPLETING_REBALANCE
    world.pass_ms(0)
    assert (group.state, syncing.error) == (GroupState.DEAD, ErrorCode.not_coordinator)


def test_unload_of_unused_partition() -> None:
    world = MembershipWorld()
    world.lose()
    assert world.metrics.groups.value == 0


# --- deleting -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("GroupMetadataManagerTest.testClassicGroupDelete")
def test_delete_of_group_with_members_is_rejected() -> None:
    world = MembershipWorld()
    errors: list[Error] = []
    world.group_manager.delete_group("g", errors.append)
    (member,) = world.stable(None)
    world.group_manager.delete_group("g", errors.append)
    world.leave(member)
    world.partition.holds = True
    world.group_manager.delete_group("g", errors.append)
    assert errors == [ErrorCode.group_id_not_found, ErrorCode.non_empty_group]
    write = world.partition.writes[-1]
    assert write.state is GroupState.DEAD
    assert not world.partition.groups
    write.written(ErrorCode.none)
    assert errors[2:] == [ErrorCode.none]
    assert world.metrics.groups.value == 0
    world.store.is_loading = True
    world.group_manager.delete_group("g", errors.append)
    assert errors[3:] == [ErrorCode.coordinator_load_in_progress]


def test_deleted_group_is_recreated_by_join() -> None:
    world = MembershipWorld()
    (member,) = world.stable(None)
    world.leave(member)
    world.group_manager.delete_group("g", list[Error]().append)
    assert world.heartbeat(member, 1) is ErrorCode.unknown_member_id
    _, joining = world.new()
    world.pass_ms(0)
    assert joining.response.generation == 1


@pytest.mark.clause("GroupMetadataManagerTest.testClassicGroupMaybeDelete")
def test_group_is_unused_without_members_and_pending_joins() -> None:
    world = MembershipWorld()
    (member,) = world.stable(None)
    group, partition = world.group, world.partition
    assert not world.group_manager.delete_unused(partition, group)
    world.leave(member)
    pending = world.join().response.member_id
    assert not world.group_manager.delete_unused(partition, group)
    world.leave(pending)
    assert world.group_manager.delete_unused(partition, group)
    assert partition.writes[-1].state is GroupState.DEAD
    assert not partition.groups
    assert world.ports.armed == 0
