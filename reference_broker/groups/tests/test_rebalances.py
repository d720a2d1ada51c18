"""The time that a generation waits for its members, and the removal of members that do not join."""

from collections.abc import Callable

import pytest

from reference_broker.groups.group import GroupState
from reference_broker.groups.tests.membership_world import MembershipWorld
from reference_broker.ports.slicing import REBALANCED_MEMBERS_PER_SLICE
from reference_broker.wire.errors import ErrorCode

# --- group.initial.rebalance.delay.ms -------------------------------------------------------------------------------


@pytest.mark.clause("GroupMetadataManagerTest.testDelayInitialRebalanceByGroupInitialRebalanceDelayOnEmptyGroup")
def test_initial_rebalance_waits_for_delay() -> None:
    world = MembershipWorld(group_initial_rebalance_delay_ms=3000)
    _, joining = world.new()
    world.pass_ms(2999)
    assert not joining.responses
    world.pass_ms(1)
    assert joining.response.generation == 1


@pytest.mark.clause("GroupMetadataManagerTest.testResetRebalanceDelayWhenNewMemberJoinsGroupDuringInitialRebalance")
def test_join_during_initial_delay_restarts_it() -> None:
    world = MembershipWorld(group_initial_rebalance_delay_ms=3000)
    _, first = world.new()
    world.pass_ms(2000)
    _, second = world.new()
    world.pass_ms(3999)
    assert first.responses == second.responses == []
    world.pass_ms(1)
    assert first.response.generation == second.response.generation == 1


@pytest.mark.clause("GroupMetadataManagerTest.testDelayRebalanceUptoRebalanceTimeout")
def test_initial_delay_ends_at_rebalance_timeout() -> None:
    world = MembershipWorld(group_initial_rebalance_delay_ms=3000)
    _, first = world.new(rebalance_ms=7000)
    for _ in range(6):
        world.pass_ms(1000)
        world.new(rebalance_ms=7000)
    assert not first.responses
    world.pass_ms(999)
    assert not first.responses
    world.pass_ms(1)
    assert (first.response.generation, len(first.response.members)) == (1, 7)


def test_group_is_empty_if_all_leave_during_initial_delay() -> None:
    world = MembershipWorld(group_initial_rebalance_delay_ms=3000)
    member, joining = world.new()
    assert world.leave(member) == (ErrorCode.none,)
    assert joining.error is ErrorCode.unknown_member_id
    assert world.group.state is GroupState.PREPARING_REBALANCE
    world.pass_ms(3000)
    assert (world.group.state, world.group.generation) == (GroupState.EMPTY, 1)
    assert world.partition.writes[-1].state is GroupState.EMPTY


# --- the rebalance timeout ------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testCompleteJoinRemoveNotYetRejoinedDynamicMembers",
    "GroupMetadataManagerTest.testRebalanceCompletesBeforeMemberJoins",
)
def test_dynamic_members_not_rejoining_in_time_are_removed() -> None:
    world = MembershipWorld()
    leader, absent = world.stable(None, None, rebalance_ms=30_000)
    again = world.join(leader, rebalance_ms=30_000)
    world.alive_ms(29_000, absent)
    assert not again.responses
    world.alive_ms(1000, absent)
    assert (again.response.generation, list(world.group.members)) == (2, [leader])
    assert world.heartbeat(absent) is ErrorCode.unknown_member_id
    assert world.join(absent).error is ErrorCode.unknown_member_id


def test_longest_rebalance_timeout_of_members_applies() -> None:
    world = MembershipWorld()
    leader, follower = world.stable(None, None, rebalance_ms=30_000)
    again = world.join(leader, rebalance_ms=20_000)
    world.alive_ms(29_000, follower)
    assert not again.responses
    world.alive_ms(1000, follower)
    assert again.response.generation == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testCompleteJoinPhaseNoMembersRejoinedExtendsJoinPhase",
    "GroupMetadataManagerTest.testGroupStuckInRebalanceTimeoutDueToNonjoinedStaticMember",
)
def test_rebalance_waits_for_absent_static_members_until_session_timeout() -> None:
    world = MembershipWorld()
    first, second = world.stable("one", "two", rebalance_ms=20_000, session_ms=50_000)
    world.leave("nobody")
    pending = world.join().response.member_id
    world.join(pending, rebalance_ms=20_000)
    world.leave(pending)
    assert world.group.state is GroupState.PREPARING_REBALANCE
    world.pass_ms(20_000)
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.group.generation == 1
    world.pass_ms(30_000)
    assert sorted(world.members("expired")) == sorted([first, second])
    assert (world.group.state, world.group.generation) == (GroupState.EMPTY, 2)


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberLeaderFailToRejoinBeforeRebalanceTimeout")
def test_absent_static_leader_stays_member_and_loses_leadership() -> None:
    world = MembershipWorld()
    leader, follower = world.stable("one", "two", rebalance_ms=20_000, session_ms=60_000)
    _, third = world.new(rebalance_ms=20_000)
    again = world.join(follower, instance="two", rebalance_ms=20_000)
    world.pass_ms(20_000)
    assert (again.response.generation, again.response.leader) == (2, follower)
    assert sorted(each.member_id for each in again.response.members) == sorted(world.group.members)
    assert leader in world.group.members
    assert third.response.leader == follower


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberFollowerFailToRejoinBeforeRebalanceTimeout")
def test_absent_static_follower_stays_member() -> None:
    world = MembershipWorld()
    leader, follower = world.stable("one", "two", rebalance_ms=20_000, session_ms=60_000)
    again = world.join(leader, instance="one", rebalance_ms=20_000)
    world.pass_ms(20_000)
    assert (again.response.generation, again.response.leader) == (2, leader)
    assert follower in [each.member_id for each in again.response.members]


# --- members that do not sync ---------------------------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceived",
    "GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromLeaders",
)
def test_members_not_syncing_in_time_are_removed_and_others_rejoin() -> None:
    world = MembershipWorld()
    first, joining = world.new(rebalance_ms=20_000)
    second, _ = world.new(rebalance_ms=20_000)
    world.pass_ms(0)
    assert joining.response.leader == first
    waiting = world.sync(second)
    world.alive_ms(20_000, first)
    assert waiting.error is ErrorCode.rebalance_in_progress
    assert world.members("expired") == [first]
    assert (world.group.state, world.group.leader) == (GroupState.PREPARING_REBALANCE, second)
    assert world.join(second).response.generation == 2


@pytest.mark.clause("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers")
def test_stable_group_removes_followers_not_syncing_in_time() -> None:
    world = MembershipWorld()
    first, _ = world.new(rebalance_ms=20_000)
    second, _ = world.new(rebalance_ms=20_000)
    world.pass_ms(0)
    assert world.sync(first, assignments={}).error is ErrorCode.none
    assert world.group.state is GroupState.STABLE
    world.alive_ms(20_000, first, second)
    assert world.members("expired") == [second]
    assert world.group.state is GroupState.PREPARING_REBALANCE  # type: ignore[comparison-overlap]  # It changed.


@pytest.mark.clause("GroupMetadataManagerTest.testRebalanceDoesNotTimeOutWhenAllSyncAreReceived")
def test_synced_members_are_not_removed() -> None:
    world = MembershipWorld()
    ids = world.stable(None, None, rebalance_ms=20_000)
    world.alive_ms(60_000, *ids)
    assert (world.group.state, world.group.generation) == (GroupState.STABLE, 1)
    for member_id in ids:
        assert world.sync(member_id).response.assignment == member_id.encode()


def test_sync_timeout_restarts_with_each_generation() -> None:
    world = MembershipWorld()
    first, _ = world.new(rebalance_ms=20_000)
    second, _ = world.new(rebalance_ms=20_000)
    world.pass_ms(0)
    world.sync(first)
    world.alive_ms(10_000, first, second)
    world.join(first, rebalance_ms=20_000)
    world.join(second, rebalance_ms=20_000)
    assert world.group.generation == 2
    world.sync(first)
    world.alive_ms(19_000, first, second)
    assert world.members("expired") == []
    world.alive_ms(1000, first, second)
    assert world.members("expired") == [second]


def test_join_responses_of_large_group_are_sent_in_slices() -> None:
    world = MembershipWorld()
    joins = dict(world.new() for _ in range(2 * REBALANCED_MEMBERS_PER_SLICE + 1))
    leader = next(iter(joins))
    responded: list[int] = []
    step = world.ports.set_timer

    def counted(deadline_us: int, fire: Callable[[], None]) -> int:
        responded.append(sum(bool(each.responses) for each in joins.values()))
        return step(deadline_us, fire)

    world.ports.set_timer = counted  # type: ignore[method-assign]
    world.pass_ms(0)
    assert [each.response.generation for each in joins.values()] == [1] * len(joins)
    assert len(joins[leader].response.members) == len(joins)
    assert {REBALANCED_MEMBERS_PER_SLICE, 2 * REBALANCED_MEMBERS_PER_SLICE} <= set(responded)


def test_rebalance_between_slices_of_join_responses_keeps_waiting_members() -> None:
    world = MembershipWorld()
    joins = dict(world.new() for _ in range(REBALANCED_MEMBERS_PER_SLICE + 2))
    first, *_, gone, last = joins
    step = world.ports.set_timer
    held: list[Callable[[], None]] = []

    def hold(deadline_us: int, fire: Callable[[], None]) -> int:
        now = world.group.state is GroupState.COMPLETING_REBALANCE and deadline_us == world.ports.mono_us
        if not now:
            return step(deadline_us, fire)
        held.append(fire)
        return 0

    world.ports.set_timer = hold  # type: ignore[method-assign]
    world.pass_ms(0)
    assert (bool(joins[first].responses), bool(joins[last].responses)) == (True, False)
    world.leave(gone)
    for fire in held:
        fire()
    assert not joins[last].responses
    for member_id in tuple(world.group.members):
        if member_id != last:
            world.join(member_id)
    for fire in held:
        fire()
    assert joins[last].response.generation == 2


# --- the next generation --------------------------------------------------------------------------------------------


def test_emptied_group_continues_with_next_generation_and_any_protocol() -> None:
    world = MembershipWorld()
    (member,) = world.stable(None)
    world.leave(member)
    assert (world.group.state, world.group.generation, world.group.protocol) == (GroupState.EMPTY, 2, None)
    _, joining = world.new(protocol_type="connect")
    world.pass_ms(0)
    assert (joining.response.generation, joining.response.protocol_type) == (3, "connect")


def test_rebalance_metrics() -> None:
    world = MembershipWorld()
    world.stable(None)
    assert (world.in_state(GroupState.STABLE), world.in_state(GroupState.EMPTY)) == (1, 0)
    assert world.metrics.rebalances.value == 1
    world.pass_ms(10_000)
    assert (world.in_state(GroupState.STABLE), world.in_state(GroupState.EMPTY)) == (0, 1)
    assert world.metrics.groups.value == 1
    assert world.states() == ["PreparingRebalance", "CompletingRebalance", "Stable", "PreparingRebalance", "Empty"]
