"""Transactional IDs at their coordinator: owners, timeouts and ends in time."""

from typing import TYPE_CHECKING

import pytest

from chaos.checks.history import History
from chaos.checks.log import producer_view
from chaos.checks.tests.kafka_messages import init_producer_id_request, init_producer_id_response
from chaos.checks.transactions.transactional_ids import MARKERS_US, EndingsInTime, TimeoutsKept
from reference_broker.core.events import Note
from reference_broker.transactions.transaction_metadata import TransactionState

if TYPE_CHECKING:
    pass
from chaos.checks.transactions.tests.transaction_coordinator import (
    DECIDED,
    DONE,
    INTERVAL_MS,
    OWNER,
    SLACK_MS,
    STARTED,
    CheckedTransactionCoordinator,
)


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


def test_owner_that_comes_twice_is_a_violation_unless_the_producer_continues() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER)
    world.replies(init_producer_id_request(), init_producer_id_response())
    assert world.replies(init_producer_id_request(producer_id=7), init_producer_id_response()) == []
    assert len(world.replies(init_producer_id_request(), init_producer_id_response())) == 1
    world = CheckedTransactionCoordinator()
    assert world.replies(init_producer_id_request(transactional_id=None), init_producer_id_response(9)) == []
    assert len(world.replies(init_producer_id_request(transactional_id=None), init_producer_id_response(9))) == 1


@pytest.mark.parametrize(("age_ms", "broken"), [(999, 1), (1000, 0)])
def test_transaction_is_not_timed_out_before_its_timeout(age_ms: int, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.ms += age_ms
    world.acts(None, Note("transaction_timed_out", (("transactional_id", "x"),)))
    assert len(world.looked()) == broken


@pytest.mark.parametrize(("leader", "broken"), [((4, 1), 1), ((5, 2), 0)])
def test_coordinator_that_was_replaced_may_go_by_old_values(leader: tuple[int, int], broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    for check in world.checks:
        if isinstance(check, TimeoutsKept):
            check.transactions.ids["x"].leader = leader
    world.acts(None, Note("transaction_timed_out", (("transactional_id", "x"),)))
    assert len(world.looked()) == broken


@pytest.mark.parametrize(("late_ms", "fault", "broken"), [(0, False, 0), (10, False, 1), (10, True, 0)])
def test_transaction_is_aborted_at_the_next_check_after_its_timeout(late_ms: int, fault: bool, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    age_ms = 1000 + INTERVAL_MS + SLACK_MS + late_ms
    world.ms += age_ms
    world.us += age_ms * 1000 - 2000
    if fault:
        for check in world.checks:
            check.context.quorum.fault_times.node(2, world.us)
    aborted = STARTED._replace(state=TransactionState.PREPARE_ABORT, producer_epoch=1)
    assert len(world.write(aborted)) == broken


@pytest.mark.parametrize(("epoch", "is_noted", "broken"), [(1, True, 0), (0, True, 1), (0, False, 0)])
def test_abort_after_a_timeout_fences_the_producer(epoch: int, is_noted: bool, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED)
    world.ms += 1000
    if is_noted:
        world.acts(None, Note("transaction_timed_out", (("transactional_id", "x"),)))
    state = TransactionState.PREPARE_ABORT
    assert len(world.write(STARTED._replace(state=state, producer_epoch=epoch, updated_ms=world.ms))) == broken


LIMIT_US = 12_000_000 + 6_000_000 + 2_000_000 + MARKERS_US


@pytest.mark.parametrize(
    ("late_us", "fault_us", "leader", "broken"),
    [(1, 0, 1, 1), (-10_000, 0, 1, 0), (1, 1_000_000, 1, 0), (1, 0, 9, 0)],
)
def test_decided_transaction_is_completed_in_time(late_us: int, fault_us: int, leader: int, broken: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    decided_us, world.leader = world.us, leader
    (check,) = (each for each in world.checks if isinstance(each, EndingsInTime))
    if fault_us:
        check.context.quorum.fault_times.node(2, decided_us + fault_us)
    check.inspect(decided_us + LIMIT_US + late_us, 0, world.node(), None, True)
    assert len(check.violations) == broken
    check.end(History(end_us=decided_us + LIMIT_US + late_us))
    assert len(check.violations) == broken
    world.marker()
    world.write(DONE)
    check.end(History(end_us=decided_us + 10 * LIMIT_US))
    assert len(check.violations) == broken
