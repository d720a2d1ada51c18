"""Transactions that exceed their timeout, and transactional IDs that expire."""

from typing import Any

import pytest

from reference_broker.transactions.coordinator import NO_ID_AND_EPOCH
from reference_broker.transactions.tests.transaction_world import PRODUCER, TransactionWorld, coordinator_in_state
from reference_broker.transactions.transaction_metadata import TransactionState
from reference_broker.wire.errors import ErrorCode

NONE = ErrorCode.none


def opened(timeout_ms: int = 5000, **more: Any) -> tuple[TransactionWorld, str, tuple[int, int]]:
    world = TransactionWorld(**more)
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    owner = world.initialized_producer(id_, timeout_ms=timeout_ms)
    assert world.add_partitions(id_, owner) == [NONE]
    return world, id_, owner


@pytest.mark.clause("X-7")
@pytest.mark.clause("TransactionCoordinatorTest.shouldAbortExpiredTransactionsInOngoingStateAndBumpEpoch")
def test_transaction_beyond_timeout_is_aborted_and_producer_fenced() -> None:
    world, id_, owner = opened()
    world.pass_ms(5000)
    assert world.markers(0) == []
    world.pass_ms(1000)
    assert world.markers(0) == [("abort", 1000, 1, 0)]
    assert world.add_partitions(id_, owner) == [ErrorCode.producer_fenced]
    assert world.end_transaction(id_, owner) == [(ErrorCode.invalid_txn_state, NO_ID_AND_EPOCH)]


@pytest.mark.clause("X-7")
def test_timeout_fences_producer_before_version_2() -> None:
    world, id_, owner = opened()
    world.pass_ms(6000)
    assert world.end_transaction(id_, owner, version=0) == [(ErrorCode.producer_fenced, NO_ID_AND_EPOCH)]


@pytest.mark.clause("X-7")
def test_transaction_timeout_starts_with_first_partition() -> None:
    world, id_, owner = opened()
    world.end_transaction(id_, owner)
    world.pass_ms(20_000)
    assert world.markers(0) == [("commit", 1000, 1, 0)]
    world.add_partitions(id_, (1000, 1), 0)
    world.pass_ms(3000)
    assert world.add_partitions(id_, (1000, 1), 1) == [NONE]
    world.pass_ms(3000)
    assert world.markers(0)[1:] == world.markers(1) == [("abort", 1000, 2, 0)]


@pytest.mark.clause("X-7")
def test_new_coordinator_aborts_transactions_beyond_timeout() -> None:
    world, id_, _ = opened()
    log = world.stop_leading(0)
    world.pass_ms(4000)
    world.coordinate(0, log, epoch=1)
    world.pass_ms(0)
    assert world.transaction(id_).state is TransactionState.ONGOING
    world.pass_ms(3000)
    assert world.markers(0) == [("abort", 1000, 1, 1)]


@pytest.mark.clause("X-10")
@pytest.mark.clause("TransactionLogTest.shouldReturnTxnTombstoneForNullValue")
def test_idle_id_expires_with_tombstone_and_open_one_does_not() -> None:
    world, id_, owner = opened(
        timeout_ms=900_000,
        transactional_id_expiration_ms="10000",
        transaction_remove_expired_transaction_cleanup_interval_ms="1000",
    )
    world.pass_ms(30_000)
    assert world.transaction(id_).state is TransactionState.ONGOING
    world.end_transaction(id_, owner)
    world.pass_ms(9000)
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT
    world.pass_ms(2000)
    assert world.transactions.find_metadata(id_) is ErrorCode.transactional_id_not_found
    assert world.record_values(0)[-1] is None
    log = world.stop_leading(0)
    world.coordinate(0, log, epoch=1)
    world.pass_ms(0)
    assert world.transactions.find_metadata(id_) is ErrorCode.transactional_id_not_found
    assert world.initialized_producer(id_)[1] == 0, "a producer that returns starts with epoch 0"


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
@pytest.mark.clause("TransactionStateManagerTest.testValidateTransactionTimeout")
def test_transaction_timeout_up_to_broker_maximum_is_accepted(timeout_ms: int) -> None:
    assert opened(timeout_ms)[2] == (1000, 0)


@pytest.mark.parametrize("state", list(TransactionState)[:6], ids=lambda state: state.value)
@pytest.mark.clause("TransactionStateManagerTest.shouldOnlyConsiderTransactionsInTheOngoingStateToAbort")
def test_only_open_transactions_beyond_timeout_are_aborted(state: TransactionState) -> None:
    prepared = state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    before = TransactionState.ONGOING if prepared else state
    world, id_ = coordinator_in_state(before, timeout_ms=1000, leaders=(2,))
    if prepared:
        world.end_transaction(id_, PRODUCER, commits=state is TransactionState.PREPARE_COMMIT)
    patient = world.transactional_id_in(0, "patient")
    owner = world.initialized_producer(patient, timeout_ms=10_000)
    assert world.add_partitions(patient, owner) == [NONE]
    world.pass_ms(4000)
    is_open = state is TransactionState.ONGOING
    assert world.transaction(id_).state is (TransactionState.PREPARE_ABORT if is_open else state)
    assert world.transaction(patient).state is TransactionState.ONGOING
