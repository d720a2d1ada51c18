"""Committed offsets of groups."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.types import GroupId

from chaos.checks.committed_offsets import LOADING_US, CommitsFenced, NoCommittedLost
from chaos.checks.history import History
from chaos.tests.check_context import check_context
from chaos.tests.kafka_messages import offset_commit_request, offset_commit_response
from chaos.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubImages,
    StubNode,
    StubOffsetsPartition,
    image_of,
    topic_image,
)
from chaos.tests.test_group_checks import A, B, assigned, commit, judged, note
from reference_broker.core.events import Reply, Request
from reference_broker.groups.committed_offsets import CommitOffset, OffsetKey
from reference_broker.groups.group import Group, Member
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from reports.rows import ResetRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


def coordinator_with(offset: int | None) -> "Node":
    """Return a coordinator whose committed offset of hot-0 in group g is ``offset``, or which has none."""
    coordinated = StubOffsetsPartition()
    if offset is not None:
        commit = CommitOffset("hot", 0, offset, -1, "", 0)
        coordinated.offsets.appended(1, [(OffsetKey("g", "hot", 0), commit)])
        assert list(coordinated.offsets.replicated(1))
    return StubNode(StubBroker(groups=StubCoordinator([coordinated]))).as_node()


@pytest.mark.parametrize(
    ("held", "commits", "is_red"),
    [
        (10, [], False),
        (None, [], True),
        (9, [], True),
        (11, [], True),
        (9, [commit(B, 2, 9, -1, 200, error="timeout")], False),
        (11, [commit(B, 2, 11, -1, 200)], False),
        (9, [commit(B, 2, 9, -1, 90)], True),
        (11, [commit(B, 2, 11, -1, 200, error="ILLEGAL_GENERATION")], True),
        (9, [commit(B, 2, 9, -1, 90, error="timeout")], False),
    ],
)
def test_coordinator_holds_what_was_committed_last_or_may_have_been(
    held: int | None, commits: list[Any], is_red: bool
) -> None:
    check = NoCommittedLost(check_context())
    check.trace(note("offset_committed", 100, group="g", partition="hot-0", offset=10, generation=1))
    check.inspect(100, 0, coordinator_with(held), None, thorough=True)
    assert bool(judged(check, History(commits=commits))) is is_red
    assert check.evidence == 1


@pytest.mark.parametrize(
    ("led_us", "is_loaded", "is_red"), [(150, False, False), (150, True, True), (-LOADING_US, False, True)]
)
def test_new_coordinator_may_still_load_at_the_end(led_us: int, is_loaded: bool, is_red: bool) -> None:
    check = NoCommittedLost(check_context())
    check.trace(note("offset_committed", 100, group="g", partition="hot-0", offset=10, generation=1))
    check.trace(note("leads", led_us, partition="__consumer_offsets-0"))
    shards = [StubOffsetsPartition()] if is_loaded else []
    images = StubImages(image_of(topic_image("__consumer_offsets")))
    broker = StubBroker(controller=images, groups=StubCoordinator(shards))
    check.inspect(100, 0, StubNode(broker).as_node(), None, thorough=True)
    assert bool(judged(check, History(end_us=200))) is is_red


@pytest.mark.parametrize(
    ("generation", "member", "group", "is_red"),
    [(5, "m", "g", False), (5, "n", "g", True), (5, "m", "other", True), (-1, "", "other", False)],
)
def test_commit_of_a_generation_without_members(generation: int, member: str, group: str, is_red: bool) -> None:
    check, tag = CommitsFenced(check_context()), Tag(8, 8, "f", 0, -1)
    only_member = Member("m", None, "client", "host", 2000, 1000, ())
    groups = {"g": Group.loaded("g", 5, "consumer", "range", "m", 0, (only_member,))}
    node = StubNode(StubBroker(groups=StubCoordinator([StubOffsetsPartition(groups=groups)]))).as_node()
    body = replace(offset_commit_request(member, generation), group_id=GroupId(group))
    response = offset_commit_response(ErrorCode.none)
    check.acted(0, node, Request(1, 7, 8, 8, "f", body, tag), [Reply(1, 7, 8, 8, response, tag)])
    assert bool(check.violations) is is_red


@pytest.mark.parametrize(("at_us", "is_red"), [(299, True), (300, False), (355, False), (356, True)])
def test_owner_is_sent_back_only_between_its_assignment_and_its_read(at_us: int, is_red: bool) -> None:
    from chaos.checks.committed_offsets import Redelivery
    from chaos.tests.test_group_checks import operation as ended
    from chaos.tests.test_group_checks import read as of_member

    history = History(
        operations=[ended(A, 5, "fetch", 50), ended(B, 5, "fetch", 350)],
        commits=[commit(A, 6, 10, 5, 100)],
        memberships=[assigned(A, 1, 0), assigned(B, 2, 300)],
        runs=[of_member(A, 5, 0, 10), of_member(B, 5, 8, 5)],
        resets=[ResetRow(B, 5, "hot", 0, -1, 8, "OFFSET_OUT_OF_RANGE", -1, at_us)],
    )
    assert bool(judged(Redelivery(check_context()), history)) is is_red
