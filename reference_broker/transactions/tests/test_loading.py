"""Loading and unloading a partition of ``__transaction_state``: known IDs, and transactions that are resumed."""

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import checksum
from reference_broker.records.record import Record, build
from reference_broker.transactions.tests.transaction_world import PRODUCER, TransactionWorld, coordinator_in_state
from reference_broker.transactions.transaction_metadata import TransactionState, TxnTransitMetadata
from reference_broker.transactions.transaction_state_manager import transaction_key, transaction_value
from reference_broker.wire.errors import ErrorCode


def transaction(world: TransactionWorld, id_: str, state: TransactionState, *indexes: int) -> TxnTransitMetadata:
    now_ms = world.now().wall_ms
    partitions = {("events", index): None for index in indexes}
    return TxnTransitMetadata(
        id_, PRODUCER[0], 60_000, now_ms, state, PRODUCER[1], partitions=partitions, started_ms=now_ms
    )


def record(one: TxnTransitMetadata) -> Record:
    return Record(timestamp_ms=1, key=transaction_key(one.transactional_id), value=transaction_value(one, 2))


def log_with(world: TransactionWorld, *batches: bytes, index: int = 0) -> UnifiedLog:
    log = run_to_end(open_log(world.disk, f"{TRANSACTION_TOPIC}-{index}", LogConfig(), world.now(), True))
    for batch in batches:
        log.append(world.now(), batch, 0, origin=BatchOrigin.BROKER)
    return log


@pytest.mark.clause("TransactionStateManagerTest.testLoadAndRemoveTransactionsForPartition")
@pytest.mark.clause("TransactionStateManagerTest.testAddGetPids", "TransactionStateManagerTest.testPartitionLoadMetric")
def test_load_keeps_last_record_of_each_id() -> None:
    world = TransactionWorld(leaders=(2,) * 5)
    one, two = world.transactional_id_in(0, "a"), world.transactional_id_in(0, "b")
    steps = [
        transaction(world, one, TransactionState.ONGOING, 0, 1),
        transaction(world, one, TransactionState.ONGOING, 0, 1, 2, 3, 4),
        transaction(world, one, TransactionState.PREPARE_COMMIT, 0, 1, 2, 3, 4),
        transaction(world, two, TransactionState.ONGOING, 2, 3, 4),
        transaction(world, two, TransactionState.PREPARE_ABORT, 2, 3, 4),
        transaction(world, two, TransactionState.COMPLETE_ABORT),
        transaction(world, two, TransactionState.EMPTY),
    ]
    world.coordinate(0, log_with(world, build([record(step) for step in steps])))
    world.pass_ms(0)
    assert (world.transaction(one), world.transaction(two)) == (steps[2], steps[-1])
    assert world.transactions.find_metadata(world.transactional_id_in(0, "c")) is ErrorCode.transactional_id_not_found
    assert world.transactions.metrics.load_time_ms.count == 1
    world.stop_leading(0)
    assert world.transactions.find_metadata(one) is world.transactions.find_metadata(two) is ErrorCode.not_coordinator


@pytest.mark.clause("TransactionStateManagerTest.testDeletePartition")
def test_lost_partition_drops_only_its_ids() -> None:
    world = TransactionWorld()
    owners = []
    for index in (0, 1):
        world.coordinate(index)
        owners.append(world.initialized_producer(world.transactional_id_in(index)))
    assert [epoch for _, epoch in owners] == [0, 0]
    world.stop_leading(0)
    assert world.transactions.find_metadata(world.transactional_id_in(0)) is ErrorCode.not_coordinator
    assert world.transaction(world.transactional_id_in(1)).producer_epoch == 0


@pytest.mark.clause(
    "TransactionStateManagerTest.testDeleteLoadingPartition",
    "TransactionStateManagerTest.testMakeFollowerLoadingPartition",
)
def test_partition_lost_during_load_is_not_served() -> None:
    world = TransactionWorld(leaders=(2,))
    id_ = world.transactional_id_in(0)
    log = log_with(world, build([record(transaction(world, id_, TransactionState.PREPARE_COMMIT, 0))]))
    world.coordinate(0, log)
    assert world.transactions.find_metadata(id_) is ErrorCode.coordinator_load_in_progress
    world.stop_leading(0)
    world.pass_ms(1000)
    assert world.transactions.find_metadata(id_) is ErrorCode.not_coordinator
    assert (world.transactions.loading(), world.sent) == (False, [])


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.clause(
    "TransactionStateManagerTest.shouldWriteTxnMarkersForTransactionInPreparedCommitState",
    "TransactionStateManagerTest.shouldWriteTxnMarkersForTransactionInPreparedAbortState",
)
def test_loaded_prepared_transaction_gets_markers(commits: bool) -> None:
    world = TransactionWorld()
    id_ = world.transactional_id_in(0)
    state = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
    world.coordinate(0, log_with(world, build([record(transaction(world, id_, state, 0, 1))])))
    world.pass_ms(0)
    outcome = "commit" if commits else "abort"
    assert world.markers(0) == world.markers(1) == [(outcome, *PRODUCER, 0)]


@pytest.mark.clause("TransactionStateManagerTest.testSuccessfulReimmigration")
def test_re_election_without_loss_updates_coordinator_epoch() -> None:
    world, id_ = coordinator_in_state(TransactionState.ONGOING)
    world.coordinate(0, world.led[0].log, epoch=3)
    world.pass_ms(0)
    (partition,) = world.transactions.active()
    assert partition.coordinator_epoch == 3
    assert world.end_transaction(id_, PRODUCER)[0][0] is ErrorCode.none
    assert world.markers(0) == [("commit", PRODUCER[0], PRODUCER[1] + 1, 3)]


@pytest.mark.clause("TransactionStateManagerTest.testLoadTransactionMetadataWithCorruptedLog")
def test_load_ends_at_last_readable_record(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TransactionWorld()
    id_ = world.transactional_id_in(0)
    log = log_with(world, build([record(transaction(world, id_, TransactionState.ONGOING, 0))]))
    with monkeypatch.context() as patched:
        patched.setattr(UnifiedLog, "read", lambda *_: b"")
        world.coordinate(0, log)
        world.pass_ms(0)
    assert not world.transactions.loading()
    assert world.transactions.find_metadata(id_) is ErrorCode.transactional_id_not_found


@pytest.mark.clause("TransactionStateManagerTest.testLoadTransactionMetadataContainingSegmentEndingWithEmptyBatch")
def test_load_skips_batch_emptied_by_cleaner() -> None:
    world = TransactionWorld()
    one, two = world.transactional_id_in(0, "a"), world.transactional_id_in(0, "b")
    first, second = (transaction(world, each, TransactionState.EMPTY) for each in (one, two))
    empty = bytearray(build([Record()], base_offset=1)[:61])
    empty[8:12] = (61 - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[17:21] = checksum(bytes(empty[21:])).to_bytes(4, "big")
    log = log_with(world, build([record(first)]))
    log.append_replicated(world.now(), empty)
    log.roll(world.now())
    log.append(world.now(), build([record(second)]), 0, origin=BatchOrigin.BROKER)
    assert (log.log_end_offset, len(log.segments)) == (3, 2)
    world.coordinate(0, log)
    world.pass_ms(0)
    assert (world.transaction(one), world.transaction(two)) == (first, second)


@pytest.mark.clause("TransactionStateManagerTest.testIgnoreUnknownRecordType")
def test_load_skips_records_of_unknown_type() -> None:
    world = TransactionWorld(leaders=(2,))
    one = transaction(world, world.transactional_id_in(0), TransactionState.PREPARE_COMMIT, 0)
    other = b"\x7f\xff\0\0"
    world.coordinate(0, log_with(world, build([Record(key=other, value=other), record(one)])), epoch=1)
    world.pass_ms(0)
    assert world.transaction(one.transactional_id) == one
    (partition,) = world.transactions.active()
    assert (partition.coordinator_epoch, list(partition.entries)) == (1, [one.transactional_id])
