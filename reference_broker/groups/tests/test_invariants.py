"""Groups, served groups and committed offsets detect inconsistent state."""

from collections.abc import Callable
from typing import Any

import pytest

from reference_broker.groups.committed_offsets import (
    CommitOffset,
    CommittedOffsets,
    OffsetKey,
    OffsetsBatch,
    StoredOffset,
)
from reference_broker.groups.group import Group, GroupState
from reference_broker.groups.served_group import ServedGroup
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reference_broker.groups.tests.membership_world import MembershipWorld
from reference_broker.groups.tests.test_group import NOW_MS, group_of, ignore_response, member, stable
from reference_broker.records.batch import NO_PRODUCER_ID

KEY = OffsetKey("g", "t", 0)
COMMIT = CommitOffset("t", 0, 5, 0, "", 0)

# --- always on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda group: group.add(member("a")), "a is a member of g already"),
        (lambda group: group.add(member("c", instance="one")), "one is a member of g already"),
        (lambda group: group.replace_static("one", "a"), "a is a member of g already"),
        (lambda group: group.add_pending_member("a"), "a is a member of g already"),
        (lambda group: group.park_join("x", ignore_response), "x is no member of g"),
        (lambda group: group.park_sync("x", ignore_response), "x is no member of g"),
        (lambda group: group.update(member("x"), (), 0, 0), "x is no member of g"),
        (lambda group: group.become_stable(NOW_MS), "g is Stable and cannot become Stable"),
        (lambda group: group.init_next_generation(NOW_MS), "g is Stable and cannot become CompletingRebalance"),
    ],
)
def test_group_rejects_inconsistent_change(change: Callable[[Group], None], message: str) -> None:
    group = stable(member("a"), member("b", instance="one"))
    with pytest.raises(AssertionError, match=message):
        change(group)
    group.validate()


@pytest.mark.parametrize(
    "leave",
    [lambda group: group.remove("b"), lambda group: group.replace_static("one", "c")],
    ids=["removed", "replaced"],
)
def test_member_whose_request_is_parked_cannot_leave(leave: Callable[[Group], None]) -> None:
    group = stable(member("a"), member("b", instance="one"))
    group.park_sync("b", ignore_response)
    with pytest.raises(AssertionError, match="b leaves g, and a request of it is parked"):
        leave(group)


def test_leader_that_is_no_member_is_detected_at_next_change() -> None:
    group = group_of(member("a"))
    group.leader = "x"
    with pytest.raises(AssertionError, match="x leads g, whose members are"):
        group.add(member("b"))


def test_generation_going_back_is_detected() -> None:
    world = MembershipWorld()
    world.stable(None)

    def goes_back(now_ms: int) -> None:
        world.group.begin_rebalance(now_ms)
        world.group.generation -= 1

    with pytest.raises(AssertionError, match="generation 1 of group g became 0"):
        served(world).transition(goes_back)


def test_commits_out_of_log_order_are_detected() -> None:
    offsets = CommittedOffsets()
    offsets.add_unreplicated(7, [(KEY, COMMIT)])
    with pytest.raises(AssertionError, match="commits up to offset 6 follow those up to 7"):
        offsets.add_unreplicated(6, [(KEY, None)])


def test_pending_offset_after_replication_is_detected() -> None:
    offsets = CommittedOffsets()
    offsets._newest[KEY] = (1, COMMIT)
    with pytest.raises(AssertionError, match="1 offsets are unreplicated in no record"):
        list(offsets.advance_high_watermark(0))


def test_serving_group_of_lost_partition_is_detected() -> None:
    world = MembershipWorld()
    group = Group("g", NOW_MS)
    partition = world.partition
    with pytest.raises(AssertionError, match="partition 0 is unloaded and led"):
        world.group_manager.unloaded(partition)
    world.lose()
    with pytest.raises(AssertionError, match="is served in partition 0, which is lost"):
        world.group_manager.serve(partition, group)


def test_second_load_of_partition_is_detected() -> None:
    world = MembershipWorld()
    world.group_manager.loaded(world.partition)
    with pytest.raises(AssertionError, match="partition 0 is loaded twice"):
        world.group_manager.loaded(world.partition)


# --- on request -----------------------------------------------------------------------------------------------------


def spoilt(name: str) -> Callable[[Any], None]:
    """Empty a container of the object."""
    return lambda target: getattr(target, name).clear()


def given(name: str, value: object) -> Callable[[Any], None]:
    return lambda target: setattr(target, name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (given("leader", None), "None leads g"),
        (spoilt("static_members"), "static members"),
        (given("parked_joins", {"x": print}), "a request is parked for an ID that is no member"),
        (given("parked_syncs", {"x": print}), "a request is parked for an ID that is no member"),
        (given("pending_joins", {"a": None}), "a member's ID still has to join"),
        (given("pending_syncs", {"x": None}), "a SyncGroup is pending for an ID that is no member"),
        (lambda group: group._supported.add(member("x").protocols), "is not what the members know"),
        (lambda group: setattr(group.members["a"], "member_id", "x"), "a member is listed under another ID"),
    ],
)
def test_group_validate(change: Callable[[Group], None], message: str) -> None:
    group = stable(member("a"), member("b", instance="one"))
    group.validate()
    change(group)
    with pytest.raises(AssertionError, match=message):
        group.validate()


def served(world: MembershipWorld) -> ServedGroup:
    return world.group_manager.serve(world.partition, world.group)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (given("group", group_of()), "is not the one of its partition"),
        (lambda it: it.sessions.update(x=None), "an ID that is no member has a session"),
        (spoilt("sessions"), "no session expires for"),
        (lambda it: setattr(it.group, "state", GroupState.EMPTY), "is Empty with 1 members"),
        (lambda it: it.group.remove(it.group.leader), "is Stable without members"),
        (lambda it: setattr(it.group, "state", GroupState.PREPARING_REBALANCE), "waits without a timer"),
    ],
)
def test_served_group_validate(change: Callable[[ServedGroup], None], message: str) -> None:
    world = MembershipWorld()
    world.stable(None)
    world.group_manager.validate()
    change(served(world))
    with pytest.raises(AssertionError, match=message):
        world.group_manager.validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (given("count", 2), "2 offsets are counted, 1 are visible"),
        (spoilt("_by_topic"), "the offsets by topic and by group differ"),
        (
            lambda it: it._by_group["g"]["t"].update({1: StoredOffset(COMMIT, 9)}),
            "1 offsets are counted, 2 are visible",
        ),
        (spoilt("_newest"), "the newest changes are not those of the unreplicated records"),
        (
            lambda it: it._waiting.appendleft(OffsetsBatch(99, (), NO_PRODUCER_ID)),
            "commits wait out of the log's order",
        ),
    ],
)
def test_committed_offsets_validate(change: Callable[[CommittedOffsets], None], message: str) -> None:
    offsets = CommittedOffsets()
    offsets.add_unreplicated(1, [(KEY, COMMIT)])
    list(offsets.advance_high_watermark(1))
    offsets.add_unreplicated(2, [(KEY, None)])
    offsets.validate()
    change(offsets)
    with pytest.raises(AssertionError, match=message):
        offsets.validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda target: given("index", 3)(target), "partition 3 is led as 0"),
        (given("is_led", False), "partition 0 is led and closed"),
        (lambda target: target.groups.update(other=Group("g", NOW_MS)), "group g is listed under other"),
        (lambda target: given("count", 1)(target.offsets), "1 offsets are counted, 0 are visible"),
    ],
)
def test_coordinator_validate(change: Callable[[Any], None], message: str) -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    world.groups.validate()
    change(target)
    with pytest.raises(AssertionError, match=message):
        world.groups.validate()
