"""Groups: leaders, generations, and owners of partitions."""

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from chaos.checks.groups.assignments import OneGroupLeader
from chaos.checks.groups.tests.group_history import A, B, judged, note
from chaos.checks.history import History
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode
from reference_broker.metadata.image import PartitionImage
from reports.rows import TraceRow

if TYPE_CHECKING:
    pass

from chaos.checks.groups.assignments import AllAssigned, GroupsConsistent
from chaos.checks.groups.tests.group_history import assigned
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld


@pytest.mark.parametrize(("what", "is_red"), [("fenced", False), ("removed", True), ("expired", True)])
def test_generation_changes_its_leader_only_with_a_static_member_s_id(what: str, is_red: bool) -> None:
    check = OneGroupLeader(check_context())
    check.trace(note("group_state", 1, group="g", state="Stable", generation=3, leader=A))
    check.trace(TraceRow(0, 0, 0, 2, "group_member", detail=json.dumps({"group": "g", "what": what, "member_id": A})))
    check.trace(note("group_state", 3, group="g", state="Stable", generation=3, leader=B))
    assert bool(judged(check, History())) is is_red


def test_group_that_lost_its_log_is_not_judged_and_any_other_is() -> None:
    """There are four offsets partitions. The third keeps group g."""
    for topic, index, is_red in (("__consumer_offsets", 3, False), ("__consumer_offsets", 2, True), ("hot", 3, True)):
        context = check_context()
        for number in range(4):
            state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
            context.replicas.partitions[b"o", number] = Replicated(
                f"__consumer_offsets-{number}", (b"o", number), state, Eligible.of(state, 2)
            )
        context.replicas.excused[topic, index] = None
        check = OneGroupLeader(context)
        for leader in (A, B):
            check.trace(note("group_state", 1, group="g", state="Stable", generation=3, leader=leader))
        assert bool(judged(check, History())) is is_red


def test_generation_has_one_leader_and_one_owner_of_a_partition() -> None:
    check = OneGroupLeader(check_context())
    check.trace(note("group_state", 1, 0, group="g", state="Stable", generation=3, leader=A, members=2))
    check.trace(note("group_state", 2, 1, group="g", state="Stable", generation=3, leader=A, members=2))
    assert not judged(check, History())
    check.trace(note("group_state", 3, 1, group="g", state="Stable", generation=3, leader=B, members=2))
    check.trace(note("group_state", 4, 1, group="g", state="Stable", generation=2, leader=B, members=2))
    assert len(judged(check, History())) == 2
    assert judged(OneGroupLeader(check_context()), History(memberships=[assigned(A, 3, 0), assigned(B, 3, 5)]))
    assert not judged(OneGroupLeader(check_context()), History(memberships=[assigned(A, 3, 0), assigned(B, 4, 5)]))


def test_coordinator_that_contradicts_itself_is_a_violation() -> None:
    world = CoordinatorWorld()
    target = world.lead_offsets(0)
    assert target is not None
    group = world.group_in(0)
    world.commit(group, 5)
    node = StubNode(StubBroker(1, groups=cast(Any, world.groups))).as_node()
    check = GroupsConsistent(check_context())
    check.inspect(7, 0, node, None, thorough=True)
    assert not check.violations
    target.offsets.count += 1
    check.inspect(9, 0, node, None, thorough=True)
    assert "node 1: 2 offsets are counted, 1 are visible" in check.violations[0].explanation


def test_every_partition_gets_one_owner() -> None:
    check = AllAssigned(check_context(subscribed={"g": [("hot", 0)]}))
    assert not check.reached()
    check.recorded([assigned(A, 1, 0)])
    assert check.reached()
    check.recorded([assigned(B, 2, 5)])
    assert not check.reached()
    check.recorded([assigned(A, 1, 6, "revoked")])
    assert check.reached()
    check.recorded([assigned(B, 2, 7, "left")])
    check.overdue(10, 5_000_000)
    assert "hot-0 has nobody 5 s after the heal" in check.violations[0].explanation
