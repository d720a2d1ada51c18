"""Groups: leaders, generations, and owners of partitions."""

import json
from typing import TYPE_CHECKING

import pytest

from chaos.checks.eligible import Eligible
from chaos.checks.groups import OneGroupLeader
from chaos.checks.history import History
from chaos.checks.replica_view import Replicated
from chaos.tests.check_context import check_context
from chaos.tests.test_group_checks import A, B, judged, note
from reference_broker.metadata.image import PartitionImage
from reports.rows import TraceRow

if TYPE_CHECKING:
    pass


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
