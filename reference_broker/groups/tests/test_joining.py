"""JoinGroup: who gets in, at once or when the generation begins."""

import pytest

from reference_broker.groups.group import GroupState, MemberProtocol
from reference_broker.groups.membership import NEW_MEMBER_TIMEOUT_MS
from reference_broker.groups.tests.membership_world import BOTH, RANGE, World
from reference_broker.wire.errors import ErrorCode

ROUND_ROBIN = (MemberProtocol("roundrobin", b"r"),)


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupUnknownMemberNewGroup")
def test_a_member_without_an_id_makes_a_group_and_gets_an_id_first() -> None:
    world = World()
    first = world.join(client="reader")
    assert first.error is ErrorCode.member_id_required
    assert first.answer.member_id.startswith("reader-")
    assert (world.group.state, len(world.group.members)) == (GroupState.EMPTY, 0)
    joined = world.join(first.answer.member_id)
    world.pass_ms(0)
    assert joined.answer.generation == 1
    assert joined.answer.leader == joined.answer.member_id == first.answer.member_id
    assert [each.member_id for each in joined.answer.members] == [first.answer.member_id]


def test_before_version_4_a_member_joins_at_once() -> None:
    world = World()
    joined = world.join(version=3)
    world.pass_ms(0)
    assert (joined.error, joined.answer.generation) == (ErrorCode.none, 1)


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupUnknownConsumerNewDeadGroup",
    "GroupMetadataManagerTest.testJoinGroupUnknownConsumerExistingGroup",
    "GroupMetadataManagerTest.testJoinGroupExistingMemberInEmptyState",
)
def test_an_unknown_member_id_makes_no_group_and_is_told_to_begin_anew() -> None:
    world = World()
    assert world.join("who").error is ErrorCode.unknown_member_id
    assert not world.partition.groups
    (member,) = world.stable(None)
    assert world.join("who").error is ErrorCode.unknown_member_id
    world.leave(member)
    assert world.group.state is GroupState.EMPTY
    assert world.join(member).error is ErrorCode.unknown_member_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testClassicGroupJoinInconsistentProtocolType",
    "GroupMetadataManagerTest.testJoinGroupInconsistentGroupProtocol",
    "GroupMetadataManagerTest.testJoinGroupSecondJoinInconsistentProtocol",
    "GroupMetadataManagerTest.testJoinGroupWithEmptyProtocolType",
    "GroupMetadataManagerTest.testJoinGroupWithEmptyGroupProtocol",
    "GroupMetadataManagerTest.testJoinGroupProtocolTypeIsNotProvidedWhenAnErrorOccurs",
)
def test_protocols_have_to_fit() -> None:
    world = World()
    assert world.join(protocol_type="").error is ErrorCode.inconsistent_group_protocol
    assert world.join(protocols=()).error is ErrorCode.inconsistent_group_protocol
    assert not world.partition.groups
    (member,) = world.stable(None)
    for refused in (
        world.join(protocol_type="connect"),
        world.join(protocols=ROUND_ROBIN),
        world.join(member, protocol_type="connect"),
    ):
        assert refused.error is ErrorCode.inconsistent_group_protocol
        assert (refused.answer.protocol_type, refused.answer.protocol) == (None, None)
    alone = world.join(member, protocols=BOTH)
    assert (alone.error, alone.answer.protocol) == (ErrorCode.none, "range")


def test_what_is_refused_before_any_group_is_looked_at() -> None:
    world = World(group_min_session_timeout_ms=5000, group_max_session_timeout_ms=20_000)
    assert world.join(group="").error is ErrorCode.invalid_group_id
    assert world.join(session_ms=4999).error is ErrorCode.invalid_session_timeout
    assert world.join(session_ms=20_001).error is ErrorCode.invalid_session_timeout
    assert world.join(session_ms=5000).error is ErrorCode.member_id_required
    assert world.join(session_ms=20_000).error is ErrorCode.member_id_required


def test_where_the_group_is_not_coordinated_here() -> None:
    world = World()
    world.store.is_loading = True
    assert world.join().error is ErrorCode.coordinator_load_in_progress
    world.store.is_loading, world.store.partition = False, None
    assert world.join("m").error is ErrorCode.not_coordinator
    assert world.join("m").answer.member_id == "m"
    assert world.membership.heartbeat("g", "m", None, 1) is ErrorCode.not_coordinator
    assert world.membership.heartbeat("", "m", None, 1) is ErrorCode.invalid_group_id
    assert world.membership.leave("g", ()) == (ErrorCode.not_coordinator, ())
    assert world.sync("m", 1).error is ErrorCode.not_coordinator


# --- a generation begins when all have joined -----------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testGenerationIdIncrementsOnRebalance",
    "GroupMetadataManagerTest.testJoinGroupReturnsTheProtocolType",
)
def test_a_newcomer_waits_until_the_others_have_joined_again() -> None:
    world = World()
    (leader,) = world.stable(None)
    newcomer, joining = world.new()
    assert not joining.answers
    assert world.heartbeat(leader) is ErrorCode.rebalance_in_progress
    again = world.join(leader)
    assert (again.answer.generation, joining.answer.generation) == (2, 2)
    assert (joining.answer.leader, joining.answer.protocol_type, joining.answer.protocol) == (
        leader,
        "consumer",
        "range",
    )
    assert [each.member_id for each in again.answer.members] == [leader, newcomer]
    assert joining.answer.members == ()


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupFromUnchangedFollowerDoesNotRebalance",
    "GroupMetadataManagerTest.testJoinGroupExistingMemberDoesNotTriggerRebalanceInStableState",
)
def test_a_follower_that_says_nothing_new_is_told_the_generation_again() -> None:
    world = World()
    leader, follower = world.stable(None, None)
    again = world.join(follower)
    assert (again.error, again.answer.generation, again.answer.leader) == (
        ErrorCode.none,
        world.group.generation,
        leader,
    )
    assert again.answer.members == ()
    assert world.group.state is GroupState.STABLE


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupFromUnchangedLeaderShouldRebalance",
    "GroupMetadataManagerTest.testJoinGroupAsExistingLeaderTriggersRebalanceInStableState",
)
def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    world = World()
    leader, _ = world.stable(None, None)
    assert not world.join(leader).answers
    assert world.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupAsExistingMemberWithUpdatedMetadataTriggersRebalanceInStableState"
)
def test_a_follower_with_other_metadata_begins_a_rebalance() -> None:
    world = World()
    _, follower = world.stable(None, None)
    assert not world.join(follower, protocols=BOTH).answers
    assert world.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupExistingMemberUpdatedMetadataTriggersRebalance")
def test_while_the_generation_is_not_assigned_only_other_metadata_begin_a_rebalance() -> None:
    world = World()
    first, _ = world.new()
    world.pass_ms(0)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    lost = world.join(first)
    assert (lost.answer.generation, len(lost.answer.members)) == (1, 1)
    changed = world.join(first, protocols=BOTH)
    assert changed.answer.generation == 2


def test_a_second_join_of_a_waiting_member_takes_the_place_of_the_first() -> None:
    world = World()
    leader, _ = world.stable(None, None)
    first = world.join(leader)
    second = world.join(leader)
    assert first.error is ErrorCode.rebalance_in_progress
    assert not second.answers
    assert world.group.joined == 1


# --- members that are on their way ----------------------------------------------------------------------------------


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberJoins")
def test_a_generation_waits_for_ids_that_were_given_out() -> None:
    world = World()
    (leader,) = world.stable(None)
    pending = world.join().answer.member_id
    again = world.join(leader)
    assert not again.answers
    joined = world.join(pending)
    assert again.answer.generation == joined.answer.generation == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberTimesOut",
    "GroupMetadataManagerTest.testHeartbeatExpirationShouldRemovePendingMember",
    "GroupMetadataManagerTest.testSecondMemberPartiallyJoinAndTimeout",
)
def test_an_id_that_is_not_used_in_time_is_waited_for_no_more() -> None:
    world = World()
    (leader,) = world.stable(None)
    world.join(session_ms=6000)
    again = world.join(leader)
    world.pass_ms(5999)
    assert not again.answers
    world.pass_ms(1)
    assert (again.answer.generation, len(world.group.members)) == (2, 1)


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupExistingPendingMemberWithGroupInstanceIdThrowsException")
def test_an_id_that_was_given_out_is_no_static_members() -> None:
    world = World()
    pending = world.join().answer.member_id
    assert world.join(pending, instance="i").error is ErrorCode.unknown_member_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testNewMemberJoinExpiration", "GroupMetadataManagerTest.testNewMemberTimeoutCompletion"
)
def test_a_new_member_is_waited_for_five_minutes_and_then_given_up() -> None:
    world = World()
    leader, _ = world.stable(None, None, rebalance_ms=600_000, session_ms=10_000)
    newcomer, joining = world.new(rebalance_ms=600_000)
    world.alive_ms(NEW_MEMBER_TIMEOUT_MS - 1000, leader)
    assert newcomer in world.group.members
    world.alive_ms(1000, leader)
    assert joining.error is ErrorCode.unknown_member_id
    assert newcomer not in world.group.members


@pytest.mark.clause("GroupMetadataManagerTest.testNewMemberFailureAfterJoinGroupCompletion")
def test_once_told_its_generation_a_new_member_has_its_own_session() -> None:
    world = World()
    member, joining = world.new(session_ms=10_000)
    world.pass_ms(0)
    assert joining.error is ErrorCode.none
    world.pass_ms(10_000)
    assert world.members("expired") == [member]
    assert world.group.state is GroupState.EMPTY


# --- group.max.size -------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupShouldReceiveErrorIfGroupOverMaxSize",
    "GroupMetadataManagerTest.testDynamicMembersJoinGroupWithMaxSizeAndRequiredKnownMember",
    "GroupMetadataManagerTest.testDynamicMembersJoinGroupWithMaxSizeAndNotRequiredKnownMember",
    "GroupMetadataManagerTest.testStaticMembersJoinGroupWithMaxSize",
)
@pytest.mark.parametrize(("version", "instance"), [(9, None), (3, None), (9, "late")])
def test_a_full_group_takes_nobody_more(version: int, instance: str | None) -> None:
    world = World(group_max_size=2)
    world.stable(None, None)
    assert world.join(version=version, instance=instance).error is ErrorCode.group_max_size_reached
    assert len(world.group.members) == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testDynamicMembersCanRejoinGroupWithMaxSizeWhileRebalancing",
    "GroupMetadataManagerTest.testLastJoiningMembersAreKickedOutWhenRejoiningGroupWithMaxSize",
    "GroupMetadataManagerTest.testOnLoadedExceedGroupMaxSizeTriggersRebalance",
)
def test_of_a_loaded_group_that_is_too_large_the_last_to_rejoin_are_turned_away() -> None:
    before = World()
    ids = before.stable(None, None, None)
    world = World(group_max_size=2)
    world.partition.groups["g"] = before.group
    world.membership.loaded(world.partition)
    assert world.group.state is GroupState.PREPARING_REBALANCE
    joins = [world.join(member_id) for member_id in ids]
    world.pass_ms(0)
    assert joins[2].error is ErrorCode.group_max_size_reached
    assert [each.answer.generation for each in joins[:2]] == [before.group.generation] * 2
    assert list(world.group.members) == ids[:2]


def test_a_member_that_names_a_protocol_twice_counts_once() -> None:
    world = World()
    (first,) = world.stable(None, protocols=RANGE * 2)
    _, joining = world.new(protocols=BOTH)
    world.join(first, protocols=RANGE * 2)
    assert (joining.answer.generation, joining.answer.protocol) == (2, "range")


def test_the_reason_is_in_the_trace() -> None:
    world = World()
    world.new(reason="rolling restart")
    (note,) = [fields for what, fields in world.ports.notes if what == "group_state"]
    assert str(note["reason"]).endswith("is new: rolling restart")
    assert (note["group"], note["state"], note["generation"], note["members"]) == ("g", "PreparingRebalance", 0, 1)
