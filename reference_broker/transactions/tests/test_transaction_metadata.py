"""Each step of a transactional ID by itself: its epochs, producer IDs and times, also when the clock goes back."""

from typing import Any

import pytest

from reference_broker.transactions.markers import MAX_PRODUCER_EPOCH
from reference_broker.transactions.transaction_metadata import (
    LAST_USED_EPOCH,
    STATES_BY_ID,
    InitAction,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
    check_init_producer_id,
    prepare_abort_or_commit,
    prepare_add_partitions,
    prepare_complete,
    prepare_fence_producer_epoch,
    prepare_increment_producer_epoch,
    prepare_producer_id_rotation,
    prepare_same_producer_epoch,
)
from reference_broker.wire.errors import ErrorCode

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
NOW_MS = 1000
TIMEOUT_MS = 30_000


def of(state: TransactionState, epoch: int = 735, last: int = -1, **more: Any) -> TxnTransitMetadata:
    return TxnTransitMetadata("x", 23, TIMEOUT_MS, NOW_MS, state, epoch, last, **{"started_ms": 1, **more})


def epochs(transaction: TxnTransitMetadata) -> tuple[int, int, int]:
    """Return the producer ID, the epoch, and the previous epoch."""
    return transaction.producer_id, transaction.producer_epoch, transaction.last_producer_epoch


def times(transaction: TxnTransitMetadata) -> tuple[int, int]:
    return transaction.started_ms, transaction.updated_ms


@pytest.mark.parametrize(
    ("before", "is_owner", "after"),
    [(-1, False, (0, -1)), (-1, True, (0, -1)), (735, False, (736, -1)), (735, True, (736, 735))],
)
@pytest.mark.clause("TransactionMetadataTest.testInitializeEpoch", "TransactionMetadataTest.testNormalEpochBump")
@pytest.mark.clause("TransactionMetadataTest.testAttemptedEpochBumpWithNewlyCreatedMetadata")
@pytest.mark.clause("TransactionMetadataTest.testEpochBumpWithCurrentEpochProvided")
@pytest.mark.clause("TransactionMetadataTest.testTolerateUpdateTimeShiftDuringEpochBump")
def test_with_next_epoch(before: int, is_owner: bool, after: tuple[int, int]) -> None:
    step = prepare_increment_producer_epoch(of(EMPTY, before), TIMEOUT_MS, NOW_MS - 1, by_current_producer=is_owner)
    assert epochs(step) == (23, *after)
    assert times(step) == (-1, NOW_MS - 1)


@pytest.mark.clause("TransactionMetadataTest.testAttemptedEpochBumpWithLastEpoch")
@pytest.mark.clause("TransactionMetadataTest.testAttemptedEpochBumpWithFencedEpoch")
def test_previous_epoch_returns_current_and_older_one_is_fenced() -> None:
    current = of(EMPTY, 735, 734)
    assert check_init_producer_id(TransactionMetadata(current), ProducerIdAndEpoch(23, 734)) is InitAction.SAME_EPOCH
    assert epochs(prepare_same_producer_epoch(current, TIMEOUT_MS, NOW_MS)) == (23, 735, 734)
    assert (
        check_init_producer_id(TransactionMetadata(current), ProducerIdAndEpoch(23, 733)) is ErrorCode.producer_fenced
    )


@pytest.mark.clause("TransactionMetadataTest.testBumpEpochNotAllowedIfEpochsExhausted")
@pytest.mark.clause("TransactionMetadataTest.testRotateProducerId")
@pytest.mark.clause("TransactionMetadataTest.testTolerateUpdateTimeResetDuringProducerIdRotation")
def test_exhausted_epochs_rotate_producer_id() -> None:
    current = of(EMPTY, LAST_USED_EPOCH)
    for expected in (None, ProducerIdAndEpoch(23, LAST_USED_EPOCH)):
        assert check_init_producer_id(TransactionMetadata(current), expected) is InitAction.NEW_PRODUCER_ID
    step = prepare_producer_id_rotation(current, 9893, TIMEOUT_MS, NOW_MS - 1, by_current_producer=True)
    assert (epochs(step), step.previous_producer_id) == ((9893, 0, LAST_USED_EPOCH), 23)
    assert times(step) == (-1, NOW_MS - 1)


@pytest.mark.parametrize("state", [ONGOING, *PREPARED], ids=lambda state: state.value)
@pytest.mark.clause("TransactionMetadataTest.testRotateProducerIdInOngoingState")
@pytest.mark.clause("TransactionMetadataTest.testRotateProducerIdInPrepareAbortState")
@pytest.mark.clause("TransactionMetadataTest.testRotateProducerIdInPrepareCommitState")
def test_producer_id_rotation_during_transaction_raises(state: TransactionState) -> None:
    with pytest.raises(AssertionError):
        prepare_producer_id_rotation(of(state, LAST_USED_EPOCH), 9893, TIMEOUT_MS, NOW_MS, by_current_producer=False)


@pytest.mark.clause("TransactionMetadataTest.testTolerateTimeShiftDuringAddPartitions")
def test_transaction_starts_with_first_partition() -> None:
    step = prepare_add_partitions(of(EMPTY, started_ms=NOW_MS), [("a", 0)], 0, NOW_MS - 1)
    assert (times(step), list(step.partitions)) == ((NOW_MS - 1, NOW_MS - 1), [("a", 0)])
    step = prepare_add_partitions(step, [("b", 0)], 0, NOW_MS - 2)
    assert (times(step), list(step.partitions)) == ((NOW_MS - 1, NOW_MS - 2), [("a", 0), ("b", 0)])
    assert epochs(step) == (23, 735, -1)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(("version", "after"), [(0, (23, 735, -1)), (2, (23, 736, 735))])
@pytest.mark.clause("TransactionMetadataTest.testTolerateTimeShiftDuringPrepareCommit")
@pytest.mark.clause("TransactionMetadataTest.testTolerateTimeShiftDuringPrepareAbort")
@pytest.mark.clause("TransactionMetadataTest.testTolerateTimeShiftDuringCompleteCommit")
@pytest.mark.clause("TransactionMetadataTest.testTolerateTimeShiftDuringCompleteAbort")
@pytest.mark.clause("TransactionMetadataTest.testEpochBumpOnEndTxn")
def test_prepare_and_complete_transaction(version: int, after: tuple[int, int, int], commits: bool) -> None:
    prepared = prepare_abort_or_commit(of(ONGOING), NOW_MS - 1, commits=commits, client_version=version)
    complete = prepare_complete(prepared, NOW_MS - 2)
    wanted = (
        (TransactionState.COMPLETE_COMMIT, PREPARED[0]) if commits else (TransactionState.COMPLETE_ABORT, PREPARED[1])
    )
    assert (complete.state, prepared.state) == wanted
    assert epochs(prepared) == epochs(complete) == after
    assert prepared.client_version == complete.client_version == version
    assert (times(prepared), times(complete)) == ((1, NOW_MS - 1), (1, NOW_MS - 2))


@pytest.mark.clause("TransactionMetadataTest.testEpochBumpOnEndTxnOverflow")
def test_prepare_and_complete_with_last_epoch() -> None:
    current = of(ONGOING, LAST_USED_EPOCH)
    prepared = prepare_abort_or_commit(current, NOW_MS, commits=True, client_version=2, next_producer_id=9893)
    assert epochs(prepared) == (23, MAX_PRODUCER_EPOCH, LAST_USED_EPOCH)
    assert epochs(prepare_complete(prepared, NOW_MS)) == (9893, 0, LAST_USED_EPOCH)


@pytest.mark.parametrize("epoch", [LAST_USED_EPOCH, MAX_PRODUCER_EPOCH])
@pytest.mark.clause("TransactionMetadataTest.testFenceProducerAfterEpochsExhausted")
@pytest.mark.clause("TransactionMetadataTest.testFenceProducerNotAllowedIfItWouldOverflow")
def test_fencing_epoch_is_at_most_greatest(epoch: int) -> None:
    step = prepare_fence_producer_epoch(of(ONGOING, epoch), NOW_MS, version=0)
    assert (epochs(step), step.state) == ((23, MAX_PRODUCER_EPOCH, -1), TransactionState.PREPARE_ABORT)


@pytest.mark.parametrize("state", [TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT])
@pytest.mark.clause("TransactionMetadataTest.testInvalidTransitionFromCompleteCommitToFence")
@pytest.mark.clause("TransactionMetadataTest.testInvalidTransitionFromCompleteAbortToFence")
def test_fencing_without_open_transaction_raises(state: TransactionState) -> None:
    for version in (0, 2):
        with pytest.raises(AssertionError):
            prepare_fence_producer_epoch(of(state, LAST_USED_EPOCH), NOW_MS, version=version)


@pytest.mark.clause("TransactionMetadataTest.testTransactionStateIdAndNameMapping")
@pytest.mark.clause("TransactionMetadataTest.testAllTransactionStatesAreMapped")
def test_states_have_kafka_ids_and_names() -> None:
    assert {number: state.value for number, state in STATES_BY_ID.items()} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }
    assert set(STATES_BY_ID.values()) == set(TransactionState)


@pytest.mark.clause("TransactionLogTest.shouldThrowExceptionWriteInvalidTxn")
def test_id_without_transaction_has_no_partitions() -> None:
    with pytest.raises(AssertionError):
        of(EMPTY, partitions={("a", 0): None}).validate()
