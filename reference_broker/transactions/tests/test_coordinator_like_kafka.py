"""What Kafka's tests of the coordinator assert beyond ``test_coordinator``: the last epochs, steps that cannot be
written, and requests that come too late or too early."""

import pytest

from reference_broker.metadata.image import PartitionImage
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.coordinator import NO_OWNER
from reference_broker.transactions.tests.transaction_world import START, TransactionWorld, in_state
from reference_broker.transactions.transaction import LAST_USED_EPOCH, Transaction, TransactionState
from reference_broker.wire.errors import ErrorCode

NONE = ErrorCode.none
BUSY = [(ErrorCode.concurrent_transactions, NO_OWNER)]
FENCED = [(ErrorCode.producer_fenced, NO_OWNER)]
UNAVAILABLE = [(ErrorCode.coordinator_not_available, NO_OWNER)]
AT_REST = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
LAST = (5, LAST_USED_EPOCH)
FENCING_EPOCH = LAST_USED_EPOCH + 1
ROTATED = (1001, 0)
"""The producer ID that comes after 5 in the worlds of ``in_state``."""


# --- a producer takes the ID ------------------------------------------------------------------------------------------


@pytest.mark.clause("TransactionCoordinatorTest.shouldGenerateNewProducerIdIfNoStateAndProducerIdAndEpochProvided")
def test_a_producer_that_goes_on_with_an_id_that_expired_begins_anew() -> None:
    world = TransactionWorld()
    world.coordinate(0)
    assert world.taken(world.id_in(0), expected=(10, 1)) == (1000, 0)


@pytest.mark.parametrize("state", AT_REST, ids=lambda state: state.value)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingEmptyTransaction",
    "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteTransaction",
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldIncrementEpochAndUpdateMetadataOnHandleInitPidWhenExistingCompleteCommitTransaction"
)
def test_the_next_producer_has_its_own_timeout(state: TransactionState) -> None:
    world, id_ = in_state(state)
    world.pass_ms(7)
    assert world.taken(id_, timeout_ms=10) == (START[0], START[1] + 1)
    found = world.transaction(id_)
    assert (found.timeout_ms, found.updated_ms) == (10, world.now().wall_ms)
    assert found.state is TransactionState.EMPTY


@pytest.mark.clause("TransactionCoordinatorTest.testInitProducerIdWithNoLastProducerData")
def test_a_coordinator_that_does_not_know_the_epoch_before_fences_who_has_it() -> None:
    world, id_ = in_state(TransactionState.EMPTY)
    assert world.take(id_, (START[0], START[1] - 1)) == FENCED


@pytest.mark.clause("TransactionCoordinatorTest.testFenceProducerWhenMappingExistsWithDifferentProducerId")
def test_a_producer_with_an_earlier_producer_id_is_fenced() -> None:
    world = TransactionWorld()
    id_, now_ms = world.id_in(0), world.now().wall_ms
    world.written(Transaction(id_, 6, 60_000, now_ms, producer_epoch=7, previous_producer_id=5))
    assert world.take(id_, (5, 7)) == FENCED


@pytest.mark.clause("TransactionCoordinatorTest.testRetryInitProducerIdAfterProducerIdRotation")
def test_a_producer_that_did_not_hear_of_its_new_producer_id_is_told_it_again() -> None:
    world, id_ = in_state(TransactionState.EMPTY, LAST)
    assert world.taken(id_, expected=LAST) == ROTATED
    assert world.taken(id_, expected=LAST) == ROTATED


@pytest.mark.clause("TransactionCoordinatorTest.testInitProducerIdWithInvalidEpochAfterProducerIdRotation")
def test_an_older_epoch_of_the_former_producer_id_is_fenced() -> None:
    world, id_ = in_state(TransactionState.EMPTY, LAST)
    assert world.taken(id_, expected=LAST) == ROTATED
    assert world.take(id_, (5, LAST_USED_EPOCH - 1)) == FENCED


# --- the last epochs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.clause("TransactionCoordinatorTest.shouldUseLastEpochToFenceWhenEpochsAreExhausted")
def test_before_version_2_the_greatest_epoch_fences(version: int) -> None:
    world, id_ = in_state(TransactionState.ONGOING, LAST, version=version)
    assert world.take(id_) == BUSY
    assert world.markers(0) == [("abort", 5, FENCING_EPOCH, 1)]
    found = world.transaction(id_)
    assert (found.producer_id, found.producer_epoch, found.next_producer_id) == (5, FENCING_EPOCH, NO_PRODUCER_ID)
    assert world.taken(id_) == ROTATED


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldNotCauseEpochOverflowWhenInitPidDuringOngoingTxnV2",
    "TransactionCoordinatorTest.shouldRotateProducerIdWhenInitPidFencesOngoingTxnAtEpochOverflowBoundaryTV2",
)
def test_a_producer_that_takes_the_id_fences_with_the_greatest_epoch_and_the_producer_id_changes() -> None:
    world, id_ = in_state(TransactionState.ONGOING, LAST, leaders=(2,))
    assert world.take(id_) == BUSY
    prepared = world.transaction(id_)
    assert prepared.state is TransactionState.PREPARE_ABORT
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (5, FENCING_EPOCH, ROTATED[0])
    world.reply()
    complete = world.transaction(id_)
    assert complete.state is TransactionState.COMPLETE_ABORT
    assert (complete.producer_id, complete.producer_epoch) == ROTATED
    assert world.end(id_, LAST, commits=False) == [(NONE, ROTATED)], "as an end that comes again"
    assert len(world.record_values(0)) == 3


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyTV2",
    "TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyAndLateClientAbortRequestTV2",
)
@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldHandleTimeoutAtEpochOverflowBoundaryCorrectlyAndRetryInitProducerIdTV2"
)
@pytest.mark.parametrize("comes_back", ["with an abort", "with InitProducerId"])
def test_a_timeout_at_the_last_epoch_gives_the_late_producer_the_new_producer_id(comes_back: str) -> None:
    world, id_ = in_state(TransactionState.ONGOING, LAST, timeout_ms=1000, leaders=(2,))
    world.pass_ms(3000)
    prepared = world.transaction(id_)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (5, FENCING_EPOCH, ROTATED[0])
    assert prepared.state is TransactionState.PREPARE_ABORT
    world.reply()
    complete = world.transaction(id_)
    assert (complete.state, complete.producer_id) == (TransactionState.COMPLETE_ABORT, ROTATED[0])
    if comes_back == "with an abort":
        assert world.end(id_, LAST, commits=False) == [(NONE, ROTATED)]
    else:
        assert world.taken(id_, expected=LAST) == ROTATED


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldReturnOkOnEndTxnV2IfEndTxnV2RetryEpochOverflow",
    "TransactionCoordinatorTest.shouldReturnConcurrentTxnOnAddPartitionsIfEndTxnV2EpochOverflowAndNotComplete",
)
def test_the_new_producer_id_counts_once_the_end_is_complete() -> None:
    world, id_ = in_state(TransactionState.ONGOING, LAST, leaders=(2,))
    assert world.end(id_, LAST) == [(NONE, ROTATED)]
    assert world.end(id_, LAST) == BUSY
    assert world.add(id_, ROTATED) == [ErrorCode.concurrent_transactions]
    world.reply()
    assert world.end(id_, LAST) == [(NONE, ROTATED)]
    assert world.add(id_, ROTATED) == [NONE]


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
def test_what_is_added_is_written_once(state: TransactionState, version: int) -> None:
    world, id_ = in_state(state)
    for _ in range(2):
        assert world.add(id_, START, 2, version=version) == [NONE]
        assert len(world.record_values(0)) == 2
    found = world.transaction(id_)
    assert found.state is TransactionState.ONGOING
    assert list(found.partitions) == [("events", 0)] * (state is TransactionState.ONGOING) + [("events", 2)]


# --- who does not coordinate ------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithCoordinatorLoadInProgressOnInitPidWhenCoordinatorLoading",
    "TransactionCoordinatorTest.shouldRespondWithCoordinatorLoadInProgressOnAddPartitionsWhenCoordinatorLoading",
    "TransactionCoordinatorTest.shouldRespondWithCoordinatorLoadInProgressOnEndTxnWhenCoordinatorIsLoading",
    "TransactionCoordinatorTest.testDescribeTransactionsWhileCoordinatorLoading",
)
def test_a_coordinator_that_loads_says_so() -> None:
    loading = ErrorCode.coordinator_load_in_progress

    def begins() -> tuple[TransactionWorld, str]:
        world, id_ = in_state(TransactionState.ONGOING)
        world.coordinate(0, world.lose(0), epoch=2)
        return world, id_

    world, id_ = begins()
    assert world.transactions.entry(id_) is loading
    assert world.take(id_) == [(loading, NO_OWNER)]
    world, id_ = begins()
    assert world.add(id_, START) == [loading]
    for version in (0, 2):
        world, id_ = begins()
        assert world.end(id_, START, version=version) == [(loading, NO_OWNER)]
    assert world.transactions.entry(id_) is not loading


@pytest.mark.clause(
    "TransactionCoordinatorTest.shouldRespondWithInvalidRequestAddPartitionsToTransactionWhenTransactionalIdIsEmpty",
    "TransactionCoordinatorTest.shouldRespondWithInvalidRequestOnEndTxnWhenTransactionalIdIsEmpty",
)
def test_an_empty_id_is_no_id() -> None:
    world = TransactionWorld()
    world.coordinate(0)
    assert world.add("", START) == [ErrorCode.invalid_request]
    for version in (0, 2):
        assert world.end("", START, version=version) == [(ErrorCode.invalid_request, NO_OWNER)]


@pytest.mark.clause("TransactionCoordinatorTest.shouldRemoveTransactionsForPartitionOnEmigration")
def test_who_no_longer_coordinates_forgets_the_ids_and_sends_no_markers() -> None:
    world, id_ = in_state(TransactionState.ONGOING, leaders=(2,))
    assert world.end(id_, START)[0][0] is NONE
    world.lose(0)
    assert world.transactions.entry(id_) is ErrorCode.not_coordinator
    assert world.transactions.active() == []
    world.sent.pop()[3]()
    world.pass_ms(60_000)
    assert world.sent == []


def test_a_marker_request_has_the_timeout_of_the_node_s_requests() -> None:
    world, id_ = in_state(TransactionState.ONGOING, leaders=(2,), request_timeout_ms="2000")
    assert world.end(id_, START)[0][0] is NONE
    assert world.timeouts_ms == [2000]


# --- steps that cannot be written -------------------------------------------------------------------------------------


def with_too_few_replicas(version: int, timeout_ms: int = 60_000) -> tuple[TransactionWorld, str]:
    """An open transaction, whose coordinator cannot write."""
    world = TransactionWorld((1, 2, 3), min_isr=2, version=version)
    world.coordinate(0)
    id_ = world.id_in(0)
    answers = world.take(id_, None, timeout_ms)
    world.replicate(0)
    assert answers == [(NONE, (1000, 0))]
    world.add(id_, (1000, 0), version=version)
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
def test_a_fence_that_cannot_be_written_raises_the_epoch_once_in_the_end(version: int) -> None:
    world, id_ = with_too_few_replicas(version)
    for _ in range(2):
        assert world.take(id_) == UNAVAILABLE
        assert world.transaction(id_).producer_epoch == 0
    keep_in_sync(world, (1, 2, 3), 2)
    answers = world.take(id_)
    world.replicate(0)
    assert answers == BUSY
    assert world.markers(0) == [("abort", 1000, 1, 0)]
    world.replicate(0)
    answers = world.take(id_)
    world.replicate(0)
    assert answers == [(NONE, (1000, 2))]


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.clause("TransactionCoordinatorTest.shouldNotBumpEpochWhenAbortingExpiredTransactionIfAppendToLogFails")
def test_a_timeout_that_cannot_be_written_raises_the_epoch_once_in_the_end(version: int) -> None:
    world, id_ = with_too_few_replicas(version, timeout_ms=1000)
    world.pass_ms(10_000)
    assert world.transaction(id_).producer_epoch == 0
    assert world.markers(0) == []
    keep_in_sync(world, (1, 2, 3), 2)
    world.pass_ms(2000)
    world.replicate(0)
    assert world.markers(0) == [("abort", 1000, 1, 0)]
