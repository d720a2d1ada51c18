"""Assertions of Kafka's tests of the coordinator beyond ``test_coordinator``: the last epochs, steps whose write fails,
and late or early requests."""

import pytest

from reference_broker.metadata.image import PartitionImage
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.coordinator import NO_ID_AND_EPOCH
from reference_broker.transactions.tests.transaction_world import PRODUCER, TransactionWorld, coordinator_in_state
from reference_broker.transactions.transaction_metadata import LAST_USED_EPOCH, TransactionState, TxnTransitMetadata
from reference_broker.wire.errors import ErrorCode

NONE = ErrorCode.none
CONCURRENT_TRANSACTIONS = [(ErrorCode.concurrent_transactions, NO_ID_AND_EPOCH)]
PRODUCER_FENCED = [(ErrorCode.producer_fenced, NO_ID_AND_EPOCH)]
COORDINATOR_NOT_AVAILABLE = [(ErrorCode.coordinator_not_available, NO_ID_AND_EPOCH)]
AT_REST = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
LAST = (5, LAST_USED_EPOCH)
FENCING_EPOCH = LAST_USED_EPOCH + 1
ROTATED = (1001, 0)
"""The producer ID that comes after 5 in the worlds of ``coordinator_in_state``."""


# --- InitProducerId --------------------------------------------------------------------------------------------------


@pytest.mark.clause("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfNoStateAndProducerIdAndEpochProvided")
def test_init_producer_id_with_expired_id_returns_new_producer_id() -> None:
    world = TransactionWorld()
    world.coordinate(0)
    assert world.initialized_producer(world.transactional_id_in(0), expected=(10, 1)) == (1000, 0)


@pytest.mark.parametrize("state", AT_REST, ids=lambda state: state.value)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingEmptyTransaction",
    "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteTransaction",
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteCommitTransaction"
)
def test_init_producer_id_updates_timeout(state: TransactionState) -> None:
    world, id_ = coordinator_in_state(state)
    world.pass_ms(7)
    assert world.initialized_producer(id_, timeout_ms=10) == (PRODUCER[0], PRODUCER[1] + 1)
    found = world.transaction(id_)
    assert (found.timeout_ms, found.updated_ms) == (10, world.now().wall_ms)
    assert found.state is TransactionState.EMPTY


@pytest.mark.clause("TransactionCoordinatorTest.testInitProducerIdWithNoLastProducerData")
def test_previous_epoch_without_last_producer_data_is_fenced() -> None:
    world, id_ = coordinator_in_state(TransactionState.EMPTY)
    assert world.init_producer_id(id_, (PRODUCER[0], PRODUCER[1] - 1)) == PRODUCER_FENCED


@pytest.mark.clause("TransactionCoordinatorTest.testFenceProducerWhenMappingExistsWithDifferentProducerId")
def test_previous_producer_id_is_fenced() -> None:
    world = TransactionWorld()
    id_, now_ms = world.transactional_id_in(0), world.now().wall_ms
    world.load_transaction(TxnTransitMetadata(id_, 6, 60_000, now_ms, producer_epoch=7, previous_producer_id=5))
    assert world.init_producer_id(id_, (5, 7)) == PRODUCER_FENCED


@pytest.mark.clause("TransactionCoordinatorTest.testRetryInitProducerIdAfterProducerIdRotation")
def test_retry_after_producer_id_rotation_returns_new_producer_id() -> None:
    world, id_ = coordinator_in_state(TransactionState.EMPTY, LAST)
    assert world.initialized_producer(id_, expected=LAST) == ROTATED
    assert world.initialized_producer(id_, expected=LAST) == ROTATED


@pytest.mark.clause("TransactionCoordinatorTest.testInitProducerIdWithInvalidEpochAfterProducerIdRotation")
def test_stale_epoch_of_rotated_producer_id_is_fenced() -> None:
    world, id_ = coordinator_in_state(TransactionState.EMPTY, LAST)
    assert world.initialized_producer(id_, expected=LAST) == ROTATED
    assert world.init_producer_id(id_, (5, LAST_USED_EPOCH - 1)) == PRODUCER_FENCED


# --- the last epochs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.clause("TransactionCoordinatorTest.shouldUseLastEpochToFenceWhenEpochsAreExhausted")
def test_fencing_uses_greatest_epoch_before_version_2(version: int) -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, LAST, version=version)
    assert world.init_producer_id(id_) == CONCURRENT_TRANSACTIONS
    assert world.markers(0) == [("abort", 5, FENCING_EPOCH, 1)]
    state = world.transaction(id_)
    assert (state.producer_id, state.producer_epoch, state.next_producer_id) == (5, FENCING_EPOCH, NO_PRODUCER_ID)
    assert world.initialized_producer(id_) == ROTATED


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldNotCauseEpochOverflowWhenInitPidDuringOngoingTxnV2",
    "TransactionCoordinatorTest.shouldRotateProducerIdWhenInitPidFencesOngoingTxnAtEpochOverflowBoundaryTV2",
)
def test_init_producer_id_with_last_epoch_fences_and_rotates_producer_id() -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, LAST, leaders=(2,))
    assert world.init_producer_id(id_) == CONCURRENT_TRANSACTIONS
    prepared = world.transaction(id_)
    assert prepared.state is TransactionState.PREPARE_ABORT
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (5, FENCING_EPOCH, ROTATED[0])
    world.reply()
    complete = world.transaction(id_)
    assert complete.state is TransactionState.COMPLETE_ABORT
    assert (complete.producer_id, complete.producer_epoch) == ROTATED
    assert world.end_transaction(id_, LAST, commits=False) == [(NONE, ROTATED)], "as an end that comes again"
    assert len(world.record_values(0)) == 3


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyTV2",
    "TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyAndLateClientAbortRequestTV2",
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyAndRetryInitProducerIdTV2"
)
@pytest.mark.parametrize("comes_back", ["with an abort", "with InitProducerId"])
def test_late_producer_gets_new_producer_id_after_timeout_at_last_epoch(comes_back: str) -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, LAST, timeout_ms=1000, leaders=(2,))
    world.pass_ms(3000)
    prepared = world.transaction(id_)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (5, FENCING_EPOCH, ROTATED[0])
    assert prepared.state is TransactionState.PREPARE_ABORT
    world.reply()
    complete = world.transaction(id_)
    assert (complete.state, complete.producer_id) == (TransactionState.COMPLETE_ABORT, ROTATED[0])
    if comes_back == "with an abort":
        assert world.end_transaction(id_, LAST, commits=False) == [(NONE, ROTATED)]
    else:
        assert world.initialized_producer(id_, expected=LAST) == ROTATED


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldReturnOkOnEndTxnV2IfEndTxnV2RetryEpochOverflow",
    "TransactionCoordinatorTest.shouldReturnConcurrentTxnOnAddPartitionsIfEndTxnV2EpochOverflowAndNotComplete",
)
def test_new_producer_id_is_valid_once_transaction_completes() -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, LAST, leaders=(2,))
    assert world.end_transaction(id_, LAST) == [(NONE, ROTATED)]
    assert world.end_transaction(id_, LAST) == CONCURRENT_TRANSACTIONS
    assert world.add_partitions(id_, ROTATED) == [ErrorCode.concurrent_transactions]
    world.reply()
    assert world.end_transaction(id_, LAST) == [(NONE, ROTATED)]
    assert world.add_partitions(id_, ROTATED) == [NONE]


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", [*AT_REST, TransactionState.ONGOING], ids=lambda state: state.value)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldAppendNewMetadataToLogOnAddPartitionsWhenPartitionsAdded",
    "TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsOngoing",
    "TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsCompleteCommit",
    "TransactionCoordinatorTest.shouldRespondWithSuccessOnAddPartitionsWhenStateIsCompleteAbort",
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithErrorsNoneOnAddPartitionWhenNoErrorsAndPartitionsTheSame"
)
@pytest.mark.clause("TransactionStateManagerTest.testCompleteTransitionWhenAppendSucceeded")
def test_adding_same_partitions_again_writes_nothing(state: TransactionState, version: int) -> None:
    world, id_ = coordinator_in_state(state)
    for _ in range(2):
        assert world.add_partitions(id_, PRODUCER, 2, version=version) == [NONE]
        assert len(world.record_values(0)) == 2
    found = world.transaction(id_)
    assert found.state is TransactionState.ONGOING
    already_added = [("events", 0)] if state is TransactionState.ONGOING else []
    assert list(found.partitions) == [*already_added, ("events", 2)]


# --- nodes that do not coordinate -------------------------------------------------------------------------------------


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithCoordinatorLoadInProgressOnInitPidWhenCoordinatorLoading",
    "TransactionCoordinatorTest.shouldRespondWithCoordinatorLoadInProgressOnAddPartitionsWhenCoordinatorLoading",
    "TransactionCoordinatorTest.shouldRespondWithCoordinatorLoadInProgressOnEndTxnWhenCoordinatorIsLoading",
    "TransactionCoordinatorTest.testDescribeTransactionsWhileCoordinatorLoading",
)
def test_loading_coordinator_returns_coordinator_load_in_progress() -> None:
    loading = ErrorCode.coordinator_load_in_progress

    def loading_world() -> tuple[TransactionWorld, str]:
        world, id_ = coordinator_in_state(TransactionState.ONGOING)
        world.coordinate(0, world.stop_leading(0), epoch=2)
        return world, id_

    world, id_ = loading_world()
    assert world.transactions.find_metadata(id_) is loading
    assert world.init_producer_id(id_) == [(loading, NO_ID_AND_EPOCH)]
    world, id_ = loading_world()
    assert world.add_partitions(id_, PRODUCER) == [loading]
    for version in (0, 2):
        world, id_ = loading_world()
        assert world.end_transaction(id_, PRODUCER, version=version) == [(loading, NO_ID_AND_EPOCH)]
    assert world.transactions.find_metadata(id_) is not loading


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithInvalidRequestAddPartitionsToTransactionWhenTransactionalIdIsEmpty",
    "TransactionCoordinatorTest.shouldRespondWithInvalidRequestOnEndTxnWhenTransactionalIdIsEmpty",
)
def test_empty_transactional_id_returns_invalid_request() -> None:
    world = TransactionWorld()
    world.coordinate(0)
    assert world.add_partitions("", PRODUCER) == [ErrorCode.invalid_request]
    for version in (0, 2):
        assert world.end_transaction("", PRODUCER, version=version) == [(ErrorCode.invalid_request, NO_ID_AND_EPOCH)]


@pytest.mark.clause("TransactionCoordinatorTest.shouldRemoveTransactionsForPartitionOnEmigration")
def test_former_coordinator_drops_ids_and_sends_no_markers() -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, leaders=(2,))
    assert world.end_transaction(id_, PRODUCER)[0][0] is NONE
    world.stop_leading(0)
    assert world.transactions.find_metadata(id_) is ErrorCode.not_coordinator
    assert world.transactions.active() == []
    world.sent.pop()[3]()
    world.pass_ms(60_000)
    assert world.sent == []


def test_marker_request_uses_request_timeout() -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, leaders=(2,), request_timeout_ms="2000")
    assert world.end_transaction(id_, PRODUCER)[0][0] is NONE
    assert world.timeouts_ms == [2000]


# --- steps that cannot be written -------------------------------------------------------------------------------------


def with_too_few_replicas(version: int, timeout_ms: int = 60_000) -> tuple[TransactionWorld, str]:
    """Return an open transaction whose coordinator cannot write."""
    world = TransactionWorld((1, 2, 3), min_isr=2, version=version)
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    responses = world.init_producer_id(id_, None, timeout_ms)
    world.replicate(0)
    assert responses == [(NONE, (1000, 0))]
    world.add_partitions(id_, (1000, 0), version=version)
    world.replicate(0)
    keep_in_sync(world, (1,), 1)
    return world, id_


def keep_in_sync(world: TransactionWorld, isr: tuple[int, ...], partition_epoch: int) -> None:
    world.leaders.leads(world.led[0], PartitionImage((1, 2, 3), isr, 1, 0, partition_epoch))


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldNotRepeatedlyBumpEpochDueToInitPidDuringOngoingTxnIfAppendToLogFails",
    "TransactionCoordinatorTest.testTV2AllowsEpochReBumpingAfterFailedWrite",
)
def test_failed_write_of_fence_bumps_epoch_once(version: int) -> None:
    world, id_ = with_too_few_replicas(version)
    for _ in range(2):
        assert world.init_producer_id(id_) == COORDINATOR_NOT_AVAILABLE
        assert world.transaction(id_).producer_epoch == 0
    keep_in_sync(world, (1, 2, 3), 2)
    responses = world.init_producer_id(id_)
    world.replicate(0)
    assert responses == CONCURRENT_TRANSACTIONS
    assert world.markers(0) == [("abort", 1000, 1, 0)]
    world.replicate(0)
    responses = world.init_producer_id(id_)
    world.replicate(0)
    assert responses == [(NONE, (1000, 2))]


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.clause("TransactionCoordinatorTest.shouldNotBumpEpochWhenAbortingExpiredTransactionIfAppendToLogFails")
def test_failed_write_of_timeout_abort_bumps_epoch_once(version: int) -> None:
    world, id_ = with_too_few_replicas(version, timeout_ms=1000)
    world.pass_ms(10_000)
    assert world.transaction(id_).producer_epoch == 0
    assert world.markers(0) == []
    keep_in_sync(world, (1, 2, 3), 2)
    world.pass_ms(2000)
    world.replicate(0)
    assert world.markers(0) == [("abort", 1000, 1, 0)]
