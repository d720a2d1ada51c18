"""Idempotent producers: duplicates, gaps, epochs, unknown producers, expiry, and all of it after a restart."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import (
    START_MS,
    all_bytes,
    appended,
    at,
    batch_of,
    headers_of,
    marked,
    opened,
    refused,
    sent,
)
from reference_broker.log.unified_log import RecordsRefused
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import checksum, read_header, write_header
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker
from reference_broker.wire.errors import ErrorCode

LAST = 2**31 - 1
REJECT = LogConfig(unknown_producer_id_policy="reject")


@pytest.mark.clause("P-1")
def test_each_producer_is_mapped_to_its_last_record() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 0, 3)
    sent(log, 2, 0, 1, epoch=5)
    sent(log, 1, 3, 2)
    first, second = log.producers.by_id[1], log.producers.by_id[2]
    assert (first.producer_epoch, first.last_sequence, first.batch_metadata[-1].last_offset) == (0, 4, 5)
    assert first.batch_metadata[-1].first_offset == 4
    assert first.last_timestamp_ms == at(0).wall_ms
    assert first.current_txn_first_offset == -1
    assert (second.producer_epoch, second.last_sequence, second.batch_metadata[-1].last_offset) == (5, 0, 3)


@pytest.mark.clause("P-1", "ProducerStateManagerTest.testNonTransactionalAppendWithOngoingTransaction")
def test_open_transaction_is_kept_until_marker() -> None:
    log = opened(MemoryDisk())
    appended(log, batch_of(1))
    data = batch_of(2, producer_id=9, producer_epoch=1, base_sequence=0, is_transactional=True)
    appended(log, data)
    assert log.producers.by_id[9].current_txn_first_offset == 1
    assert log.last_stable_offset == 1
    assert refused(log, 9, 2, epoch=1) == ErrorCode.invalid_txn_state
    marked(log, build_marker(commit=False, producer_id=9, producer_epoch=1, coordinator_epoch=0, timestamp_ms=START_MS))
    assert log.producers.by_id[9].current_txn_first_offset == -1
    assert log.last_stable_offset == log.log_end_offset == 4
    assert [(a.producer_id, a.first_offset) for a in log.aborted_transactions(0, 4)] == [(9, 1)]
    assert log.aborted_transactions(4, 9) == []
    assert log.aborted_transactions(0, 1) == []


def test_last_stable_offset_waits_for_replicated_marker() -> None:
    log = opened(MemoryDisk())
    data = batch_of(2, producer_id=9, producer_epoch=1, base_sequence=0, is_transactional=True)
    log.append(at(0), data, 0)
    marker = build_marker(commit=True, producer_id=9, producer_epoch=1, coordinator_epoch=0, timestamp_ms=START_MS)
    log.append(at(0), marker, 0, origin=BatchOrigin.BROKER)
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 0
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 3
    assert log.aborted_transactions(0, 3) == []


@pytest.mark.clause("P-6", "UnifiedLogTest.testDuplicateAppends")
def test_duplicates_of_last_five_batches_return_original_offsets() -> None:
    log = opened(MemoryDisk())
    for number in range(7):
        sent(log, 1, 2 * number, 2)
    before = all_bytes(log)
    for number in range(2, 7):
        again = sent(log, 1, 2 * number, 2)
        assert again.duplicate
        assert (again.first_offset, again.last_offset) == (2 * number, 2 * number + 1)
    assert refused(log, 1, 0, 2) == ErrorCode.out_of_order_sequence_number
    assert refused(log, 1, 2, 2) == ErrorCode.out_of_order_sequence_number
    assert all_bytes(log) == before
    assert not sent(log, 1, 14).duplicate


@pytest.mark.clause(
    "ProducerStateManagerTest.testBasicIdMapping",
    "UnifiedLogTest.testNonSequentialAppend",
    "UnifiedLogTest.testDuplicateAppends",
)
def test_overlaps_and_gaps_are_out_of_order() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 0, 4)
    sent(log, 1, 4, 4)
    for sequence, count in ((4, 3), (4, 5), (5, 3), (2, 4), (7, 2), (9, 1), (LAST, 1)):
        assert refused(log, 1, sequence, count) == ErrorCode.out_of_order_sequence_number
    sent(log, 1, 8)


@pytest.mark.clause(
    "ProducerStateManagerTest.testProducerSequenceWrapAround",
    "ProducerStateManagerTest.testProducerSequenceWithWrapAroundBatchRecord",
    "ProducerStateManagerTest.testProducerSequenceInvalidWrapAround",
)
def test_sequences_wrap_between_and_inside_batches() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, LAST - 9, 10)
    assert refused(log, 1, 1) == ErrorCode.out_of_order_sequence_number
    sent(log, 1, 0, 10)
    assert sent(log, 1, LAST - 9, 10).duplicate
    sent(log, 2, LAST - 5, 10)
    assert log.producers.by_id[2].last_sequence == 3
    assert sent(log, 2, LAST - 5, 10).duplicate
    sent(log, 2, 4)


@pytest.mark.clause(
    "ProducerStateManagerTest.testBasicIdMapping",
    "ProducerStateManagerTest.testRejectNonZeroSequenceForDirectEpochBump",
    "UnifiedLogTest.testOldProducerEpoch",
)
def test_higher_epoch_starts_at_zero_and_fences_old_one() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 0, 5)
    assert refused(log, 1, 5, epoch=1) == ErrorCode.out_of_order_sequence_number
    sent(log, 1, 0, 5, epoch=1)
    assert refused(log, 1, 5, epoch=0) == ErrorCode.invalid_producer_epoch
    assert refused(log, 1, 0, 5, epoch=0) == ErrorCode.invalid_producer_epoch
    assert sent(log, 1, 0, 5, epoch=1).first_offset == 5
    sent(log, 1, 5, epoch=1)


@pytest.mark.clause(
    "ProducerStateManagerTest.testAppendTxnMarkerWithNoProducerState",
    "ProducerStateManagerTest.testControlRecordBumpsProducerEpoch",
    "ProducerStateManagerTest.testOutOfSequenceAfterControlRecordEpochBump",
)
def test_marker_with_higher_epoch_fences_and_requires_sequence_zero() -> None:
    log = opened(MemoryDisk())
    marked(log, build_marker(commit=False, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp_ms=START_MS))
    assert refused(log, 1, 0, epoch=0) == ErrorCode.invalid_producer_epoch
    assert refused(log, 1, 17, epoch=1) == ErrorCode.out_of_order_sequence_number
    sent(log, 1, 0, epoch=1)
    marked(log, build_marker(commit=False, producer_id=1, producer_epoch=2, coordinator_epoch=0, timestamp_ms=START_MS))
    assert refused(log, 1, 1, epoch=1) == ErrorCode.invalid_producer_epoch
    assert refused(log, 1, 1, epoch=2) == ErrorCode.out_of_order_sequence_number
    sent(log, 1, 0, epoch=2)


@pytest.mark.clause("P-5")
def test_unknown_producer_not_starting_at_zero_is_rejected() -> None:
    disk = MemoryDisk()
    log = opened(disk, REJECT)
    assert refused(log, 1, 3) == ErrorCode.unknown_producer_id
    assert disk.files == {}
    sent(log, 1, 0)
    assert refused(log, 2, 1, epoch=4) == ErrorCode.unknown_producer_id
    sent(log, 2, 0, epoch=4)


@pytest.mark.clause("P-5")
def test_accepting_policy_appends_batch_of_unknown_producer() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 3)
    assert refused(log, 1, 3, 2) == ErrorCode.out_of_order_sequence_number
    sent(log, 1, 4)


@pytest.mark.clause("P-5", "LocalLogTest.testUpdateConfig")
def test_unknown_producer_policy_can_be_changed() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 3)
    log.config = replace(log.config, unknown_producer_id_policy="reject")
    assert refused(log, 2, 3) == ErrorCode.unknown_producer_id


@pytest.mark.clause("P-6", "ProducerStateManagerTest.testLoadFromSnapshotRetainsNonExpiredProducers")
@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_after_restart_are_written_once(clean: bool) -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=600)
    log = opened(disk, config)
    for number in range(8):
        sent(log, 1, number)
        sent(log, 2, 3 * number, 3)
    if clean:
        log.close_cleanly()
    assert len(log.segments) > 2
    again = opened(disk, config, clean=clean)
    assert again.producers.by_id == log.producers.by_id
    before = all_bytes(again)
    assert sent(again, 1, 7).first_offset == sent(log, 1, 7).first_offset
    assert sent(again, 2, 9, 3).duplicate
    assert refused(again, 1, 2) == ErrorCode.out_of_order_sequence_number
    assert all_bytes(again) == before
    assert not sent(again, 1, 8).duplicate


@pytest.mark.clause("P-6")
def test_new_leader_detects_duplicates() -> None:
    leader, follower = opened(MemoryDisk()), opened(MemoryDisk())
    for number in range(6):
        sent(leader, 1, number)
    follower.append_replicated(at(0), all_bytes(leader))
    assert follower.producers.by_id == leader.producers.by_id
    assert sent(follower, 1, 4).duplicate
    assert refused(follower, 1, 0) == ErrorCode.out_of_order_sequence_number
    sent(follower, 1, 6, epoch=0)


@pytest.mark.clause(
    "ProducerStateManagerTest.testNoValidationOnFirstEntryWhenLoadingLog",
    "ProducerStateManagerTest.testAcceptAppendWithoutProducerStateOnReplica",
    "ProducerStateManagerTest.testAcceptAppendWithSequenceGapsOnReplica",
    "UnifiedLogTest.testDuplicateAppendToFollower",
    "UnifiedLogTest.testMultipleProducerIdsPerMemoryRecord",
    "UnifiedLogTest.testMultipleProducersWithDuplicatesInSingleAppend",
)
def test_follower_accepts_gaps_duplicates_and_unknown_producers() -> None:
    follower = opened(MemoryDisk())
    sent = [(1, 5), (2, 7), (1, 9), (2, 7), (1, 9), (3, 0)]
    batches = [
        batch_of(1, base_offset=at, leader_epoch=0, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        for at, (producer, sequence) in enumerate(sent)
    ]
    follower.append_replicated(at(0), b"".join(batches[:3]))
    for batch in batches[3:]:
        follower.append_replicated(at(0), batch)
    assert [(header.producer_id, header.base_sequence) for header in headers_of(all_bytes(follower))] == sent
    assert {each: known.last_sequence for each, known in follower.producers.by_id.items()} == {1: 9, 2: 7, 3: 0}


@pytest.mark.clause(
    "UnifiedLogTest.testRebuildProducerIdMapWithCompactedData",
    "UnifiedLogTest.testRebuildProducerStateWithEmptyCompactedBatch",
    "UnifiedLogTest.testUpdateProducerIdMapWithCompactedData",
)
@pytest.mark.parametrize("is_empty", [False, True])
def test_cleaned_batch_counts_with_all_sequences(is_empty: bool) -> None:
    records = [Record(offset=23 + delta, timestamp_ms=START_MS, value=b"v") for delta in (0, 3)]
    how: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "leader_epoch": 0}
    batch = build(records, base_offset=23, keep_offsets=True, **how)
    if is_empty:
        header = read_header(batch)._replace(batch_length=61 - 12, record_count=0)
        batch = write_header(header._replace(crc=checksum(write_header(header)[21:])))
    follower = opened(MemoryDisk())
    follower.append_replicated(at(0), batch)
    assert follower.producers.by_id[1].last_sequence == 3
    follower.append_replicated(at(0), batch_of(2, base_offset=27, leader_epoch=0))
    follower.truncate_to(27)
    assert follower.producers.by_id[1].last_sequence == 3
    assert follower.producers.by_id[1].batch_metadata[-1].last_offset == 26


@pytest.mark.clause("UnifiedLogTest.testProducerIdExpirationOnSegmentDeletion")
def test_producer_stays_known_after_record_deletion() -> None:
    log = opened(MemoryDisk(), LogConfig(segment_bytes=100, retention_bytes=1))
    for producer_id in (1, 2, 2):
        sent(log, producer_id, len(log.segments[1:]) if log.segments else 0)
    assert log.enforce_retention(at(0)) == 2
    assert {each: known.last_sequence for each, known in log.producers.by_id.items()} == {1: 0, 2: 1}
    assert refused(log, 1, 2) == ErrorCode.out_of_order_sequence_number


@pytest.mark.clause(
    "P-6",
    "UnifiedLogTest.testProducerIdMapTruncateTo",
    "UnifiedLogTest.testProducerIdMapTruncateToWithNoSnapshots",
)
def test_truncation_reverts_last_batches_of_producer() -> None:
    log = opened(MemoryDisk())
    for number in range(8):
        sent(log, 1, number)
    log.truncate_to(5)
    assert log.producers.by_id[1].last_sequence == 4
    assert sent(log, 1, 0).duplicate
    sent(log, 1, 5)


@pytest.mark.clause(
    "P-7",
    "ProducerStateManagerTest.testPidExpirationTimeout",
    "UnifiedLogTest.testPeriodicProducerIdExpiration",
)
def test_producer_expires_with_age_of_last_record() -> None:
    log = opened(MemoryDisk(), LogConfig(producer_id_expiration_ms=1000))
    sent(log, 1, 0)
    assert log.expire_producers(at(999)) == 0
    assert sent(log, 1, 0).duplicate
    assert log.expire_producers(at(1000)) == 1
    assert log.producers.by_id == {}
    assert not sent(log, 1, 0).duplicate


def test_producer_is_forgotten_unless_its_transaction_is_open() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 0)
    appended(log, batch_of(1, producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True))
    assert log.producers.forget(1)
    assert not log.producers.forget(1)
    assert not log.producers.forget(2)
    assert set(log.producers.by_id) == {2}


@pytest.mark.clause("P-7", "ProducerStateManagerTest.testProducersWithOngoingTransactionsDontExpire")
def test_producer_with_open_transaction_does_not_expire() -> None:
    log = opened(MemoryDisk(), LogConfig(producer_id_expiration_ms=1000))
    appended(log, batch_of(1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True))
    assert log.expire_producers(at(10**9)) == 0
    marker = build_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=at(500).wall_ms
    )
    marked(log, marker)
    assert log.expire_producers(at(1499)) == 0
    assert log.expire_producers(at(1500)) == 1


@pytest.mark.clause("P-7", "ProducerStateManagerTest.testRemoveExpiredPidsOnReload")
def test_producers_expire_in_active_partition_and_at_restart() -> None:
    disk = MemoryDisk()
    config = LogConfig(producer_id_expiration_ms=1000, producer_id_expiration_check_interval_ms=5000)
    log = opened(disk, config)
    sent(log, 1, 0)
    sent(log, 2, 0, now=at(4999))
    assert 1 in log.producers.by_id
    sent(log, 3, 0, now=at(5000))
    assert 1 not in log.producers.by_id
    assert list(opened(disk, config, now=at(999)).producers.by_id) == [1, 2, 3]
    assert opened(disk, config, now=at(1000)).producers.by_id == {}


def test_batches_of_one_append_are_checked_in_order() -> None:
    log = opened(MemoryDisk())
    first = batch_of(2, producer_id=1, producer_epoch=0, base_sequence=0)
    second = batch_of(2, producer_id=1, producer_epoch=0, base_sequence=2)
    third = batch_of(2, producer_id=1, producer_epoch=0, base_sequence=5)
    other = batch_of(1, producer_id=2, producer_epoch=0, base_sequence=0)
    appended(log, first + second + other)
    again = appended(log, first + second + other)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (0, 4)
    for data in (second + third, third):
        with pytest.raises(RecordsRefused) as refusal:
            appended(log, data)
        assert refusal.value.error == ErrorCode.out_of_order_sequence_number
    assert log.log_end_offset == 5


@pytest.mark.clause("ProducerStateManagerTest.testPrepareUpdateDoesNotMutate")
def test_check_changes_no_state() -> None:
    log = opened(MemoryDisk())
    sent(log, 1, 0)
    disk = log.disk
    assert isinstance(disk, MemoryDisk)
    disk.fail_after = 0
    with pytest.raises(OSError, match="made to fail"):
        sent(log, 1, 1)
    disk.fail_after = None
    assert log.producers.by_id[1].last_sequence == 0
    assert not sent(log, 1, 1).duplicate
