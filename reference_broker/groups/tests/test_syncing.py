"""SyncGroup: the members of this generation, and no others, get the assignment once it is written."""

import pytest

from reference_broker.groups import rebalances
from reference_broker.groups.group import GroupState
from reference_broker.groups.tests.membership_world import BOTH, Joining, MembershipWorld, Syncing
from reference_broker.wire.errors import ErrorCode


def completing(world: MembershipWorld) -> tuple[str, str]:
    """Return leader and follower of a group that waits for its assignment."""
    leader, _ = world.new()
    follower, _ = world.new()
    world.pass_ms(0)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    return leader, follower


@pytest.mark.clause("GroupMetadataManagerTest.testSyncGroupLeaderAfterFollower")
def test_sync_completes_once_leaders_assignment_is_written() -> None:
    world = MembershipWorld()
    world.partition.holds = True
    leader, follower = completing(world)
    early = world.sync(follower)
    own = world.sync(leader, assignments={leader: b"0", follower: b"1", "stranger": b"2"})
    assert early.responses == own.responses == []
    (write,) = world.partition.writes
    assert (write.generation, write.assignments) == (1, {leader: b"0", follower: b"1"})
    write.written(ErrorCode.none)
    assert (own.response.assignment, early.response.assignment) == (b"0", b"1")
    assert (own.response.protocol_type, own.response.protocol) == ("consumer", "range")
    assert world.group.state is GroupState.STABLE


@pytest.mark.clause("GroupMetadataManagerTest.testSyncGroupFollowerAfterLeader")
def test_sync_in_stable_group_returns_assignment_at_once() -> None:
    world = MembershipWorld()
    leader, follower = completing(world)
    world.sync(leader, assignments={follower: b"1"})
    assert world.sync(follower).response.assignment == b"1"


@pytest.mark.clause("GroupMetadataManagerTest.testSyncGroupEmptyAssignment")
def test_member_omitted_by_leader_gets_empty_assignment() -> None:
    world = MembershipWorld()
    leader, follower = completing(world)
    own = world.sync(leader)
    assert (own.error, own.response.assignment) == (ErrorCode.none, b"")
    assert (world.sync(follower).error, world.sync(follower).response.assignment) == (ErrorCode.none, b"")


@pytest.mark.clause("GroupMetadataManagerTest.testSyncGroupAsLeaderAppendFailureTransformsError")
def test_failed_write_of_assignment_causes_rebalance() -> None:
    world = MembershipWorld()
    leader, follower = completing(world)
    early = world.sync(follower)
    world.partition.fails = ErrorCode.coordinator_not_available
    own = world.sync(leader, assignments={leader: b"0", follower: b"1"})
    assert own.error is early.error is ErrorCode.coordinator_not_available
    assert own.response.assignment == early.response.assignment == b""
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert [each.assignment for each in world.group.members.values()] == [b"", b""]
    joins = [world.join(leader), world.join(follower)]
    assert [each.response.generation for each in joins] == [2, 2]


@pytest.mark.parametrize("is_assigned_again", [False, True])
@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.coordinator_not_available])
def test_completed_write_of_earlier_generation_is_ignored(error: ErrorCode, is_assigned_again: bool) -> None:
    world = MembershipWorld()
    world.partition.holds = True
    leader, follower = completing(world)
    late = world.sync(leader, assignments={leader: b"0"})
    again = world.join(follower, protocols=BOTH)
    assert late.error is ErrorCode.rebalance_in_progress
    own = world.join(leader)
    assert again.response.generation == own.response.generation == 2
    if not is_assigned_again:
        world.partition.writes[0].written(error)
    new = world.sync(leader, assignments={leader: b"new"})
    if is_assigned_again:
        world.partition.writes[0].written(error)
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    assert not new.responses
    world.partition.writes[1].written(ErrorCode.none)
    assert new.response.assignment == b"new"


def test_second_sync_of_leader_writes_no_assignment() -> None:
    world = MembershipWorld()
    world.partition.holds = True
    leader, _ = completing(world)
    first = world.sync(leader, assignments={leader: b"first"})
    second = world.sync(leader, assignments={leader: b"second"})
    (write,) = world.partition.writes
    write.written(ErrorCode.none)
    assert first.error is ErrorCode.rebalance_in_progress
    assert second.response.assignment == b"first"


@pytest.mark.clause(
    "GroupMetadataManagerTest.testSyncGroupFromUnknownGroup",
    "GroupMetadataManagerTest.testSyncGroupFromUnknownMember",
    "GroupMetadataManagerTest.testSyncGroupFromIllegalGeneration",
)
def test_sync_outside_current_generation_is_rejected() -> None:
    world = MembershipWorld()
    assert world.sync("m", 1).error is ErrorCode.unknown_member_id
    leader, follower = completing(world)
    assert world.sync("m").error is ErrorCode.unknown_member_id
    for generation in (0, 2, -1):
        assert world.sync(leader, generation).error is ErrorCode.illegal_generation
    world.leave(leader, follower)
    assert world.sync(leader).error is ErrorCode.unknown_member_id


@pytest.mark.clause(
    "GroupMetadataManagerTest.testSyncGroupReturnsAnErrorWhenProtocolTypeIsInconsistent",
    "GroupMetadataManagerTest.testSyncGroupReturnsAnErrorWhenProtocolNameIsInconsistent",
    "GroupMetadataManagerTest.testSyncGroupSucceedWhenProtocolTypeAndNameAreNotProvided",
    "GroupMetadataManagerTest.testSyncGroupSucceedWhenProtocolTypeAndNameAreConsistent",
)
def test_sync_with_other_protocol_is_rejected() -> None:
    world = MembershipWorld()
    leader, follower = completing(world)
    assert world.sync(leader, protocol_type="connect").error is ErrorCode.inconsistent_group_protocol
    assert world.sync(leader, protocol="sticky").error is ErrorCode.inconsistent_group_protocol
    assert world.sync(leader, protocol_type=None, protocol=None).error is ErrorCode.none
    assert world.sync(follower).error is ErrorCode.none


def test_sync_during_rebalance_returns_rebalance_in_progress() -> None:
    world = MembershipWorld()
    leader, _ = completing(world)
    world.join(leader, protocols=BOTH)
    assert world.sync(leader).error is ErrorCode.rebalance_in_progress


@pytest.mark.clause("GroupMetadataManagerTest.testLeaderFailureInSyncGroup")
def test_expired_leader_before_assignment_causes_rebalance() -> None:
    world = MembershipWorld()
    leader, follower = completing(world)
    waiting = world.sync(follower)
    world.alive_ms(10_000)
    assert waiting.error is ErrorCode.rebalance_in_progress
    assert world.members("expired") == [leader]
    again: Joining = world.join(follower)
    assert (again.response.generation, again.response.leader) == (2, follower)


def test_session_restarts_with_assignment() -> None:
    """A waiting member cannot send heartbeats, here for longer than its session."""
    world = MembershipWorld()
    world.partition.holds = True
    leader, follower = completing(world)
    world.sync(leader)
    world.sync(follower)
    world.pass_ms(15_000)
    world.partition.writes[0].written(ErrorCode.none)
    assert world.group.state is GroupState.STABLE
    world.pass_ms(9999)
    assert len(world.group.members) == 2
    world.pass_ms(1)
    assert sorted(world.members("expired")) == sorted([leader, follower])


def large_stable(monkeypatch: pytest.MonkeyPatch) -> tuple[MembershipWorld, list[str], list[Syncing]]:
    """Return five members, of which two get their assignment in one event. The first two have it."""
    monkeypatch.setattr(rebalances, "REBALANCED_MEMBERS_PER_SLICE", 2)
    world = MembershipWorld()
    for at in range(5):
        world.join(instance=f"i{at}")
    world.pass_ms(0)
    ids = list(world.group.members)
    assert world.group.state == GroupState.COMPLETING_REBALANCE
    assert world.group.leader == ids[0]
    assert len(ids) == 5
    syncings = [
        world.sync(each, assignments={other: other.encode() for other in ids}, instance=f"i{at}")
        for at, each in reversed(list(enumerate(ids)))
    ]
    assert [len(each.responses) for each in syncings] == [1, 1, 0, 0, 0]
    return world, ids, syncings


def test_sync_responses_of_large_group_are_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ids, syncings = large_stable(monkeypatch)
    world.pass_ms(0)
    assert [each.response.assignment.decode() for each in syncings] == list(reversed(ids))


def test_pending_sync_returns_rebalance_in_progress_when_rebalance_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ids, syncings = large_stable(monkeypatch)
    world.leave((ids[0], "i0"))
    errors = [each.error for each in syncings]
    assert errors == [ErrorCode.none] * 2 + [ErrorCode.rebalance_in_progress] * 2 + [ErrorCode.unknown_member_id]
    world.pass_ms(0)
    assert world.group.members[ids[1]].assignment == ids[1].encode()
