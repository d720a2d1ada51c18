"""Duties of a transaction coordinator: owners that continue, and steps that are due."""

from typing import TYPE_CHECKING, Any

import pytest

from chaos.checks.log import producer_view
from chaos.checks.tests.kafka_messages import init_producer_id_response
from chaos.checks.transactions.coordinator_duties import JUDGED_EVERY_US, WORK_US, DutiesInTime, OwnersGoOn
from chaos.checks.transactions.transaction_state import FENCE_EPOCH, LAST_EPOCH
from reference_broker.transactions.transaction_metadata import TransactionState, TxnTransitMetadata
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    pass
from chaos.checks.transactions.tests.transaction_coordinator import (
    DECIDED,
    DONE,
    INTERVAL_MS,
    OWNER,
    STARTED,
    CheckedTransactionCoordinator,
    continuing,
)


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_view, "SKIPPED_CHANGES", 1)


FIRST, SECOND = OWNER._replace(producer_epoch=1), OWNER._replace(producer_epoch=2)


@pytest.mark.clause("X-1")
@pytest.mark.parametrize("error", [ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced])
def test_owner_is_not_fenced_by_init_producer_id(error: int) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST)
    assert world.replies(continuing(0), init_producer_id_response(error=error)) == []
    assert world.replies(continuing(1), init_producer_id_response(error=ErrorCode.concurrent_transactions)) == []
    (explanation,) = world.replies(continuing(1), init_producer_id_response(error=error))
    assert "that is the owner" in explanation


@pytest.mark.clause("X-1")
@pytest.mark.parametrize(
    ("between", "is_wrong"),
    [
        ((), True),
        ((FIRST._replace(updated_ms=9),), True),
        ((SECOND,), False),
        ((STARTED._replace(producer_epoch=1),), False),
    ],
)
def test_lost_response_of_init_producer_id_is_repeated(between: tuple[TxnTransitMetadata, ...], is_wrong: bool) -> None:
    """Whatever else happened to the ID makes its former owner a zombie."""
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST)
    assert world.replies(continuing(0), init_producer_id_response(producer_epoch=1)) == []
    world.write(*between)
    explanations = world.replies(continuing(0), init_producer_id_response(error=ErrorCode.producer_fenced))
    assert bool(explanations) is is_wrong
    assert all("nothing has happened since" in explanation for explanation in explanations)


@pytest.mark.clause("X-1")
def test_new_coordinator_may_fence_who_lost_the_response() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST)
    assert world.replies(continuing(0), init_producer_id_response(producer_epoch=1)) == []
    raised = next(check for check in world.checks if isinstance(check, OwnersGoOn))._raised
    raised["x"] = raised["x"]._replace(log=world.data)
    assert world.replies(continuing(0), init_producer_id_response(error=ErrorCode.producer_fenced)) == []


@pytest.mark.clause("X-1")
@pytest.mark.parametrize(
    ("named", "is_wrong"),
    [((7, 1), False), ((7, 2), False), ((7, 0), True), ((8, 1), True), ((8, 2), True), ((7, 3), True)],
)
def test_init_producer_id_serves_the_owner_only(named: tuple[int, int], is_wrong: bool) -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, FIRST, SECOND)
    explanations = world.replies(continuing(named[1], named[0]), init_producer_id_response(producer_epoch=2))
    assert bool([explanation for explanation in explanations if "KIP-360" in explanation]) is is_wrong


@pytest.mark.clause("X-1")
@pytest.mark.parametrize(("epoch", "is_wrong"), [(LAST_EPOCH, False), (FENCE_EPOCH, False), (LAST_EPOCH - 1, True)])
def test_last_epochs_of_the_former_producer_id_still_count(epoch: int, is_wrong: bool) -> None:
    world = CheckedTransactionCoordinator()
    last = OWNER._replace(producer_epoch=epoch, state=TransactionState.COMPLETE_ABORT)
    world.write(OWNER, last, OWNER._replace(producer_id=8))
    explanations = world.replies(continuing(epoch), init_producer_id_response(8))
    assert bool([explanation for explanation in explanations if "KIP-360" in explanation]) is is_wrong


DUTY_US = 2_000_000 + 3_000_000 + WORK_US


@pytest.mark.clause("X-3")
@pytest.mark.clause("X-7")
@pytest.mark.parametrize(
    ("steps", "extra_us", "changed", "is_wrong"),
    [
        ((STARTED, DECIDED), 0, {}, True),
        ((STARTED, DECIDED), -2 * JUDGED_EVERY_US, {}, False),
        ((STARTED, DECIDED, DONE), 0, {}, False),
        ((STARTED, DECIDED), 0, {"leader": 3}, False),
        ((STARTED, DECIDED), 0, {"isr": (1,)}, False),
        ((STARTED,), INTERVAL_MS * 1000, {}, True),
        ((STARTED,), INTERVAL_MS * 1000, {"isr": (1,)}, True),
        ((STARTED,), 0, {}, False),
        ((STARTED,), INTERVAL_MS * 1000, {"ms": STARTED.started_ms + STARTED.timeout_ms - 1}, False),
    ],
)
def test_what_is_due_is_done_in_time_unless_something_is_in_the_way(
    steps: tuple[TxnTransitMetadata, ...], extra_us: int, changed: dict[str, Any], is_wrong: bool
) -> None:
    """A transaction is decided by its own partition alone, and completed by those that need a marker, too."""
    world = CheckedTransactionCoordinator()
    world.write(OWNER, *steps)
    vars(world).update({"ms": STARTED.started_ms + STARTED.timeout_ms, **changed})
    (check,) = (each for each in world.checks if isinstance(each, DutiesInTime))
    from_us = world.us
    for at_us in (from_us, from_us + JUDGED_EVERY_US, from_us + DUTY_US + extra_us + JUDGED_EVERY_US):
        check.inspect(at_us, 0, world.node(), None, False)
    assert bool(check.violations) is is_wrong


@pytest.mark.clause("X-3")
def test_time_of_a_duty_counts_from_the_last_fault_or_change() -> None:
    world = CheckedTransactionCoordinator()
    world.write(OWNER, STARTED, DECIDED)
    (check,) = (each for each in world.checks if isinstance(each, DutiesInTime))
    from_us = world.us
    check.inspect(from_us, 0, world.node(), None, False)
    world.isr = (2, 1)
    check.inspect(from_us + DUTY_US, 0, world.node(), None, False)
    check.context.quorum.fault_times.node(2, from_us + DUTY_US + 1_000_000)
    check.inspect(from_us + 2 * DUTY_US + 500_000, 0, world.node(), None, False)
    assert check.violations == []
    check.inspect(from_us + 2 * DUTY_US + 1_500_000, 0, world.node(), None, False)
    assert len(check.violations) == 1
