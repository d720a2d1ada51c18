"""Transactions in a log: their start and end, the last stable offset, also after truncation or a restart."""

from typing import Any

import pytest

from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.indexes import Aborted
from reference_broker.log.tests.log_world import NOW, START_MS, all_bytes, at, batch_of, opened, refused
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import checksum
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker
from reference_broker.wire.errors import ErrorCode

SMALL = LogConfig(segment_bytes=300)
STEPS = (
    *("1+5", "0+3", "2+2", "1+4", "3+3", "0+2", "1+10", "1-", "2+6", "4+3"),
    *("0+10", "3+9", "3!", "4+8", "2+7", "2-", "0+10", "4+4", "4!"),
)
"""``1+5``: producer 1 sends 5 records. ``1-``: it aborts. ``1!``: it commits. Producer 0 has no transactions."""


class Producers:
    """Producers in epoch 0, each with its next sequence. Appends do not move the high watermark."""

    def __init__(self, log: UnifiedLog) -> None:
        self.log = log
        self.next: dict[int, int] = {}

    def send(self, producer_id: int, count: int) -> int:
        """Append a batch of a transaction. Return its first offset."""
        sequence = self.next.get(producer_id, 0)
        self.next[producer_id] = sequence + count
        how: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "base_sequence": sequence,
            "is_transactional": True,
        }
        return self.log.append(NOW, batch_of(count, **how), 0).first_offset

    def plain(self, count: int) -> None:
        self.log.append(NOW, batch_of(count), 0)

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0, coordinator: int = 0) -> int:
        """Append a marker. Return its offset."""
        marker = build_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
            timestamp_ms=START_MS,
        )
        return self.log.append(NOW, marker, 0, origin=BatchOrigin.BROKER).first_offset


@pytest.mark.clause(
    "ProducerStateManagerTest.testTxnFirstOffsetMetadataCached",
    "ProducerStateManagerTest.updateProducerTransactionState",
    "UnifiedLogTest.testActiveProducers",
)
def test_transaction_starts_with_first_batch_and_marker_keeps_sequences() -> None:
    log = opened(MemoryDisk())
    producers = Producers(log)
    log.append(NOW, batch_of(1, producer_id=1, producer_epoch=0, base_sequence=0), 0)
    producers.next[1] = 1
    assert producers.send(1, 5) == 1
    producers.plain(3)
    producers.send(1, 5)
    known = log.producers.by_id[1]
    assert (known.current_txn_first_offset, known.last_sequence, known.coordinator_epoch) == (1, 10, -1)
    assert log.producers.first_unstable_offset(log.high_watermark) == 1
    marks = known.batch_metadata
    assert producers.end(1, commit=True, coordinator=15) == 14
    known = log.producers.by_id[1]
    assert (known.current_txn_first_offset, known.batch_metadata, known.coordinator_epoch) == (-1, marks, 15)
    assert log.producers.completed == [(1, 14)]
    assert log.segments[-1].aborted.count == 0


@pytest.mark.clause(
    "ProducerStateManagerTest.testFirstUnstableOffset",
    "ProducerStateManagerTest.testLastStableOffsetCompletedTxn",
    "UnifiedLogTest.testFirstUnstableOffsetWithTransactionalData",
    "UnifiedLogTest.testLastStableOffsetWithMixedProducerData",
)
def test_last_stable_offset_is_first_unreplicated_or_open_transaction() -> None:
    log = opened(MemoryDisk())
    producers = Producers(log)
    producers.plain(3)
    producers.send(1, 3)
    producers.plain(3)
    producers.send(2, 3)
    producers.send(3, 3)
    log.advance_high_watermark(15)
    assert log.last_stable_offset == 3
    first = producers.end(1, commit=False)
    third = producers.end(3, commit=True)
    log.advance_high_watermark(first)
    assert log.last_stable_offset == 3, "its marker is not replicated"
    log.advance_high_watermark(first + 1)
    assert log.last_stable_offset == 9, "the second one is open"
    log.advance_high_watermark(third + 1)
    assert log.last_stable_offset == 9
    second = producers.end(2, commit=True)
    assert log.last_stable_offset == 9
    log.advance_high_watermark(second + 1)
    assert log.last_stable_offset == second + 1 == log.log_end_offset


@pytest.mark.clause("UnifiedLogTest.testFirstUnstableOffsetNoTransactionalData")
def test_last_stable_offset_is_high_watermark_without_transactions() -> None:
    log = opened(MemoryDisk())
    Producers(log).plain(3)
    assert log.producers.first_unstable_offset(0) is None
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 2


@pytest.mark.clause("UnifiedLogTest.testFetchUpToLastStableOffset")
def test_read_up_to_last_stable_offset() -> None:
    log = opened(MemoryDisk(), SMALL)
    producers = Producers(log)

    def agrees() -> None:
        stable = log.last_stable_offset
        for offset in range(log.log_start_offset, log.log_end_offset + 1):
            assert bool(log.read(offset, 1 << 20, stable)) == (offset < stable)

    for producer_id, count in ((1, 5), (0, 3), (2, 2), (1, 4), (0, 2), (1, 10)):
        producers.send(producer_id, count) if producer_id else producers.plain(count)
    agrees()
    log.advance_high_watermark(log.log_end_offset)
    agrees()
    producers.end(1, commit=True)
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 8
    agrees()
    producers.end(2, commit=False)
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 28
    agrees()


@pytest.mark.clause(
    "ProducerStateManagerTest.testSkipEmptyTransactions",
    "ProducerStateManagerTest.testAppendEmptyControlBatch",
)
def test_marker_without_transaction_ends_nothing() -> None:
    log = opened(MemoryDisk())
    producers = Producers(log)
    for commit in (True, False):
        producers.end(1, commit=commit)
    assert (log.producers.completed, log.segments[-1].aborted.count) == ([], 0)
    first = producers.send(1, 2)
    empty = bytearray(build([Record()], base_offset=4, producer_id=1, producer_epoch=0, is_control=True)[:61])
    empty[8:12] = (61 - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[17:21] = checksum(bytes(empty[21:])).to_bytes(4, "big")
    log.append_replicated(NOW, empty)
    assert log.log_end_offset == 5
    assert log.producers.by_id[1].current_txn_first_offset == first == 2
    marker = producers.end(1, commit=False)
    assert [entry[:3] for entry in log.segments[-1].aborted.entries] == [(1, 2, marker)]
    producers.end(1, commit=False)
    assert [entry[:3] for entry in log.segments[-1].aborted.entries] == [(1, 2, marker)]


@pytest.mark.clause("ProducerStateManagerTest.testProducerStateAfterFencingAbortMarker")
def test_fencing_marker_ends_transaction_and_keeps_epoch() -> None:
    log = opened(MemoryDisk())
    producers = Producers(log)
    producers.send(1, 1)
    producers.end(1, commit=False, epoch=1)
    known = log.producers.by_id[1]
    assert (known.producer_epoch, known.current_txn_first_offset, known.batch_metadata) == (1, -1, ())
    assert log.expire_producers(NOW) == 0
    assert refused(log, 1, 1, epoch=0) == ErrorCode.invalid_producer_epoch


@pytest.mark.clause("X-13")
@pytest.mark.clause(
    "ProducerStateManagerTest.testFirstUnstableOffsetAfterTruncation",
    "UnifiedLogTest.testTruncateBelowFirstUnstableOffset",
    "UnifiedLogTest.testTruncateFullyAndStartBelowFirstUnstableOffset",
    "UnifiedLogTest.testProducerIdMapTruncateFullyAndStartAt",
)
@pytest.mark.parametrize("restarted", [False, True])
def test_truncation_reopens_or_removes_transaction(restarted: bool) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    producers = Producers(log)
    producers.plain(3)
    assert producers.send(1, 2) == 3
    marker = producers.end(1, commit=True)
    log.advance_high_watermark(marker + 1)
    producers.plain(1)
    if restarted:
        log.close_cleanly()
        log = opened(disk)
    log.truncate_to(marker + 1)
    assert log.last_stable_offset == marker + 1
    log.truncate_to(marker)
    assert log.last_stable_offset == 3
    copy = opened(disk.copy())
    assert copy.last_stable_offset == 3
    log.truncate_to(0)
    copy.truncate_fully_and_start_at(2, NOW)
    for each in (log, copy):
        assert not each.producers.by_id
        assert not each.producers.open_transactions
        assert each.last_stable_offset == each.log_end_offset


@pytest.mark.clause("X-13")
@pytest.mark.clause(
    "ProducerStateManagerTest.testRecoverFromSnapshotUnfinishedTransaction",
    "ProducerStateManagerTest.testRecoverFromSnapshotFinishedTransaction",
    "ProducerStateManagerTest.testRecoverFromSnapshotEmptyTransaction",
    "UnifiedLogTest.testRebuildTransactionalState",
)
@pytest.mark.parametrize("clean", [True, False])
def test_transactions_are_restored_after_restart(clean: bool) -> None:
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    producers = Producers(log)
    for producer_id in (1, 2):
        producers.send(producer_id, 1)
        producers.send(producer_id, 1)
    producers.end(2, commit=False)
    producers.end(3, commit=False)
    if clean:
        log.close_cleanly()
    again = opened(disk, SMALL, clean=clean)
    unfinished, finished, empty = (again.producers.by_id[each] for each in (1, 2, 3))
    assert (unfinished.last_sequence, unfinished.current_txn_first_offset) == (1, 0)
    assert (finished.last_sequence, finished.current_txn_first_offset) == (1, -1)
    assert (empty.last_timestamp_ms, empty.current_txn_first_offset) == (START_MS, -1)
    assert again.producers.by_id == log.producers.by_id
    assert again.segments.aborted_between(0, 6) == log.segments.aborted_between(0, 6) == [Aborted(2, 2, 4, 0)]
    assert again.last_stable_offset == 0
    assert Producers(again).end(1, commit=True) == 6
    again.advance_high_watermark(7)
    assert again.last_stable_offset == 7


@pytest.mark.clause("X-13")
@pytest.mark.clause(
    "UnifiedLogTest.testTransactionIndexUpdated",
    "UnifiedLogTest.testTransactionIndexUpdatedThroughReplication",
    "UnifiedLogTest.testAbortedTransactionSpanningMultipleSegments",
    "LogLoaderTest.testFullTransactionIndexRecovery",
    "LogLoaderTest.testRecoverLastSegmentWithNoSnapshots",
    "LogLoaderTest.testRecoverOnlyLastSegment",
    "LogSegmentTest.testRecoverTransactionIndex",
)
@pytest.mark.parametrize("how", ["as the leader", "as a follower", "after a restart", "after a short restart"])
def test_overlapping_aborted_transactions_have_first_offsets(how: str) -> None:
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    producers = Producers(log)
    for step in STEPS:
        _play(producers, step)
        if how == "after a short restart":
            log.mark_synced(log.sync_point())
    if how == "as a follower":
        records = all_bytes(log)
        log = opened(MemoryDisk(), SMALL)
        log.append_replicated(NOW, records)
    elif "restart" in how:
        log = opened(disk, SMALL, clean=False)
        assert (log.recovered.verified_bytes < log.size_bytes // 2) == ("short" in how)
        log.high_watermark = 0
    assert len(log.segments) > 5
    aborted = [(transaction.producer_id, transaction.first_offset) for transaction in log.aborted_transactions(0, 90)]
    assert aborted == [(1, 0), (2, 8)]
    assert [
        (transaction.producer_id, transaction.first_offset) for transaction in log.aborted_transactions(30, 90)
    ] == [(2, 8)]
    assert log.aborted_transactions(75, 90) == []
    log.advance_high_watermark(30)
    assert log.last_stable_offset == 8
    log.advance_high_watermark(75)
    assert log.last_stable_offset == 36
    log.advance_high_watermark(90)
    assert log.last_stable_offset == 90


def _play(producers: Producers, step: str) -> None:
    producer_id, count = int(step[0]), step[2:]
    if not count:
        producers.end(producer_id, commit=step[1] == "!")
    elif producer_id:
        producers.send(producer_id, int(count))
    else:
        producers.plain(int(count))


@pytest.mark.clause(
    "UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetMidSegment",
    "UnifiedLogTest.testLastStableOffsetDoesNotExceedLogStartOffsetAfterSegmentDeletion",
)
@pytest.mark.parametrize("start", [5, 8])
def test_last_stable_offset_is_not_below_log_start(start: int) -> None:
    log = opened(MemoryDisk())
    producers = Producers(log)
    producers.send(1, 5)
    producers.plain(3)
    log.roll(at(0))
    producers.send(1, 5)
    log.advance_high_watermark(13)
    assert log.last_stable_offset == 0
    log.delete_records_before(start)
    assert log.last_stable_offset == start
    marker = producers.end(1, commit=True)
    log.advance_high_watermark(marker + 1)
    assert log.last_stable_offset == marker + 1
