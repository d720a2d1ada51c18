"""Transactions in the partitions that they write to: open ones, their markers, and verified writes."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.history import History
from chaos.checks.log import producer_view
from chaos.checks.log.producer_view import LogProducers
from chaos.checks.reads_and_writes.reads import FetchGap
from chaos.checks.replication.eligible_replicas import Eligible
from chaos.checks.replication.replica_view import Replicated
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.client_history import ASSIGNMENT, END, OPERATIONS, READS, SENDS, position, send
from chaos.checks.tests.stub_node import StubLog
from chaos.checks.transactions.tests.transaction_coordinator import (
    DECIDED,
    DONE,
    OWNER,
    STARTED,
    CheckedTransactionCoordinator,
    markers,
)
from chaos.checks.transactions.transaction_state import StatePartition
from chaos.checks.transactions.transactions_in_partitions import CLEANUP_US, HangingTransaction, MarkersDecided
from reference_broker.core.events import Request
from reference_broker.log.unified_log import BatchOrigin
from reference_broker.metadata.image import PartitionImage
from reference_broker.records.record import Record, build
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag
from reports.rows import EndRow, HistoryRow, TransactionRow

REST: list[HistoryRow] = [*OPERATIONS, ASSIGNMENT, END]


@pytest.mark.clause("E-7")
@pytest.mark.parametrize(
    ("lost", "last_stable", "open_from", "is_red"),
    [
        (("__transaction_state", 0), 9, {7: 9}, False),
        (("__transaction_state", 0), 8, {7: 8}, True),
        (("__transaction_state", 3), 9, {7: 9}, True),
        (("hot", 0), 9, {7: 9}, True),
        (("__transaction_state", 0), 9, {8: 9}, True),
        (("__transaction_state", 0), 9, {}, True),
    ],
)
def test_transaction_that_its_coordinator_lost_holds_back_readers(
    lost: tuple[str, int], last_stable: int, open_from: dict[int, int], is_red: bool
) -> None:
    """Partition 0 of four has transactional ID x, of producer 7. Producer 8 is unknown."""
    context = check_context()
    context.replicas.excused[lost] = None
    for number in range(4):
        state = PartitionImage((0, 1, 2), (0, 1, 2), 0, 0, 0)
        of_state = Replicated(f"__transaction_state-{number}", (b"s", number), state, Eligible.of(state, 2))
        context.replicas.partitions[b"s", number] = of_state
    context.transactions.owners[7] = StatePartition(0, (bytes(16), 0)), "x"
    log = StubLog(high_watermark=10).as_log()
    context.producers.logs[1, "hot-0"] = LogProducers(log, b"", 0, open=open_from)
    context.producers.logs[1, "hot-1"] = LogProducers(log, b"", 1, open={7: 9})
    check, history = FetchGap(context), History()
    rest = [replace(row, last_stable_offset=last_stable) if isinstance(row, EndRow) else row for row in REST]
    history.add([*rest, *SENDS, position(0, 0, 5), position(1, 5, 9), *READS])
    check.end(history)
    assert bool(check.violations) is is_red
    hanging = HangingTransaction(context)
    hanging.end(history)
    assert bool(hanging.violations) is (is_red and last_stable == 9)


@pytest.mark.parametrize(
    ("fields", "topic", "is_red"),
    [
        ({}, "hot", False),
        ({"outcome": "ok"}, "hot", True),
        ({"timeout_us": 0}, "hot", True),
        ({"producer_id": 8}, "hot", True),
        ({}, "cold", True),
    ],
)
@pytest.mark.parametrize("steps_us", [0, 60_000_000])
def test_only_an_open_transaction_of_the_producer_in_the_partition_may_hold_it_back(
    fields: dict[str, Any], topic: str, is_red: bool, steps_us: int
) -> None:
    """A step of the coordinator's clock delays the end of its transactions by as much."""
    context = check_context()
    log = StubLog(high_watermark=10).as_log()
    context.producers.logs[1, "hot-0"] = LogProducers(log, b"", 0, open={7: 9})
    row = TransactionRow("p", 0, "x", 7, 0, "commit", "unknown", None, 1, 0, 0, 5)
    sent = replace(send(0, 9, 0), topic=topic)
    end = replace(END, last_stable_offset=9, end_us=CLEANUP_US + steps_us + 1)
    history = History(clock_steps_us=steps_us)
    history.add([replace(row, **fields), sent, end])
    check = HangingTransaction(context)
    check.end(history)
    assert bool(check.violations) is is_red


@pytest.mark.parametrize(
    ("steps_us", "producer_id", "is_red"), [(0, 7, True), (30, 7, True), (10_000_000, 7, False), (10_000_000, 8, True)]
)
def test_transaction_holds_back_readers_by_a_step_of_its_coordinators_clock(
    steps_us: int, producer_id: int, is_red: bool
) -> None:
    context = check_context()
    log = StubLog(high_watermark=10).as_log()
    context.producers.logs[1, "hot-0"] = LogProducers(log, b"", 0, open={7: 9})
    check, history = FetchGap(context), History(clock_steps_us=steps_us)
    rest = [replace(row, last_stable_offset=9, end_us=1_000_000) if isinstance(row, EndRow) else row for row in REST]
    row = TransactionRow("p", 0, "x", producer_id, 0, "commit", "unknown", None, 1, 0, 0, 5)
    history.add([*rest, *SENDS, position(0, 0, 5), position(1, 5, 9), *READS, row])
    check.end(history)
    assert bool(check.violations) is is_red


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


def test_marker_of_the_other_kind_is_a_violation_unless_an_administrator_requested_it() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert len(world.marker(commit=False)) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    body = markers(commit=False).body
    world.acts(Request(1, 1, 27, 1, "a", body, Tag(27, 1, "a")))
    assert world.marker(commit=False) == []


def test_completion_without_each_marker_below_the_high_watermark_is_a_violation() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    assert len(world.write(DONE)) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker(commits=False)
    assert len(world.write(DONE)) == 1


def test_marker_that_was_lost_and_written_again_counts_where_it_is() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world._to_data(build([Record(timestamp_ms=0, value=b"v")]), BatchOrigin.CLIENT, commits=False)
    world.marker(commits=False)
    with world.touched.noted():
        world.data.truncate_to(0)
    world.looked()
    world.marker()
    assert world.write(DONE) == []


def test_marker_counts_although_another_coordinator_has_it_written_again() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker()
    world.marker(commits=False)
    assert world.write(DONE) == []


def test_marker_of_an_earlier_transaction_completes_no_other() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    world.marker()
    assert world.write(DONE, STARTED, DECIDED) == []
    assert len(world.write(DONE)) == 1


@pytest.mark.clause("X-3")
@pytest.mark.parametrize("is_marked", [True, False])
def test_marker_that_was_read_as_a_whole_counts_only_behind_what_the_producer_wrote(is_marked: bool) -> None:
    """The log is opened again with two transactions of one epoch, and the second has a marker or none."""
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.produce()
    world.write(DECIDED)
    world.marker()
    world.write(DONE, STARTED)
    world.produce(sequence=1)
    assert world.write(DECIDED) == []
    if is_marked:
        world.marker()
    next(check for check in world.checks if isinstance(check, MarkersDecided))._written.clear()
    world.reopen_data()
    assert world.looked() == []
    assert bool(world.write(DONE)) is not is_marked


def test_first_write_of_a_transaction_is_verified_between_its_arrival_and_the_append() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    assert len(world.produce()) == 1
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    assert world.produce() == []
    world.write(DECIDED)
    assert world.produce(sequence=1) == []  # It is open in the partition.
    world.marker()
    world.write(DONE)
    assert len(world.produce(sequence=2)) == 1
    world = CheckedTransactionCoordinator()
    world.broker.config = replace(world.broker.config, transaction_partition_verification_enable=False)
    assert world.produce() == []


def test_marker_voids_what_the_coordinator_has_confirmed_before_it() -> None:
    def write(*, is_next_open: bool) -> list[str]:
        world = CheckedTransactionCoordinator()
        world.write(OWNER, STARTED)
        arriving = build(
            [Record(timestamp_ms=0, value=b"v")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        topic = ProduceTopic("t", bytes(16), [ProducePartition(0, arriving)])
        world.acts(Request(1, 2, 0, 11, "p", ProduceRequest(-1, 100, [topic], "x"), Tag(0, 11, "p")))
        world.write(DECIDED)
        world.marker()
        world.write(DONE)
        if is_next_open:
            world.write(STARTED)
        return world.produce(arrives=False)

    (explanation,) = write(is_next_open=False)
    assert "since then" not in explanation
    assert "began a transaction of producer 7, epoch 0" in explanation
    assert write(is_next_open=True) == []


@pytest.mark.clause("X-12")
@pytest.mark.parametrize("index", [0, 1])
def test_administrator_ends_a_transaction_only_in_the_partition_of_the_request(index: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    body = markers(commit=False, index=index).body
    world.acts(Request(1, 1, 27, 1, "a", body, Tag(27, 1, "a")))
    assert bool(world.marker(commit=False)) is (index == 1)
