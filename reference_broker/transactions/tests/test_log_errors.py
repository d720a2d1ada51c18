"""Steps of transactions whose append fails: the error, the unchanged state, and retries."""

from collections.abc import Sequence
from typing import Any

import pytest

from reference_broker.coordination.log import NO_PRODUCER, AppendedRecords, CoordinatorLog, TransactionProducer
from reference_broker.transactions.coordinator import NO_ID_AND_EPOCH
from reference_broker.transactions.tests.transaction_world import PRODUCER, TransactionWorld, coordinator_in_state
from reference_broker.transactions.transaction_metadata import TransactionState
from reference_broker.wire.errors import Error, ErrorCode

NONE = ErrorCode.none
EXPIRING: dict[str, Any] = {
    "transactional_id_expiration_ms": "10000",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "1000",
}


def refuse(monkeypatch: pytest.MonkeyPatch, error: ErrorCode, *indexes: int) -> list[int]:
    """Make these partitions reject appends. Return a list of the rejecting partitions, in order."""
    tried: list[int] = []
    append = CoordinatorLog.append

    def refused(
        log: CoordinatorLog,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: TransactionProducer = NO_PRODUCER,
        spare_bytes: int = 0,
    ) -> AppendedRecords | Error:
        if log.led.index not in indexes:
            return append(log, records, producer, spare_bytes)
        tried.append(log.led.index)
        return error

    monkeypatch.setattr(CoordinatorLog, "append", refused)
    return tried


@pytest.mark.parametrize(
    ("error", "returned"),
    [
        ("unknown_topic_or_partition", "coordinator_not_available"),
        ("not_enough_replicas", "coordinator_not_available"),
        ("not_enough_replicas_after_append", "coordinator_not_available"),
        ("request_timed_out", "coordinator_not_available"),
        ("not_leader_or_follower", "not_coordinator"),
        ("kafka_storage_error", "not_coordinator"),
        ("message_too_large", "unknown_server_error"),
        ("record_list_too_large", "unknown_server_error"),
    ],
)
@pytest.mark.clause(
    "TransactionStateManagerTest.testAppendFailToCoordinatorNotAvailableError",
    "TransactionStateManagerTest.testAppendFailToNotCoordinatorError",
    "TransactionStateManagerTest.testAppendFailToUnknownError",
)
def test_append_error_is_mapped_for_client(monkeypatch: pytest.MonkeyPatch, error: str, returned: str) -> None:
    world, id_ = coordinator_in_state(TransactionState.EMPTY)
    before = world.transaction(id_)
    with monkeypatch.context() as patched:
        refuse(patched, ErrorCode[error], 0)
        assert world.add_partitions(id_, PRODUCER) == [ErrorCode[returned]]
    assert world.transaction(id_) == before
    assert world.add_partitions(id_, PRODUCER) == [NONE], "nothing is under way any more"


def test_failed_append_changes_no_state() -> None:
    world = TransactionWorld(replicas=(1, 2, 3), min_isr=2)
    world.isr = (1,)
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    world.init_producer_id(id_)  # The producer ID is allocated.
    assert world.init_producer_id(id_) == [(ErrorCode.coordinator_not_available, NO_ID_AND_EPOCH)]
    assert world.transactions.find_metadata(id_) is ErrorCode.transactional_id_not_found
    world.transactions.validate()


@pytest.mark.clause("TransactionStateManagerTest.testAppendFailToNotCoordinatorError")
def test_pending_request_returns_not_coordinator_when_leadership_is_lost() -> None:
    world = TransactionWorld((1, 2, 3))
    world.coordinate(0)
    id_ = world.transactional_id_in(0)
    responses = world.init_producer_id(id_)
    assert responses == []
    partition = world.led[0]
    world.stop_leading(0)
    world.leaders.stops_leading(partition)
    world.pass_ms(0)
    assert responses == [(ErrorCode.not_coordinator, NO_ID_AND_EPOCH)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.clause(
    "TransactionStateManagerTest.testPendingStateNotResetOnRetryAppend",
    "TransactionMarkerChannelManagerTest.shouldRetryAppendToLogOnEndTxnWhenCoordinatorNotAvailableError",
    "TransactionMarkerChannelManagerTest.shouldCreateMetricsOnStarting",
)
@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldCompleteAppendToLogOnEndTxnWhenSendMarkersSucceed")
def test_failed_append_of_completion_is_retried_before_other_steps(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, leaders=(2,), version=version)
    client = 2 if version == 2 else 0
    assert world.end_transaction(id_, PRODUCER, version=client)[0][0] is NONE
    with monkeypatch.context() as patched:
        tried = refuse(patched, ErrorCode.not_enough_replicas, 0)
        world.reply()
        world.pass_ms(3000)
        assert len(tried) == 4, "at once, and after each second"
        assert world.transactions.metrics.waiting_completions.value == 1
        assert world.transaction(id_).state is TransactionState.PREPARE_COMMIT
        assert world.init_producer_id(id_) == [(ErrorCode.concurrent_transactions, NO_ID_AND_EPOCH)]
    world.pass_ms(1000)
    assert world.transaction(id_).state is TransactionState.COMPLETE_COMMIT
    assert world.transactions.metrics.waiting_completions.value == 0
    assert world.sent == []


@pytest.mark.clause("TransactionMarkerChannelManagerTest.shouldAbortAppendToLogOnEndTxnWhenNotCoordinatorError")
def test_former_coordinator_does_not_complete_transaction() -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING, leaders=(2,))
    assert world.end_transaction(id_, PRODUCER)[0][0] is NONE
    log = world.stop_leading(0)
    end_offset = log.log_end_offset
    world.reply()
    world.pass_ms(60_000)
    assert (log.log_end_offset, world.sent) == (end_offset, [])


# --- idle IDs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(TransactionState)[:6], ids=lambda state: state.value)
@pytest.mark.clause(
    "TransactionStateManagerTest.shouldRemoveCompleteCommitExpiredTransactionalIds",
    "TransactionStateManagerTest.shouldRemoveCompleteAbortExpiredTransactionalIds",
    "TransactionStateManagerTest.shouldRemoveEmptyExpiredTransactionalIds",
    "TransactionStateManagerTest.shouldNotRemoveOngoingTransactionalIds",
)
@pytest.mark.clause(
    "TransactionStateManagerTest.shouldNotRemovePrepareAbortTransactionalIds",
    "TransactionStateManagerTest.shouldNotRemovePrepareCommitTransactionalIds",
)
def test_only_old_ids_without_open_transaction_expire(state: TransactionState) -> None:
    is_open = state is TransactionState.ONGOING
    prepared = state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    world, old = coordinator_in_state(TransactionState.ONGOING if prepared else state, leaders=(2,), **EXPIRING)
    if prepared:
        assert world.end_transaction(old, PRODUCER, commits=state is TransactionState.PREPARE_COMMIT)[0][0] is NONE
    world.pass_ms(5000)
    new = world.transactional_id_in(0, "new")
    world.initialized_producer(new)
    world.pass_ms(6500)
    assert world.transaction(new).state is TransactionState.EMPTY
    if is_open or prepared:
        assert world.transaction(old).state is state
        assert None not in world.record_values(0)
    else:
        assert world.transactions.find_metadata(old) is ErrorCode.transactional_id_not_found
        assert world.record_values(0).count(None) == 1


@pytest.mark.parametrize("error", [ErrorCode.not_enough_replicas, ErrorCode.record_list_too_large])
@pytest.mark.clause(
    "TransactionStateManagerTest.shouldNotRemoveExpiredTransactionalIdsIfLogAppendFails",
    "TransactionStateManagerTest.testTransactionalExpirationWithTooSmallBatchSize",
)
def test_id_stays_if_its_tombstone_cannot_be_written(monkeypatch: pytest.MonkeyPatch, error: ErrorCode) -> None:
    world, id_ = coordinator_in_state(TransactionState.COMPLETE_ABORT, **EXPIRING)
    before = world.transaction(id_)
    with monkeypatch.context() as patched:
        tried = refuse(patched, error, 0)
        world.pass_ms(13_000)
        assert len(tried) > 1, "it is retried"
        assert world.transaction(id_) == before
    world.pass_ms(1000)
    assert world.transactions.find_metadata(id_) is ErrorCode.transactional_id_not_found


@pytest.mark.clause("TransactionStateManagerTest.testTransactionalExpirationWithOfflineLogDir")
def test_failing_partition_keeps_only_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TransactionWorld(**EXPIRING)
    ids = []
    for index in (0, 1):
        world.coordinate(index)
        ids.append(world.transactional_id_in(index))
        world.initialized_producer(ids[-1])
    tried = refuse(monkeypatch, ErrorCode.kafka_storage_error, 1)
    world.pass_ms(12_000)
    assert tried
    assert world.transactions.find_metadata(ids[0]) is ErrorCode.transactional_id_not_found
    assert world.record_values(0)[-1] is None
    assert world.transaction(ids[1]).producer_epoch == 0
    assert None not in world.record_values(1)
