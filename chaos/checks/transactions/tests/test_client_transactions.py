"""Checks of transactions on the histories that are planted for the Spark jobs, and near misses."""

import json
from typing import Any, cast

import pytest

from chaos.checks.history import OFFSETS_TOPIC, STATE_TOPIC, History, partition_of
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated, offsets_partition
from chaos.checks.suite import all_checks
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.planted_histories import history_of
from chaos.checks.transactions.client_transactions import ExactlyOnce, LostTransaction
from reference_broker.core.events import Note
from reference_broker.metadata.image import PartitionImage
from reports.rows import SpanRow, TransactionRow
from reports.tests.history import int_of
from reports.tests.ledger import GROUP, LEDGER, Ledger
from reports.tests.test_transactions_judged import PLANTED

GUARANTEES = {guarantee for _, guarantees in PLANTED.values() for guarantee in guarantees}


def looked_at(name: str) -> tuple[dict[str, list[str]], set[str]]:
    """Return the violations of each check in a planted history, and the guarantees that had something to judge."""
    ledger = Ledger().play()
    PLANTED[name][0](ledger)
    rows = history_of(ledger)
    context = check_context()
    for row in ledger.tables["trace"]:
        if row["what"] == "leads":
            context.replicas.note(int_of(row, "node"), Note("leads", (*json.loads(str(row["detail"])).items(),)))
    checks = all_checks(context)
    for check in checks:
        check.end(rows)
    said = {
        check.guarantee: [violation.explanation for violation in check.violations]
        for check in checks
        if check.violations
    }
    return said, {check.guarantee for check in checks if check.evidence}


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_guarantee_breaks(name: str) -> None:
    said, _ = looked_at(name)
    assert set(said) & GUARANTEES == PLANTED[name][1], said


def test_each_transaction_check_has_evidence() -> None:
    _, judged = looked_at("nothing")
    assert judged >= GUARANTEES


@pytest.mark.clause("E-7", "X-14")
@pytest.mark.parametrize(("place", "lost", "broken"), [(0, GROUP, False), (0, "another", True), (None, GROUP, True)])
def test_input_may_take_effect_twice_only_if_the_group_lost_its_offsets(
    place: int | None, lost: str, broken: bool
) -> None:
    ledger = Ledger().play()
    PLANTED["twice"][0](ledger)
    places = [] if place is None else [(OFFSETS_TOPIC, place)]
    check = ExactlyOnce(check_context())
    check.end(history_of(ledger).without(places, lambda group: group == lost))
    assert bool(check.violations) is broken


@pytest.mark.clause("E-7", "X-14")
@pytest.mark.parametrize("is_own", [True, False])
def test_records_that_replace_lost_ones_are_other_inputs(*, is_own: bool) -> None:
    ledger = Ledger().play()
    PLANTED["twice"][0](ledger)
    rows = history_of(ledger)
    (source,) = {partition_of(row) for row in rows.transforms}
    check = ExactlyOnce(check_context())
    check.end(rows.without([source if is_own else (source[0], source[1] + 1)], lambda _: False))
    assert bool(check.violations) is not is_own


@pytest.mark.clause("E-7", "X-1")
@pytest.mark.parametrize(
    ("forgotten", "second_epoch", "outcome", "mixed"),
    [
        ("id", 3, "failed", {("t", 0), ("t", 1)}),
        ("another", 3, "failed", set()),
        ("id", 4, "failed", set()),
        ("id", 3, "ok", set()),
    ],
)
def test_only_a_forgotten_id_with_an_epoch_it_had_before_mixes_records_of_two_transactions(
    forgotten: str, second_epoch: int, outcome: str, mixed: set[tuple[str, int]]
) -> None:
    history = History()
    for index, epoch in ((0, 3), (1, second_epoch)):
        history.add(
            [TransactionRow("p", index, "id", 1000, epoch, "commit", outcome, None, 1, index, index, index + 1)]
        )
        history.add([SpanRow("p", index, 0, "send", "t", index, 7, 1, 1000, "p", index, valid=True)])
    assert history.written_by_reissued_epochs(lambda name: name == forgotten) == mixed


@pytest.mark.clause("E-7", "P-11")
@pytest.mark.parametrize(
    ("local_starts", "passes", "is_red"),
    [((8, 5), False, False), ((8, 5), True, True), ((7, 5), False, True), ((8,), False, True), ((), False, True)],
)
def test_transaction_is_not_lost_where_its_remote_segments_are_unreadable(
    local_starts: tuple[int, ...], *, passes: bool, is_red: bool
) -> None:
    """Its values are at offsets 6 and 7 of the first partition, and 3 and 4 of the second. They are judged where a
    reader got past them, and where the local log has one of them."""
    ledger = Ledger().play()
    PLANTED["lost"][0](ledger)
    rows = history_of(ledger)
    if not passes:
        rows.positions.clear()
    context = check_context()
    unreadable = [((LEDGER, index), start) for index, start in enumerate(local_starts)]
    cast(Any, context.replicas).unreadable = lambda: unreadable
    check = LostTransaction(context)
    check.end(rows)
    assert bool(check.violations) is is_red


@pytest.mark.clause("E-7", "X-1")
@pytest.mark.parametrize("excused", [None, "of the ID", "another"])
def test_transactional_id_is_forgotten_only_with_the_partition_of_its_coordinator(excused: str | None) -> None:
    context = check_context()
    state = PartitionImage((0, 1), (0, 1), 0, 0, 0)
    for index in range(2):
        key = (b"s" * 16, index)
        context.replicas.partitions[key] = Replicated(f"{STATE_TOPIC}-{index}", key, state, Eligible.of(state, 1))
    own = offsets_partition("id", 2)
    if excused is not None:
        context.replicas.excused[STATE_TOPIC, own if excused == "of the ID" else 1 - own] = None
    history = History(writes_guaranteed=True)
    for index, epoch in ((0, 11), (1, 1)):
        row = TransactionRow("p", index, "id", 1000, epoch, "abort", "ok", None, 1, index, index, index + 1)
        history.add([row])
    check = LostTransaction(context)
    check.end(history)
    assert bool(check.violations) is (excused != "of the ID")
