"""Each check of groups, committed offsets and metadata epochs finds what it is for, and nothing in a clean history."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench.fleet.behaviours.consumer_history import NO_OFFSET as MEMBERS_NO_OFFSET
from chaos.checks.check import Check, CheckContext
from chaos.checks.committed_offsets import NEVER_US, CommitRegression, CommitsAccepted, Redelivery
from chaos.checks.group_state import Removal
from chaos.checks.groups import AllAssigned, GroupsConsistent, GroupSkip, OneGroupLeader
from chaos.checks.history import History
from chaos.checks.metadata_epoch import NoFetchBeforeEpoch, NonmonotonicMetadataEpoch, Rewinds
from chaos.checks.writes import MirrorComplete
from chaos.tests.check_context import check_context
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld
from reports.rows import (
    ChangeRow,
    CommitRow,
    CopyRow,
    EndRow,
    MembershipRow,
    MetadataEpochRow,
    OperationRow,
    PositionRow,
    ResetRow,
    SpanRow,
    TargetSpanRow,
    TraceRow,
)

A, B = "member-0", "member-1"


def operation(process: str, index: int, f: str, at_us: int) -> OperationRow:
    return OperationRow(process, index, f, "ok", at_us, at_us, at_us + 5)


def commit(process: str, index: int, offset: int, epoch: int, at_us: int, **more: Any) -> CommitRow:
    row = CommitRow(process, index, "commit", "g", 1, process, "hot", 0, offset, -1, epoch, True, None, at_us + 5)
    return replace(row, **more)


def assigned(process: str, generation: int, at_us: int, event: str = "assigned") -> MembershipRow:
    return MembershipRow(process, "g", process, generation, event, "hot", 0, at_us, at_us)


def read(process: str, index: int, first: int, count: int) -> SpanRow:
    return SpanRow(process, index, 0, "read", "hot", 0, first, count, 1, "producer-0", first, True)


def judged(check: Check, history: History) -> list[str]:
    known = [(row.process, row.index) for row in history.operations]
    history.operations += [
        operation(row.process, row.index, "offset_commit", row.at_us - 5)
        for row in history.commits
        if (row.process, row.index) not in known
    ]
    check.end(history)
    return [each.story for each in check.violations]


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
        operations=[operation(A, 2, "offset_commit", at_us)],
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


@pytest.mark.clause("M-5")
def test_client_that_accepts_older_metadata_is_a_violation() -> None:
    rows = [MetadataEpochRow(A, 1, 0, 5, True, 0), MetadataEpochRow(A, 2, 3, 4, True, 10)]
    assert judged(NonmonotonicMetadataEpoch(check_context()), History(metadata_epochs=rows))
    dropped = [rows[0], replace(rows[1], accepted=False)]
    assert not judged(NonmonotonicMetadataEpoch(check_context()), History(metadata_epochs=dropped))
    left = [assigned(A, 1, 5, "left")]
    assert not judged(NonmonotonicMetadataEpoch(check_context()), History(metadata_epochs=rows, memberships=left))


def note(what: str, at_us: int, node: int = 0, **fields: int | str) -> TraceRow:
    return TraceRow(node, 0, 0, at_us, what, detail=json.dumps(fields))


@pytest.mark.clause("M-2")
def test_epoch_that_is_committed_twice_is_a_violation() -> None:
    check = NonmonotonicMetadataEpoch(check_context())
    for node in (0, 1):
        check.trace(note("metadata_epoch", 1, node, epoch=1, offset=10))
    check.trace(note("metadata_epoch", 2, epoch=2, offset=12))
    assert not check.violations
    check.trace(note("metadata_epoch", 3, epoch=1, offset=14))
    assert check.violations
    back = NonmonotonicMetadataEpoch(check_context())
    back.trace(note("update_metadata_applied", 1, epoch=5))
    back.trace(note("update_metadata_applied", 2, epoch=4))
    assert "had metadata epoch 5 and applied 4" in back.violations[0].story


@pytest.mark.clause("M-15")
def test_rewind_from_a_position_that_the_partition_has_is_a_violation() -> None:
    reset = ResetRow(A, 3, "hot", 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5, 100)
    ends = [EndRow("hot", 0, 0, 90, 500)]
    assert judged(Rewinds(check_context()), History(resets=[reset], ends=ends))
    for excused in (
        replace(reset, metadata_epoch=-1),
        replace(reset, from_offset=9),
        replace(reset, reason="no_offset"),
    ):
        starts = [PositionRow(A, 2, "hot", 0, 10, 10, 90, 10, None)]
        assert not judged(Rewinds(check_context()), History(resets=[excused], ends=ends, positions=starts))
    at_the_start = History(resets=[replace(reset, from_offset=10)], ends=ends, positions=starts)
    assert judged(Rewinds(check_context()), at_the_start)
    for epoch, is_wrong in ((4, True), (-1, False)):
        began = replace(commit(A, 1, 40, epoch, 50, kind="fetched"), draft=epoch >= 0)
        assert bool(judged(Rewinds(check_context()), History(resets=[reset], ends=ends, commits=[began]))) is is_wrong


@pytest.mark.clause("M-15")
@pytest.mark.parametrize(("offset", "is_wrong"), [(91, False), (90, True)])
def test_position_beyond_the_end_does_not_count(offset: int, is_wrong: bool) -> None:
    reset = ResetRow(A, 3, "hot", 0, offset, 0, "OFFSET_OUT_OF_RANGE", 5, 100)
    history = History(resets=[reset], ends=[EndRow("hot", 0, 0, 90, 500)])
    assert bool(judged(Rewinds(check_context()), history)) is is_wrong


@pytest.mark.clause("M-15")
@pytest.mark.parametrize(
    ("offset", "at_us", "partition", "is_wrong"),
    [
        (39, 80, "hot-0", False),
        (40, 80, "hot-0", True),  # The position was kept.
        (39, 101, "hot-0", True),  # The stale leader, come back.
        (39, 30, "hot-0", True),  # The log has grown again since then.
        (39, 80, "hot-1", True),
    ],
)
def test_position_that_a_replica_cut_off_does_not_count(
    offset: int, at_us: int, partition: str, is_wrong: bool
) -> None:
    check = Rewinds(check_context())
    check.trace(note("truncated", at_us, offset=offset, partition=partition))
    check.trace(note("truncated", at_us, offset=offset))
    history = History(
        operations=[operation(B, 1, "fetch", 45)],
        positions=[PositionRow(B, 1, "hot", 0, 30, 40, 90, 0, None)],
        resets=[ResetRow(A, 3, "hot", 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5, 100)],
        ends=[EndRow("hot", 0, 0, 90, 500)],
    )
    assert bool(judged(check, history)) is is_wrong


@pytest.mark.clause("M-15")
def test_position_below_the_log_start_at_the_end_does_not_count() -> None:
    reset = ResetRow(A, 3, "hot", 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5, 100)
    for log_start, is_wrong in ((41, False), (40, True)):
        history = History(resets=[reset], ends=[EndRow("hot", 0, log_start, 90, 500)])
        assert bool(judged(Rewinds(check_context()), history)) is is_wrong


def test_owner_begins_where_the_group_had_committed() -> None:
    given = [assigned(A, 1, 0), assigned(B, 2, 300)]
    operations = [operation(A, 5, "fetch", 50), operation(B, 5, "fetch", 350)]
    commits = [commit(A, 6, 10, 5, 100)]
    good = History(
        operations=operations[:], commits=commits, memberships=given, runs=[read(A, 5, 0, 10), read(B, 5, 10, 5)]
    )
    assert not judged(Redelivery(check_context()), good)
    again = replace(good, operations=operations[:], runs=[read(A, 5, 0, 10), read(B, 5, 8, 5)])
    assert "read from offset 8; group g had committed 10" in judged(Redelivery(check_context()), again)[0]
    for reason, is_moved in ((MEMBERS_NO_OFFSET, False), ("OFFSET_OUT_OF_RANGE", True)):
        moved = replace(again, operations=operations[:], resets=[ResetRow(B, 5, "hot", 0, -1, 8, reason, -1, 320)])
        assert bool(judged(Redelivery(check_context()), moved)) is not is_moved
    whole = read("final", 0, 0, 20)
    skipped = replace(good, operations=operations[:], runs=[read(A, 5, 0, 10), read(B, 5, 12, 5), whole])
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
        operations=[operation(A, 5, "fetch", 50), operation(B, 5, "fetch", 350)],
        commits=[commit(A, 6, 10, 5, 100)],
        memberships=[assigned(A, 1, 0), assigned(B, 2, 300)],
        runs=[read(A, 5, 0, 10), read(B, 5, 0, 5)],
        resets=[] if reason is None else [ResetRow(B, 5, "hot", 0, -1, 0, reason, -1, 320)],
    )
    assert bool(judged(Redelivery(context_of_removal(*removed_us)), history)) is not is_excused


def test_one_leader_and_one_owner_in_a_generation() -> None:
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
    node: Any = SimpleNamespace(broker=SimpleNamespace(node_id=1, groups=world.groups))
    check = GroupsConsistent(check_context())
    check.inspect(7, 0, node, None, thorough=True)
    assert not check.violations
    target.offsets.count += 1
    check.inspect(9, 0, node, None, thorough=True)
    assert "node 1: 2 offsets are counted, 1 are visible" in check.violations[0].story


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
    assert "hot-0 has nobody 5 s after the heal" in check.violations[0].story


@pytest.mark.clause("M-10", "M-13")
@pytest.mark.parametrize("kind", ["fetched", "loaded"])
def test_fetch_before_committed_epoch_is_a_violation(kind: str) -> None:
    learnt = commit(A, 1, 10, 5, 0, kind=kind)
    news = [MetadataEpochRow(A, 2, 3, 4, True, 20), MetadataEpochRow(A, 3, 0, 5, True, 60)]
    for fetch_at_us, early in ((40, True), (80, False)):
        history = History(
            operations=[operation(A, 4, "fetch", fetch_at_us)],
            commits=[learnt],
            metadata_epochs=news,
            positions=[PositionRow(A, 4, "hot", 0, 10, 12, 12, 0, None)],
        )
        assert bool(judged(NoFetchBeforeEpoch(check_context()), history)) is early
        left = MembershipRow(A, "g", "", -1, "left", "", -1, fetch_at_us - 10, -1)
        retried = replace(history, memberships=[left], commits=[replace(learnt, at_us=fetch_at_us - 5)])
        assert judged(NoFetchBeforeEpoch(check_context()), retried)


@pytest.mark.parametrize(
    ("there", "reset", "found"),
    [
        ([(0, 6), (6, 0)], None, 0),
        ([(0, 4), (4, 0)], None, 2),
        ([(0, 2), (3, 3), (6, 0)], None, 1),
        ([(0, 4)], None, 0),  # It was not read to its end.
        ([(2, 4), (6, 0)], ResetRow("mirror-0", 1, "hot", 0, -1, 2, "no_offset", -1, 5), 0),
        ([(3, 3), (6, 0)], ResetRow("mirror-0", 1, "hot", 0, -1, 2, "no_offset", -1, 5), 1),
        ([(2, 4), (6, 0)], ResetRow("mirror-0", 1, "hot", 0, 1, 2, "no_offset", -1, 5), 1),
        ([(2, 4), (6, 0)], ResetRow("member-0", 1, "hot", 0, -1, 2, "no_offset", -1, 5), 2),
    ],
)
def test_mirror_target_holds_records_of_source(
    there: list[tuple[int, int]], reset: ResetRow | None, found: int
) -> None:
    held = [TargetSpanRow("hot", 0, first, count, "producer-0" if count else "", first) for first, count in there]
    history = History(
        operations=[operation("final-reader", 1, "final_read", 100)],
        runs=[read("final-reader", 1, 0, 6)],
        copies=[CopyRow("mirror-0-writer", 1, "hot", 0, 0, 6, 0, "producer-0", 0, 50)],
        target_runs=held,
        resets=[] if reset is None else [reset],
    )
    assert len(judged(MirrorComplete(check_context()), history)) == found
