"""How long a generation is waited for, and what becomes of those who do not come."""

from collections.abc import Callable

import pytest

from reference_broker.groups.group import GroupState
from reference_broker.groups.tests.membership_world import World
from reference_broker.ports.slicing import REBALANCED_MEMBERS_PER_SLICE
from reference_broker.wire.errors import ErrorCode

# --- group.initial.rebalance.delay.ms -------------------------------------------------------------------------------


@pytest.mark.clause("GroupMetadataManagerTest.testDelayInitialRebalanceByGroupInitialRebalanceDelayOnEmptyGroup")
def test_a_group_that_was_empty_waits_for_more_members() -> None:
    world = World(group_initial_rebalance_delay_ms=3000)
    _, joining = world.new()
    world.pass_ms(2999)
    assert not joining.answers
    world.pass_ms(1)
    assert joining.answer.generation == 1


@pytest.mark.clause("GroupMetadataManagerTest.testResetRebalanceDelayWhenNewMemberJoinsGroupDuringInitialRebalance")
def test_whoever_comes_meanwhile_begins_the_delay_anew() -> None:
    world = World(group_initial_rebalance_delay_ms=3000)
    _, first = world.new()
    world.pass_ms(2000)
    _, second = world.new()
    world.pass_ms(3999)
    assert first.answers == second.answers == []
    world.pass_ms(1)
    assert first.answer.generation == second.answer.generation == 1


@pytest.mark.clause("GroupMetadataManagerTest.testDelayRebalanceUptoRebalanceTimeout")
def test_the_delay_ends_with_the_rebalance_timeout() -> None:
    world = World(group_initial_rebalance_delay_ms=3000)
    _, first = world.new(rebalance_ms=7000)
    for _ in range(6):
        world.pass_ms(1000)
        world.new(rebalance_ms=7000)
    assert not first.answers
    world.pass_ms(999)
    assert not first.answers
    world.pass_ms(1)
    assert (first.answer.generation, len(first.answer.members)) == (1, 7)


def test_everybody_leaves_during_the_delay() -> None:
    world = World(group_initial_rebalance_delay_ms=3000)
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
def test_dynamic_members_that_do_not_join_in_time_are_given_up() -> None:
    world = World()
    leader, absent = world.stable(None, None, rebalance_ms=30_000)
    again = world.join(leader, rebalance_ms=30_000)
    world.alive_ms(29_000, absent)
    assert not again.answers
    world.alive_ms(1000, absent)
    assert (again.answer.generation, list(world.group.members)) == (2, [leader])
    assert world.heartbeat(absent) is ErrorCode.unknown_member_id
    assert world.join(absent).error is ErrorCode.unknown_member_id


def test_the_longest_rebalance_timeout_of_a_member_counts() -> None:
    world = World()
    leader, follower = world.stable(None, None, rebalance_ms=30_000)
    again = world.join(leader, rebalance_ms=20_000)
    world.alive_ms(29_000, follower)
    assert not again.answers
    world.alive_ms(1000, follower)
    assert again.answer.generation == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testCompleteJoinPhaseNoMembersRejoinedExtendsJoinPhase",
    "GroupMetadataManagerTest.testGroupStuckInRebalanceTimeoutDueToNonjoinedStaticMember",
)
def test_where_only_static_members_are_absent_they_are_waited_for_until_their_sessions_end() -> None:
    world = World()
    first, second = world.stable("one", "two", rebalance_ms=20_000, session_ms=50_000)
    world.leave("nobody")
    pending = world.join().answer.member_id
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
def test_a_static_leader_that_is_absent_stays_a_member_and_leads_no_more() -> None:
    world = World()
    leader, follower = world.stable("one", "two", rebalance_ms=20_000, session_ms=60_000)
    _, third = world.new(rebalance_ms=20_000)
    again = world.join(follower, instance="two", rebalance_ms=20_000)
    world.pass_ms(20_000)
    assert (again.answer.generation, again.answer.leader) == (2, follower)
    assert sorted(each.member_id for each in again.answer.members) == sorted(world.group.members)
    assert leader in world.group.members
    assert third.answer.leader == follower


@pytest.mark.clause("GroupMetadataManagerTest.testStaticMemberFollowerFailToRejoinBeforeRebalanceTimeout")
def test_a_static_follower_that_is_absent_stays_a_member() -> None:
    world = World()
    leader, follower = world.stable("one", "two", rebalance_ms=20_000, session_ms=60_000)
    again = world.join(leader, instance="one", rebalance_ms=20_000)
    world.pass_ms(20_000)
    assert (again.answer.generation, again.answer.leader) == (2, leader)
    assert follower in [each.member_id for each in again.answer.members]


# --- members that do not sync ---------------------------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceived",
    "GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromLeaders",
)
def test_members_that_never_sync_are_given_up_and_the_others_join_again() -> None:
    world = World()
    first, joining = world.new(rebalance_ms=20_000)
    second, _ = world.new(rebalance_ms=20_000)
    world.pass_ms(0)
    assert joining.answer.leader == first
    waiting = world.sync(second)
    world.alive_ms(20_000, first)
    assert waiting.error is ErrorCode.rebalance_in_progress
    assert world.members("expired") == [first]
    assert (world.group.state, world.group.leader) == (GroupState.PREPARING_REBALANCE, second)
    assert world.join(second).answer.generation == 2


@pytest.mark.clause("GroupMetadataManagerTest.testRebalanceTimesOutWhenSyncRequestIsNotReceivedFromFollowers")
def test_a_stable_group_gives_up_followers_that_never_sync() -> None:
    world = World()
    first, _ = world.new(rebalance_ms=20_000)
    second, _ = world.new(rebalance_ms=20_000)
    world.pass_ms(0)
    assert world.sync(first, assignments={}).error is ErrorCode.none
    assert world.group.state is GroupState.STABLE
    world.alive_ms(20_000, first, second)
    assert world.members("expired") == [second]
    assert world.group.state is GroupState.PREPARING_REBALANCE  # type: ignore[comparison-overlap]  # It changed.


@pytest.mark.clause("GroupMetadataManagerTest.testRebalanceDoesNotTimeOutWhenAllSyncAreReceived")
def test_members_that_have_all_synced_are_left_alone() -> None:
    world = World()
    ids = world.stable(None, None, rebalance_ms=20_000)
    world.alive_ms(60_000, *ids)
    assert (world.group.state, world.group.generation) == (GroupState.STABLE, 1)
    for member_id in ids:
        assert world.sync(member_id).answer.assignment == member_id.encode()


def test_each_generation_has_its_own_time_to_sync() -> None:
    world = World()
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


def test_a_large_group_is_told_of_its_generation_in_slices() -> None:
    world = World()
    joins = dict(world.new() for _ in range(2 * REBALANCED_MEMBERS_PER_SLICE + 1))
    leader = next(iter(joins))
    responded: list[int] = []
    step = world.ports.set_timer

    def counted(deadline_us: int, fire: Callable[[], None]) -> int:
        responded.append(sum(bool(each.answers) for each in joins.values()))
        return step(deadline_us, fire)

    world.ports.set_timer = counted  # type: ignore[method-assign]
    world.pass_ms(0)
    assert [each.answer.generation for each in joins.values()] == [1] * len(joins)
    assert len(joins[leader].answer.members) == len(joins)
    assert {REBALANCED_MEMBERS_PER_SLICE, 2 * REBALANCED_MEMBERS_PER_SLICE} <= set(responded)


def test_a_rebalance_that_begins_before_all_are_told_has_those_already() -> None:
    world = World()
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
    assert (bool(joins[first].answers), bool(joins[last].answers)) == (True, False)
    world.leave(gone)
    for fire in held:
        fire()
    assert not joins[last].answers
    for member_id in tuple(world.group.members):
        if member_id != last:
            world.join(member_id)
    for fire in held:
        fire()
    assert joins[last].answer.generation == 2


# --- the next life --------------------------------------------------------------------------------------------------


def test_a_group_that_was_left_goes_on_with_the_next_generation_and_any_protocol() -> None:
    world = World()
    (member,) = world.stable(None)
    world.leave(member)
    assert (world.group.state, world.group.generation, world.group.protocol) == (GroupState.EMPTY, 2, None)
    _, joining = world.new(protocol_type="connect")
    world.pass_ms(0)
    assert (joining.answer.generation, joining.answer.protocol_type) == (3, "connect")


def test_what_is_counted() -> None:
    world = World()
    world.stable(None)
    assert (world.in_state(GroupState.STABLE), world.in_state(GroupState.EMPTY)) == (1, 0)
    assert world.metrics.rebalances.value == 1
    world.pass_ms(10_000)
    assert (world.in_state(GroupState.STABLE), world.in_state(GroupState.EMPTY)) == (0, 1)
    assert world.metrics.groups.value == 1
    assert world.states() == ["PreparingRebalance", "CompletingRebalance", "Stable", "PreparingRebalance", "Empty"]
