"""Committed offsets of groups."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.types import GroupId

from chaos.checks.groups.committed_offsets import LOADING_US, CommitsFenced, NoCommittedLost
from chaos.checks.groups.tests.group_history import A, B, assigned, commit, judged, note
from chaos.checks.history import History
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.kafka_messages import offset_commit_request, offset_commit_response
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubCoordinator,
    StubGroupCoordinatorShard,
    StubImages,
    StubNode,
    image_of,
    topic_image,
)
from reference_broker.core.events import Reply, Request
from reference_broker.groups.committed_offsets import CommitOffset, OffsetKey
from reference_broker.groups.group import Group, Member
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.tags import Tag
from reports.rows import ResetRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node
from bench.fleet.behaviours.consumer_history import NO_OFFSET as MEMBERS_NO_OFFSET
from chaos.checks.check import CheckContext
from chaos.checks.groups.assignments import GroupSkip
from chaos.checks.groups.committed_offsets import NEVER_US, CommitRegression, CommitsAccepted, Redelivery
from chaos.checks.groups.group_state import Removal
from chaos.checks.groups.tests.group_history import member_operation, member_read
from reports.rows import ChangeRow, OperationRow


def coordinator_with(offset: int | None) -> "Node":
    """Return a coordinator whose committed offset of hot-0 in group g is ``offset``, or which has none."""
    coordinated = StubGroupCoordinatorShard()
    if offset is not None:
        commit = CommitOffset("hot", 0, offset, -1, "", 0)
        coordinated.offsets.add_unreplicated(1, [(OffsetKey("g", "hot", 0), commit)])
        assert list(coordinated.offsets.advance_high_watermark(1))
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
    shards = [StubGroupCoordinatorShard()] if is_loaded else []
    images = StubImages(image_of(topic_image("__consumer_offsets")))
    broker = StubBroker(controller=images, groups=StubCoordinator(shards))
    check.inspect(100, 0, StubNode(broker).as_node(), None, thorough=True)
    assert bool(judged(check, History(end_us=200))) is is_red


@pytest.mark.parametrize(
    ("generation", "member", "group", "is_red"),
    [(5, "m", "g", False), (5, "n", "g", True), (5, "m", "other", True), (-1, "", "other", False)],
)
def test_commit_is_fenced_unless_its_member_is_in_the_generation(
    generation: int, member: str, group: str, is_red: bool
) -> None:
    check, tag = CommitsFenced(check_context()), Tag(8, 8, "f", 0, -1)
    only_member = Member("m", None, "client", "host", 2000, 1000, ())
    groups = {"g": Group.loaded("g", 5, "consumer", "range", "m", 0, (only_member,))}
    node = StubNode(StubBroker(groups=StubCoordinator([StubGroupCoordinatorShard(groups=groups)]))).as_node()
    body = replace(offset_commit_request(member, generation), group_id=GroupId(group))
    response = offset_commit_response(ErrorCode.none)
    check.acted(0, node, Request(1, 7, 8, 8, "f", body, tag), [Reply(1, 7, 8, 8, response, tag)])
    assert bool(check.violations) is is_red


@pytest.mark.parametrize(("at_us", "is_red"), [(299, True), (300, False), (355, False), (356, True)])
def test_owner_is_sent_back_only_between_its_assignment_and_its_read(at_us: int, is_red: bool) -> None:
    from chaos.checks.groups.committed_offsets import Redelivery
    from chaos.checks.groups.tests.group_history import member_operation, member_read

    history = History(
        operations=[member_operation(A, 5, "fetch", 50), member_operation(B, 5, "fetch", 350)],
        commits=[commit(A, 6, 10, 5, 100)],
        memberships=[assigned(A, 1, 0), assigned(B, 2, 300)],
        runs=[member_read(A, 5, 0, 10), member_read(B, 5, 8, 5)],
        resets=[ResetRow(B, 5, "hot", 0, -1, 8, "OFFSET_OUT_OF_RANGE", -1, at_us)],
    )
    assert bool(judged(Redelivery(check_context()), history)) is is_red


@pytest.mark.clause("M-7")
def test_smaller_epoch_after_a_greater_one_is_a_regression() -> None:
    clean = History(commits=[commit(A, 1, 10, 4, 0), commit(B, 1, 12, 5, 100)])
    assert not judged(CommitRegression(check_context()), clean)
    wrong = History(commits=[commit(A, 1, 10, 5, 0), commit(B, 1, 12, 4, 100)])
    assert "with metadata epoch 4 after" in judged(CommitRegression(check_context()), wrong)[0]
    refused = History(commits=[commit(A, 1, 10, 5, 0), commit(B, 1, 12, 4, 100, error="INVALID_METADATA_EPOCH")])
    assert not judged(CommitRegression(check_context()), refused)
    overlapping = History(commits=[commit(A, 1, 10, 5, 0), commit(B, 1, 12, 4, 3)])
    assert not judged(CommitRegression(check_context()), overlapping)


@pytest.mark.clause("M-11")
def test_older_version_forgets_the_epoch() -> None:
    between = commit(A, 2, 11, -1, 50, draft=False)
    history = History(commits=[commit(A, 1, 10, 5, 0), between, commit(B, 1, 12, 4, 100)])
    assert not judged(CommitRegression(check_context()), history)
    unknown = replace(between, error="timeout")
    assert not judged(
        CommitRegression(check_context()), History(commits=[commit(A, 1, 10, 5, 0), unknown, commit(B, 1, 12, 4, 100)])
    )


def test_older_generation_and_an_older_value_are_regressions() -> None:
    older = History(commits=[commit(A, 1, 10, 5, 0, generation=3), commit(B, 1, 12, 5, 100, generation=2)])
    assert "in generation 2 after" in judged(CommitRegression(check_context()), older)[0]
    first, second = commit(A, 1, 10, 5, 0), commit(A, 2, 12, 5, 100)
    found = commit(B, 1, 12, 5, 200, kind="fetched")
    assert not judged(CommitRegression(check_context()), History(commits=[first, second, found]))
    for lost in (replace(found, offset=10), replace(found, offset=-1, metadata_epoch=-1)):
        assert (
            "was fetched, though"
            in judged(CommitRegression(check_context()), History(commits=[first, second, lost]))[0]
        )
    maybe = replace(commit(A, 3, 10, 5, 110), error="timeout")
    assert not judged(
        CommitRegression(check_context()), History(commits=[first, second, maybe, replace(found, offset=10)])
    )


@pytest.mark.clause("M-11")
@pytest.mark.parametrize(("at_us", "is_regression"), [(-6, True), (5, False), (95, False), (101, True)])
def test_commit_without_epoch_counts_only_while_it_may_take_effect(at_us: int, is_regression: bool) -> None:
    """The others are sent at -5 and 95 and end at 5 and 105."""
    old = commit(A, 2, 11, -1, at_us, draft=False)
    old = replace(old, at_us=at_us + (1 if is_regression and at_us < 0 else 5))
    history = History(
        operations=[member_operation(A, 2, "offset_commit", at_us)],
        commits=[commit(A, 1, 10, 5, 0), old, commit(B, 1, 12, 4, 100)],
    )
    if at_us > 100:
        history.operations[0] = replace(history.operations[0], invoke_us=106)
        history.commits[1] = replace(old, at_us=110)
    assert bool(judged(CommitRegression(check_context()), history)) is is_regression


def deletion(kind: str, at_us: int) -> tuple[OperationRow, ChangeRow]:
    row = ChangeRow("admin", 1, "delete", "hot", "", 1, 1, -1, kind, 1, None)
    return OperationRow("admin", 1, "delete_topics", kind, at_us, at_us, at_us + 5), row


@pytest.mark.parametrize(("kind", "at_us", "is_excused"), [("ok", 200, True), ("ok", 201, False), ("fail", 150, False)])
def test_offsets_go_with_their_topic_once_their_deletion_was_requested(kind: str, at_us: int, is_excused: bool) -> None:
    made, change = deletion(kind, at_us)
    lost = commit(B, 1, -1, -1, 195, kind="fetched")
    history = History(operations=[made], commits=[commit(A, 1, 10, 5, 0), lost], changes=[change])
    assert bool(judged(CommitRegression(check_context()), history)) is not is_excused


def context_of_removal(at_us: int, until_us: int) -> CheckContext:
    """Return a context in which a tombstone was the last committed record of hot-0 for group g in this time."""
    context = check_context()
    context.offsets.removals["g", "hot", 0] = [Removal(at_us, until_us)]
    return context


@pytest.mark.parametrize(
    ("removed_us", "is_excused"),
    [
        ((190, NEVER_US), True),
        ((50, NEVER_US), True),
        ((100, 195), True),
        ((200, NEVER_US), True),
        ((201, NEVER_US), False),  # The fetch came before the tombstone.
        ((100, 194), False),  # An offset had been committed again.
    ],
)
def test_no_offset_is_fetched_only_while_a_tombstone_is_the_last_record(
    removed_us: tuple[int, int], is_excused: bool
) -> None:
    """The fetch lasts from 195 to 200."""
    lost = commit(B, 1, -1, -1, 195, kind="fetched")
    history = History(commits=[commit(A, 1, 10, 5, 0), lost])
    assert bool(judged(CommitRegression(context_of_removal(*removed_us)), history)) is not is_excused


@pytest.mark.parametrize(
    ("removed_us", "is_excused"), [(0, False), (1, True), (50, True), (100, True), (105, True), (106, False)]
)
def test_epochs_and_generations_begin_again_only_after_a_tombstone(removed_us: int, is_excused: bool) -> None:
    """The commits last from 0 to 5 and from 100 to 105. One that overlaps the tombstone may come before or after it."""
    offset, group = context_of_removal(removed_us, NEVER_US), check_context()
    group.offsets.deletions_us["g"] = [removed_us]
    smaller = History(commits=[commit(A, 1, 10, 5, 0), commit(B, 1, 12, 4, 100)])
    assert bool(judged(CommitRegression(offset), smaller)) is not is_excused
    assert judged(CommitRegression(group), replace(smaller, operations=[]))
    older = History(commits=[commit(A, 1, 10, 5, 0, generation=3), commit(B, 1, 12, 5, 100, generation=2)])
    assert bool(judged(CommitRegression(group), older)) is not is_excused
    assert judged(CommitRegression(offset), replace(older, operations=[]))


def test_offset_that_was_removed_excuses_no_older_one_and_no_other_partition() -> None:
    first, second = commit(A, 1, 10, 5, 0), commit(A, 2, 12, 5, 100)
    older = commit(B, 1, 10, 5, 195, kind="fetched")
    assert judged(CommitRegression(context_of_removal(50, NEVER_US)), History(commits=[first, second, older]))
    lost = commit(B, 1, -1, -1, 195, kind="fetched", partition=1)
    other = replace(first, partition=1)
    assert judged(CommitRegression(context_of_removal(50, NEVER_US)), History(commits=[other, lost]))
    assert judged(CommitRegression(check_context()), History(commits=[first, replace(lost, partition=0)]))


@pytest.mark.parametrize(("kind", "at_us", "is_excused"), [("ok", 200, True), ("ok", 201, False), ("fail", 150, False)])
def test_commit_for_a_topic_that_is_not_deleted_is_accepted(kind: str, at_us: int, is_excused: bool) -> None:
    made, change = deletion(kind, at_us)
    refused = commit(B, 1, 10, 5, 195, error="UNKNOWN_TOPIC_OR_PARTITION")
    history = History(operations=[made], commits=[refused], changes=[change])
    assert bool(judged(CommitsAccepted(check_context()), history)) is not is_excused
    broken = replace(refused, error="UNKNOWN_SERVER_ERROR")
    assert judged(CommitsAccepted(check_context()), History(operations=[made], commits=[broken], changes=[change]))


@pytest.mark.clause("M-11")
def test_refusal_for_an_epoch_that_an_older_version_has_removed() -> None:
    refused = commit(B, 1, 12, 4, 100, error="INVALID_METADATA_EPOCH")
    greater, old = commit(A, 1, 10, 5, 0), commit(A, 2, 11, -1, 50, draft=False)
    assert judged(CommitsAccepted(check_context()), History(commits=[greater, old, refused]))
    overlapping = replace(greater, at_us=60)
    assert not judged(CommitsAccepted(check_context()), History(commits=[overlapping, old, refused]))
    unknown = replace(old, error="timeout")
    assert not judged(CommitsAccepted(check_context()), History(commits=[greater, unknown, refused]))


@pytest.mark.clause("M-7")
def test_refusal_needs_a_greater_epoch_before_it() -> None:
    refused = commit(B, 1, 12, 4, 100, error="INVALID_METADATA_EPOCH")
    assert not judged(CommitsAccepted(check_context()), History(commits=[commit(A, 1, 10, 5, 0), refused]))
    assert judged(CommitsAccepted(check_context()), History(commits=[commit(A, 1, 10, 4, 0), refused]))
    assert judged(
        CommitsAccepted(check_context()), History(commits=[commit(A, 1, 10, 4, 0, error="UNSUPPORTED_VERSION")])
    )


def test_owner_begins_where_the_group_had_committed() -> None:
    given = [assigned(A, 1, 0), assigned(B, 2, 300)]
    operations = [member_operation(A, 5, "fetch", 50), member_operation(B, 5, "fetch", 350)]
    commits = [commit(A, 6, 10, 5, 100)]
    good = History(
        operations=operations[:],
        commits=commits,
        memberships=given,
        runs=[member_read(A, 5, 0, 10), member_read(B, 5, 10, 5)],
    )
    assert not judged(Redelivery(check_context()), good)
    again = replace(good, operations=operations[:], runs=[member_read(A, 5, 0, 10), member_read(B, 5, 8, 5)])
    assert "read from offset 8; group g had committed 10" in judged(Redelivery(check_context()), again)[0]
    for reason, is_moved in ((MEMBERS_NO_OFFSET, False), ("OFFSET_OUT_OF_RANGE", True)):
        moved = replace(again, operations=operations[:], resets=[ResetRow(B, 5, "hot", 0, -1, 8, reason, -1, 320)])
        assert bool(judged(Redelivery(check_context()), moved)) is not is_moved
    whole = member_read("final", 0, 0, 20)
    skipped = replace(good, operations=operations[:], runs=[member_read(A, 5, 0, 10), member_read(B, 5, 12, 5), whole])
    assert "omitted 2 records of hot-0, the first at offset 10" in judged(GroupSkip(check_context()), skipped)[0]
    assert not judged(GroupSkip(check_context()), good)
    for begin, end, left_out in ((10, 12, 0), (11, 12, 1), (10, 11, 1), (12, 14, 2)):
        jump = ResetRow(B, 5, "hot", 0, begin, end, "OFFSET_OUT_OF_RANGE", -1, 320)
        found = judged(GroupSkip(check_context()), replace(skipped, operations=operations[:], resets=[jump]))
        assert bool(found) is (left_out > 0)
        assert all(f"omitted {left_out} records" in each for each in found)


@pytest.mark.parametrize(
    ("removed_us", "reason", "is_excused"),
    [
        ((200, NEVER_US), MEMBERS_NO_OFFSET, True),
        ((310, NEVER_US), MEMBERS_NO_OFFSET, True),
        ((200, 300), MEMBERS_NO_OFFSET, True),
        ((321, NEVER_US), MEMBERS_NO_OFFSET, False),  # The tombstone came after the member had begun.
        ((200, 299), MEMBERS_NO_OFFSET, False),  # An offset had been committed again.
        ((200, NEVER_US), None, False),  # The member had not found its offset missing.
    ],
)
def test_owner_begins_where_its_policy_says_only_if_the_offset_was_removed(
    removed_us: tuple[int, int], reason: str | None, is_excused: bool
) -> None:
    """B gets the partition at 300, and its position at 320."""
    history = History(
        operations=[member_operation(A, 5, "fetch", 50), member_operation(B, 5, "fetch", 350)],
        commits=[commit(A, 6, 10, 5, 100)],
        memberships=[assigned(A, 1, 0), assigned(B, 2, 300)],
        runs=[member_read(A, 5, 0, 10), member_read(B, 5, 0, 5)],
        resets=[] if reason is None else [ResetRow(B, 5, "hot", 0, -1, 0, reason, -1, 320)],
    )
    assert bool(judged(Redelivery(context_of_removal(*removed_us)), history)) is not is_excused
