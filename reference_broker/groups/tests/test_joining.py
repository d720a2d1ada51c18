"""JoinGroup: which members are accepted, at once or when the generation starts."""

import pytest

from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import GroupState
from reference_broker.groups.rebalances import NEW_MEMBER_TIMEOUT_MS
from reference_broker.groups.tests.membership_world import BOTH, RANGE, MembershipWorld
from reference_broker.wire.errors import ErrorCode

ROUND_ROBIN = (MemberProtocol("roundrobin", b"r"),)


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupUnknownMemberNewGroup")
def test_join_without_member_id_returns_member_id_required() -> None:
    world = MembershipWorld()
    first = world.join(client="reader")
    assert first.error is ErrorCode.member_id_required
    assert first.response.member_id.startswith("reader-")
    assert (world.group.state, len(world.group.members)) == (GroupState.EMPTY, 0)
    joined = world.join(first.response.member_id)
    world.pass_ms(0)
    assert joined.response.generation == 1
    assert joined.response.leader == joined.response.member_id == first.response.member_id
    assert [each.member_id for each in joined.response.members] == [first.response.member_id]


def test_join_before_version_4_needs_no_member_id() -> None:
    world = MembershipWorld()
    joined = world.join(version=3)
    world.pass_ms(0)
    assert (joined.error, joined.response.generation) == (ErrorCode.none, 1)


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupUnknownConsumerNewDeadGroup",
    "GroupMetadataManagerTest.testJoinGroupUnknownConsumerExistingGroup",
    "GroupMetadataManagerTest.testJoinGroupExistingMemberInEmptyState",
)
def test_join_with_unknown_member_id_is_rejected_and_creates_no_group() -> None:
    world = MembershipWorld()
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
def test_join_with_incompatible_protocols_is_rejected() -> None:
    world = MembershipWorld()
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
        assert (refused.response.protocol_type, refused.response.protocol) == (None, None)
    alone = world.join(member, protocols=BOTH)
    assert (alone.error, alone.response.protocol) == (ErrorCode.none, "range")


def test_invalid_join_is_rejected_before_group_lookup() -> None:
    world = MembershipWorld(group_min_session_timeout_ms=5000, group_max_session_timeout_ms=20_000)
    assert world.join(group="").error is ErrorCode.invalid_group_id
    assert world.join(session_ms=4999).error is ErrorCode.invalid_session_timeout
    assert world.join(session_ms=20_001).error is ErrorCode.invalid_session_timeout
    assert world.join(session_ms=5000).error is ErrorCode.member_id_required
    assert world.join(session_ms=20_000).error is ErrorCode.member_id_required


def test_requests_to_non_coordinator_return_not_coordinator() -> None:
    world = MembershipWorld()
    world.store.is_loading = True
    assert world.join().error is ErrorCode.coordinator_load_in_progress
    world.store.is_loading, world.store.partition = False, None
    assert world.join("m").error is ErrorCode.not_coordinator
    assert world.join("m").response.member_id == "m"
    assert world.group_manager.heartbeat("g", "m", None, 1) is ErrorCode.not_coordinator
    assert world.group_manager.heartbeat("", "m", None, 1) is ErrorCode.invalid_group_id
    assert world.group_manager.leave_group("g", ()) == (ErrorCode.not_coordinator, ())
    assert world.sync("m", 1).error is ErrorCode.not_coordinator


# --- a generation starts when all have joined -----------------------------------------------------------------------


@pytest.mark.clause(
    "GroupMetadataManagerTest.testGenerationIdIncrementsOnRebalance",
    "GroupMetadataManagerTest.testJoinGroupReturnsTheProtocolType",
)
def test_new_member_waits_for_others_to_rejoin() -> None:
    world = MembershipWorld()
    (leader,) = world.stable(None)
    newcomer, joining = world.new()
    assert not joining.responses
    assert world.heartbeat(leader) is ErrorCode.rebalance_in_progress
    again = world.join(leader)
    assert (again.response.generation, joining.response.generation) == (2, 2)
    assert (joining.response.leader, joining.response.protocol_type, joining.response.protocol) == (
        leader,
        "consumer",
        "range",
    )
    assert [each.member_id for each in again.response.members] == [leader, newcomer]
    assert joining.response.members == ()


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupFromUnchangedFollowerDoesNotRebalance",
    "GroupMetadataManagerTest.testJoinGroupExistingMemberDoesNotTriggerRebalanceInStableState",
)
def test_rejoin_of_unchanged_follower_returns_current_generation() -> None:
    world = MembershipWorld()
    leader, follower = world.stable(None, None)
    again = world.join(follower)
    assert (again.error, again.response.generation, again.response.leader) == (
        ErrorCode.none,
        world.group.generation,
        leader,
    )
    assert again.response.members == ()
    assert world.group.state is GroupState.STABLE


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupFromUnchangedLeaderShouldRebalance",
    "GroupMetadataManagerTest.testJoinGroupAsExistingLeaderTriggersRebalanceInStableState",
)
def test_rejoin_of_leader_starts_rebalance() -> None:
    world = MembershipWorld()
    leader, _ = world.stable(None, None)
    assert not world.join(leader).responses
    assert world.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupAsExistingMemberWithUpdatedMetadataTriggersRebalanceInStableState"
)
def test_rejoin_of_follower_with_changed_metadata_starts_rebalance() -> None:
    world = MembershipWorld()
    _, follower = world.stable(None, None)
    assert not world.join(follower, protocols=BOTH).responses
    assert world.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupExistingMemberUpdatedMetadataTriggersRebalance")
def test_rejoin_before_assignment_starts_rebalance_only_with_changed_metadata() -> None:
    world = MembershipWorld()
    first, _ = world.new()
    world.pass_ms(0)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    lost = world.join(first)
    assert (lost.response.generation, len(lost.response.members)) == (1, 1)
    changed = world.join(first, protocols=BOTH)
    assert changed.response.generation == 2


def test_second_join_of_waiting_member_replaces_first() -> None:
    world = MembershipWorld()
    leader, _ = world.stable(None, None)
    first = world.join(leader)
    second = world.join(leader)
    assert first.error is ErrorCode.rebalance_in_progress
    assert not second.responses
    assert len(world.group.parked_joins) == 1


# --- pending members ------------------------------------------------------------------------------------------------


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberJoins")
def test_generation_waits_for_pending_members() -> None:
    world = MembershipWorld()
    (leader,) = world.stable(None)
    pending = world.join().response.member_id
    again = world.join(leader)
    assert not again.responses
    joined = world.join(pending)
    assert again.response.generation == joined.response.generation == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testJoinGroupCompletionWhenPendingMemberTimesOut",
    "GroupMetadataManagerTest.testHeartbeatExpirationShouldRemovePendingMember",
    "GroupMetadataManagerTest.testSecondMemberPartiallyJoinAndTimeout",
)
def test_pending_member_expires_after_session_timeout() -> None:
    world = MembershipWorld()
    (leader,) = world.stable(None)
    world.join(session_ms=6000)
    again = world.join(leader)
    world.pass_ms(5999)
    assert not again.responses
    world.pass_ms(1)
    assert (again.response.generation, len(world.group.members)) == (2, 1)


@pytest.mark.clause("GroupMetadataManagerTest.testJoinGroupExistingPendingMemberWithGroupInstanceIdThrowsException")
def test_pending_member_id_with_instance_is_rejected() -> None:
    world = MembershipWorld()
    pending = world.join().response.member_id
    assert world.join(pending, instance="i").error is ErrorCode.unknown_member_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testNewMemberJoinExpiration", "GroupMetadataManagerTest.testNewMemberTimeoutCompletion"
)
def test_new_member_expires_after_five_minutes_of_join() -> None:
    world = MembershipWorld()
    leader, _ = world.stable(None, None, rebalance_ms=600_000, session_ms=10_000)
    newcomer, joining = world.new(rebalance_ms=600_000)
    world.alive_ms(NEW_MEMBER_TIMEOUT_MS - 1000, leader)
    assert newcomer in world.group.members
    world.alive_ms(1000, leader)
    assert joining.error is ErrorCode.unknown_member_id
    assert newcomer not in world.group.members


@pytest.mark.clause("GroupMetadataManagerTest.testNewMemberFailureAfterJoinGroupCompletion")
def test_new_member_has_own_session_after_join_completes() -> None:
    world = MembershipWorld()
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
def test_join_of_full_group_returns_group_max_size_reached(version: int, instance: str | None) -> None:
    world = MembershipWorld(group_max_size=2)
    world.stable(None, None)
    assert world.join(version=version, instance=instance).error is ErrorCode.group_max_size_reached
    assert len(world.group.members) == 2


@pytest.mark.clause(
    "GroupMetadataManagerTest.testDynamicMembersCanRejoinGroupWithMaxSizeWhileRebalancing",
    "GroupMetadataManagerTest.testLastJoiningMembersAreKickedOutWhenRejoiningGroupWithMaxSize",
    "GroupMetadataManagerTest.testOnLoadedExceedGroupMaxSizeTriggersRebalance",
)
def test_last_members_to_rejoin_loaded_oversized_group_are_rejected() -> None:
    before = MembershipWorld()
    ids = before.stable(None, None, None)
    world = MembershipWorld(group_max_size=2)
    world.partition.groups["g"] = before.group
    world.group_manager.loaded(world.partition)
    assert world.group.state is GroupState.PREPARING_REBALANCE
    joins = [world.join(member_id) for member_id in ids]
    world.pass_ms(0)
    assert joins[2].error is ErrorCode.group_max_size_reached
    assert [each.response.generation for each in joins[:2]] == [before.group.generation] * 2
    assert list(world.group.members) == ids[:2]


def test_duplicate_protocol_of_member_votes_once() -> None:
    world = MembershipWorld()
    (first,) = world.stable(None, protocols=RANGE * 2)
    _, joining = world.new(protocols=BOTH)
    world.join(first, protocols=RANGE * 2)
    assert (joining.response.generation, joining.response.protocol) == (2, "range")


def test_join_reason_is_noted() -> None:
    world = MembershipWorld()
    world.new(reason="rolling restart")
    (note,) = [fields for what, fields in world.ports.notes if what == "group_state"]
    assert str(note["reason"]).endswith("is new: rolling restart")
    assert note["group"] == "g"
    assert note["state"] == "PreparingRebalance"
    assert note["generation"] == 0
    assert note["members"] == 1
