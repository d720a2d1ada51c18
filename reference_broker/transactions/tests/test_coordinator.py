"""Responses, records and requests of a transaction coordinator, step by step."""

from typing import Any

import pytest

from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.coordinator import NO_ID_AND_EPOCH
from reference_broker.transactions.tests.transaction_world import PRODUCER, TransactionWorld, coordinator_in_state
from reference_broker.transactions.transaction_metadata import LAST_USED_EPOCH, TransactionState, TxnTransitMetadata
from reference_broker.wire.errors import ErrorCode

NONE = ErrorCode.none
PRODUCER_FENCED = ErrorCode.producer_fenced
INVALID_PRODUCER_ID_MAPPING = ErrorCode.invalid_producer_id_mapping
CONCURRENT_TRANSACTIONS = ErrorCode.concurrent_transactions
INVALID_TXN_STATE = ErrorCode.invalid_txn_state


def coordinating(**more: Any) -> tuple[TransactionWorld, str]:
    world = TransactionWorld(**more)
    world.coordinate(0)
    return world, world.transactional_id_in(0)


@pytest.mark.clause("X-1")
@pytest.mark.clause("TransactionCoordinatorTest.shouldInitPidWithEpochZeroForNewTransactionalId")
@pytest.mark.clause("TransactionCoordinatorTest.shouldRespondWithProducerFencedOnAddPartitionsWhenEpochsAreDifferent")
def test_init_producer_id_bumps_epoch_and_fences_previous_producer() -> None:
    world, id_ = coordinating()
    first = world.initialized_producer(id_)
    assert first == (1000, 0)
    second = world.initialized_producer(id_)
    assert second == (1000, 1)
    assert world.add_partitions(id_, first) == [PRODUCER_FENCED]
    assert world.add_partitions(id_, second) == [NONE]


@pytest.mark.clause("X-1")
@pytest.mark.clause("TransactionCoordinatorTest.testInitProducerIdWithCurrentEpochProvided")
@pytest.mark.clause("TransactionCoordinatorTest.testInitProducerIdStaleCurrentEpochProvided")
def test_init_producer_id_with_current_epoch_bumps_it_unless_fenced() -> None:
    """KIP-360: the producer sends its current ID and epoch. Its own repeated request gets the same response again."""
    world, id_ = coordinating()
    first = world.initialized_producer(id_)
    second = world.initialized_producer(id_, expected=first)
    assert second == (1000, 1)
    assert world.initialized_producer(id_, expected=first) == second
    third = world.initialized_producer(id_)
    assert [error for error, _ in world.init_producer_id(id_, first) + world.init_producer_id(id_, second)] == [
        PRODUCER_FENCED,
        PRODUCER_FENCED,
    ]
    assert world.initialized_producer(id_, expected=third) == (1000, 3)


@pytest.mark.clause("X-1")
@pytest.mark.clause("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfEpochsExhausted")
def test_exhausted_epochs_return_new_producer_id() -> None:
    world, id_ = coordinating()
    now_ms = world.now().wall_ms
    world.load_transaction(TxnTransitMetadata(id_, 5, 60_000, now_ms, producer_epoch=LAST_USED_EPOCH))
    assert [error for error, _ in world.init_producer_id(id_)] == [ErrorCode.coordinator_load_in_progress], (
        "no ID was there yet"
    )
    assert world.initialized_producer(id_) == (1000, 0)
    assert world.transaction(id_).previous_producer_id == 5


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldAbortTransactionOnHandleInitPidWhenExistingTransactionInOngoingState"
)
def test_init_producer_id_aborts_open_transaction_first() -> None:
    world, id_ = coordinating()
    first = world.initialized_producer(id_)
    assert world.add_partitions(id_, first, 0, 1) == [NONE]
    assert world.init_producer_id(id_) == [(CONCURRENT_TRANSACTIONS, NO_ID_AND_EPOCH)]
    assert world.markers(0) == world.markers(1) == [("abort", 1000, 1, 0)]
    assert world.initialized_producer(id_) == (1000, 2)
    assert world.end_transaction(id_, first) == [(PRODUCER_FENCED, NO_ID_AND_EPOCH)]


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [(0, "invalid_transaction_timeout"), (-1, "invalid_transaction_timeout"), (900_001, "invalid_transaction_timeout")],
)
@pytest.mark.clause("X-7")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnInvalidRequestWhenTransactionalIdIsEmpty")
@pytest.mark.clause("TransactionStateManagerTest.testValidateTransactionTimeout")
def test_invalid_transaction_timeout_is_rejected(timeout_ms: int, error: str) -> None:
    world, id_ = coordinating()
    assert world.init_producer_id(id_, None, timeout_ms) == [(ErrorCode[error], NO_ID_AND_EPOCH)]
    assert world.init_producer_id("", None, 1) == [(ErrorCode.invalid_request, NO_ID_AND_EPOCH)]


@pytest.mark.clause("TransactionCoordinatorTest.shouldRespondWithNotCoordinatorOnInitPidWhenNotCoordinator")
@pytest.mark.clause("TransactionCoordinatorTest.shouldRespondWithNotCoordinatorOnAddPartitionsWhenNotCoordinator")
@pytest.mark.clause("TransactionCoordinatorTest.shouldRespondWithNotCoordinatorOnEndTxnWhenIsNotCoordinatorForId")
@pytest.mark.clause("TransactionStateManagerTest.shouldReturnNotCoordinatorErrorIfTransactionIdPartitionNotOwned")
def test_only_leader_of_transaction_partition_is_coordinator() -> None:
    world, _ = coordinating()
    other = world.transactional_id_in(1)
    assert world.init_producer_id(other) == [(ErrorCode.not_coordinator, NO_ID_AND_EPOCH)]
    assert world.add_partitions(other, (1, 0)) == [ErrorCode.not_coordinator]
    assert (
        world.end_transaction(other, (1, 0))
        == world.end_transaction(other, (1, 0), version=0)
        == [(ErrorCode.not_coordinator, NO_ID_AND_EPOCH)]
    )
    assert world.verify_partitions(other, (1, 0)) is ErrorCode.not_coordinator


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithInvalidPidMappingOnAddPartitionsToTransactionWhenTransactionalIdNotPresent"
)
@pytest.mark.clause("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenTxnIdDoesntExist")
def test_unknown_transactional_id_returns_invalid_producer_id_mapping() -> None:
    world, id_ = coordinating()
    assert world.add_partitions(id_, (1, 0)) == [INVALID_PRODUCER_ID_MAPPING]
    assert (
        world.end_transaction(id_, (1, 0))
        == world.end_transaction(id_, (1, 0), version=0)
        == [(INVALID_PRODUCER_ID_MAPPING, NO_ID_AND_EPOCH)]
    )
    assert world.verify_partitions(id_, (1, 0)) is INVALID_PRODUCER_ID_MAPPING
    assert world.transactions.find_metadata(id_) is ErrorCode.transactional_id_not_found


@pytest.mark.clause("X-9")
@pytest.mark.clause("TransactionCoordinatorTest.testVerifyPartitionHandling")
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithErrorsNoneOnAddPartitionWhenOngoingVerifyOnlyAndPartitionsTheSame"
)
@pytest.mark.clause("TransactionCoordinatorTest.shouldRespondWithInvalidTxnStateWhenVerifyOnlyAndPartitionNotPresent")
def test_partition_is_verified_once_added_to_transaction() -> None:
    world, id_ = coordinating()
    owner = world.initialized_producer(id_)
    abortable = ErrorCode.transaction_abortable
    assert world.verify_partitions(id_, owner, 0) == {("events", 0): abortable}
    world.add_partitions(id_, owner, 0)
    assert world.verify_partitions(id_, owner, 0, 1) == {("events", 0): NONE, ("events", 1): abortable}
    assert world.verify_partitions(id_, (owner[0] + 1, 0)) is INVALID_PRODUCER_ID_MAPPING
    assert world.verify_partitions(id_, (owner[0], 7)) is PRODUCER_FENCED
    world.end_transaction(id_, owner, version=0)
    assert world.verify_partitions(id_, owner, 0) == {("events", 0): abortable}


@pytest.mark.clause("X-9")
@pytest.mark.clause("TransactionCoordinatorTest.testVerifyPartitionHandling")
def test_partition_is_not_verified_before_it_is_replicated() -> None:
    world, id_ = coordinating(replicas=(1, 2, 3))
    responses = world.init_producer_id(id_)
    world.replicate(0)
    owner = responses[0][1]
    added = world.add_partitions(id_, owner)
    assert added == []
    assert world.verify_partitions(id_, owner) == {("events", 0): ErrorCode.transaction_abortable}
    assert world.add_partitions(id_, owner, 1) == [CONCURRENT_TRANSACTIONS]
    world.replicate(0)
    assert added == [NONE]
    assert world.verify_partitions(id_, owner) == {("events", 0): NONE}


# --- EndTxn -----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("X-9")
def test_end_txn_version_2_returns_next_epoch() -> None:
    world, id_ = coordinating()
    owner = world.initialized_producer(id_)
    for epoch in (1, 2, 3):
        world.add_partitions(id_, owner)
        ((error, next_owner),) = world.end_transaction(id_, owner, commits=epoch != 2)
        assert (error, next_owner) == (NONE, (1000, epoch))
        owner = next_owner
    assert world.markers(0) == [("commit", 1000, 1, 0), ("abort", 1000, 2, 0), ("commit", 1000, 3, 0)]


def test_end_txn_before_version_2_keeps_epoch() -> None:
    world, id_ = coordinating()
    owner = world.initialized_producer(id_)
    for commits in (True, False):
        world.add_partitions(id_, owner, version=0)
        assert world.end_transaction(id_, owner, commits=commits, version=0) == [(NONE, NO_ID_AND_EPOCH)]
    assert world.markers(0) == [("commit", 1000, 0, 0), ("abort", 1000, 0, 0)]


@pytest.mark.clause("X-1")
@pytest.mark.clause("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfEpochsExhaustedV2")
def test_end_txn_with_last_epoch_returns_new_producer_id_also_on_retry() -> None:
    world, id_ = coordinating()
    now_ms = world.now().wall_ms
    world.ids.generate(lambda _: None)
    world.pass_ms(0)
    world.load_transaction(TxnTransitMetadata(id_, 5, 60_000, now_ms, producer_epoch=LAST_USED_EPOCH))
    owner = (5, LAST_USED_EPOCH)
    world.add_partitions(id_, owner)
    assert world.end_transaction(id_, owner) == [(NONE, (1001, 0))]
    assert world.markers(0) == [("commit", 5, LAST_USED_EPOCH + 1, 1)]
    assert world.end_transaction(id_, owner) == [(NONE, (1001, 0))], "the response was lost"
    assert world.end_transaction(id_, owner, commits=False) == [(INVALID_TXN_STATE, NO_ID_AND_EPOCH)]
    assert world.add_partitions(id_, (1001, 0)) == [NONE]


RESULTS_BEFORE_VERSION_2 = {
    # (state): results of commit and abort with the owner's epoch
    TransactionState.EMPTY: (INVALID_TXN_STATE, INVALID_TXN_STATE),
    TransactionState.ONGOING: (NONE, NONE),
    TransactionState.COMPLETE_COMMIT: (NONE, INVALID_TXN_STATE),
    TransactionState.COMPLETE_ABORT: (INVALID_TXN_STATE, NONE),
}
RESULTS_IN_VERSION_2 = {
    # (state): results of a repeated abort and commit, and of both with the owner's epoch
    TransactionState.EMPTY: (PRODUCER_FENCED, PRODUCER_FENCED, NONE, INVALID_TXN_STATE),
    TransactionState.COMPLETE_ABORT: (NONE, INVALID_TXN_STATE, NONE, INVALID_TXN_STATE),
    TransactionState.COMPLETE_COMMIT: (INVALID_TXN_STATE, NONE, NONE, INVALID_TXN_STATE),
    TransactionState.ONGOING: (PRODUCER_FENCED, PRODUCER_FENCED, NONE, NONE),
}
"""The table of KIP-890 in Kafka's TransactionCoordinator."""


@pytest.mark.parametrize("state", list(RESULTS_BEFORE_VERSION_2), ids=lambda state: state.value)
@pytest.mark.clause("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenPidDoesntMatchMapped")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReplyWithProducerFencedOnEndTxnWhenEpochIsNotSameAsTransaction")
@pytest.mark.clause("TransactionCoordinatorTest.testEndTxnWhenStatusIsCompleteCommitAndResultIsCommitInV1")
@pytest.mark.clause("TransactionCoordinatorTest.testEndTxnWhenStatusIsCompleteAbortAndResultIsAbortInV1")
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsCompleteAbortAndResultIsNotAbort"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsCompleteCommitAndResultIsNotCommit"
)
@pytest.mark.clause("TransactionCoordinatorTest.testEndTxnRequestWhenStatusIsCompleteCommitAndResultIsAbortInV1")
@pytest.mark.clause("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForAbortInV1")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsLarger")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsSmaller")
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldAppendPrepareCommitToLogOnEndTxnWhenStatusIsOngoingAndResultIsCommit"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldAppendPrepareAbortToLogOnEndTxnWhenStatusIsOngoingAndResultIsAbort"
)
def test_end_txn_by_state_before_version_2(state: TransactionState) -> None:
    for commits, wanted in zip((True, False), RESULTS_BEFORE_VERSION_2[state], strict=True):
        world, id_ = coordinator_in_state(state)
        assert world.end_transaction(id_, PRODUCER, commits=commits, version=0) == [(wanted, NO_ID_AND_EPOCH)]
        assert len(world.record_values(0)) == (3 if state is TransactionState.ONGOING else 1)
        for epoch in (PRODUCER[1] - 1, PRODUCER[1] + 1):
            assert world.end_transaction(id_, (PRODUCER[0], epoch), commits=commits, version=0) == [
                (PRODUCER_FENCED, NO_ID_AND_EPOCH)
            ]
    world, id_ = coordinator_in_state(state)
    assert world.end_transaction(id_, (PRODUCER[0] + 1, PRODUCER[1]), version=0) == [
        (INVALID_PRODUCER_ID_MAPPING, NO_ID_AND_EPOCH)
    ]


@pytest.mark.parametrize("state", list(RESULTS_IN_VERSION_2), ids=lambda state: state.value)
@pytest.mark.clause("TransactionCoordinatorTest.shouldReplyWithInvalidPidMappingOnEndTxnWhenPidDoesntMatchMapped")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReplyWithProducerFencedOnEndTxnWhenEpochIsNotSameAsTransaction")
@pytest.mark.clause("TransactionCoordinatorTest.testEndTxnWhenStatusIsCompleteCommitAndResultIsCommitInV2")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnOkOnEndTxnWhenStatusIsCompleteAbortAndResultIsAbortInV2")
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnRequestWhenStatusIsCompleteAbortAndResultIsNotAbort"
)
@pytest.mark.clause("TransactionCoordinatorTest.testEndTxnRequestWhenStatusIsCompleteCommitAndResultIsAbortInV2")
@pytest.mark.clause("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForAbortInV2")
@pytest.mark.clause("TransactionCoordinatorTest.TestEndTxnRequestWhenEmptyTransactionStateForCommitInV2")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnInvalidTxnRequestOnEndTxnV2IfNotEndTxnV2Retry")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsLarger")
@pytest.mark.clause("TransactionCoordinatorTest.shouldReturnInvalidEpochOnEndTxnWhenEpochIsSmaller")
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldAppendPrepareCommitToLogOnEndTxnWhenStatusIsOngoingAndResultIsCommit"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldAppendPrepareAbortToLogOnEndTxnWhenStatusIsOngoingAndResultIsAbort"
)
@pytest.mark.clause("TransactionMetadataTest.testTransitFromEmptyToPrepareAbortInV2")
@pytest.mark.clause("TransactionMetadataTest.testTransitFromCompleteAbortToPrepareAbortInV2")
@pytest.mark.clause("TransactionMetadataTest.testTransitFromCompleteCommitToPrepareAbortInV2")
def test_end_txn_by_state_in_version_2(state: TransactionState) -> None:
    cases = [(epoch, commits) for epoch in (PRODUCER[1] - 1, PRODUCER[1]) for commits in (False, True)]
    for (epoch, commits), wanted in zip(cases, RESULTS_IN_VERSION_2[state], strict=True):
        world, id_ = coordinator_in_state(state)
        started_ms = world.now().wall_ms
        world.pass_ms(5)
        ((error, next_owner),) = world.end_transaction(id_, (PRODUCER[0], epoch), commits=commits)
        assert error is wanted
        assert len(world.record_values(0)) == (3 if wanted is NONE and epoch == PRODUCER[1] else 1)
        if wanted is not NONE:
            assert next_owner == NO_ID_AND_EPOCH
        elif epoch < PRODUCER[1]:
            assert next_owner == PRODUCER
        else:
            assert next_owner == (PRODUCER[0], PRODUCER[1] + 1)
            is_open = state is TransactionState.ONGOING
            assert world.transaction(id_).started_ms == (started_ms if is_open else world.now().wall_ms)
    world, id_ = coordinator_in_state(state)
    assert world.end_transaction(id_, (PRODUCER[0], PRODUCER[1] - 2)) == [(PRODUCER_FENCED, NO_ID_AND_EPOCH)]
    assert world.end_transaction(id_, (PRODUCER[0], PRODUCER[1] + 1)) == [(PRODUCER_FENCED, NO_ID_AND_EPOCH)]
    assert world.end_transaction(id_, (PRODUCER[0] + 1, PRODUCER[1])) == [
        (INVALID_PRODUCER_ID_MAPPING, NO_ID_AND_EPOCH)
    ]


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.clause("TransactionCoordinatorTest.testVerifyPartitionHandling")
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithConcurrentTransactionsOnAddPartitionsWhenStateIsPrepareCommit"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithConcurrentTransactionOnAddPartitionsWhenStateIsPrepareAbort"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldReturnConcurrentTransactionsOnEndTxnRequestWhenStatusIsPrepareCommit"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareCommitState"
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldWaitForCommitToCompleteOnHandleInitPidAndExistingTransactionInPrepareAbortState"
)
def test_requests_before_markers_are_written_return_concurrent_transactions(version: int, commits: bool) -> None:
    world, id_ = coordinating(leaders=(1, 2))
    owner = world.initialized_producer(id_)
    world.add_partitions(id_, owner, 0, 1, version=version)
    ((_, current),) = world.end_transaction(id_, owner, commits=commits, version=version)
    current = owner if version == 0 else current
    assert world.add_partitions(id_, current) == [CONCURRENT_TRANSACTIONS]
    assert world.init_producer_id(id_) == [(CONCURRENT_TRANSACTIONS, NO_ID_AND_EPOCH)]
    for again in (commits, not commits):  # As in Kafka, where the completion is pending (prepareComplete).
        assert world.end_transaction(id_, owner, commits=again, version=version) == [
            (CONCURRENT_TRANSACTIONS, NO_ID_AND_EPOCH)
        ]
        assert world.end_transaction(id_, current, commits=again, version=version) == [
            (CONCURRENT_TRANSACTIONS, NO_ID_AND_EPOCH)
        ]
    assert world.verify_partitions(id_, current) is CONCURRENT_TRANSACTIONS
    prepared = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
    assert world.transaction(id_).state is prepared
    world.reply()
    complete = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
    assert world.transaction(id_).state is complete
    assert world.add_partitions(id_, current) == [NONE]


@pytest.mark.clause("X-2")
@pytest.mark.clause("TransactionCoordinatorTest.shouldNotBumpEpochWithPendingTransaction")
def test_state_change_is_visible_once_replicated() -> None:
    world, id_ = coordinating(replicas=(1, 2, 3))
    responses = world.init_producer_id(id_)
    world.replicate(0)
    owner = responses[0][1]
    world.add_partitions(id_, owner)
    world.replicate(0)
    responses = world.end_transaction(id_, owner)
    assert world.init_producer_id(id_, owner) == [(CONCURRENT_TRANSACTIONS, NO_ID_AND_EPOCH)]
    world.pass_ms(1000)
    assert (responses, world.markers(0)) == ([], [])
    world.replicate(0)
    assert responses == [(NONE, (1000, 1))]
    assert world.markers(0) == [("commit", 1000, 1, 0)]


@pytest.mark.clause("X-3")
@pytest.mark.clause("TransactionCoordinatorTest.shouldNotAbortExpiredTransactionsThatHaveAPendingStateTransition")
def test_late_replicated_commit_is_not_reverted() -> None:
    """The client gets an error. Its transaction is committed nevertheless, and no timeout may abort it."""
    world, id_ = coordinating(replicas=(1, 2, 3))
    responses = world.init_producer_id(id_, None, 5000)
    world.replicate(0)
    owner = responses[0][1]
    world.add_partitions(id_, owner)
    world.replicate(0)
    responses = world.end_transaction(id_, owner)
    world.pass_ms(60_000)
    assert responses == [(ErrorCode.coordinator_not_available, NO_ID_AND_EPOCH)]
    assert world.end_transaction(id_, owner, commits=False) == [(CONCURRENT_TRANSACTIONS, NO_ID_AND_EPOCH)]
    world.replicate(0)
    world.pass_ms(1000)
    assert world.markers(0) == [("commit", 1000, 1, 0)]
    world.replicate(0)
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.clause("TransactionStateManagerTest.testTransactionVersionInTransactionManager")
def test_value_version_follows_transaction_version_feature() -> None:
    for version, wanted in ((0, b"\0\0"), (1, b"\0\1"), (2, b"\0\1")):
        world, id_ = coordinating(version=version)
        world.initialized_producer(id_)
        value = world.record_values(0)[-1]
        assert value is not None
        assert value[:2] == wanted


def test_fencing_without_version_2_keeps_producer_id() -> None:
    world, id_ = coordinating(version=1)
    owner = world.initialized_producer(id_)
    world.add_partitions(id_, owner, version=0)
    world.init_producer_id(id_)
    state = world.transaction(id_)
    assert (state.producer_epoch, state.next_producer_id, state.client_version) == (1, NO_PRODUCER_ID, 0)
    assert world.initialized_producer(id_) == (1000, 2)
