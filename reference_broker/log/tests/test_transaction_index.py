"""The index of aborted transactions: Kafka's bytes, binary search, truncation, detection of damage at start."""

from struct import pack

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.indexes import ENTRIES_PER_READ, Aborted, TransactionIndex
from reference_broker.log.tests.log_world import DIRECTORY, NOW, opened
from reference_broker.log.tests.recovery_world import stopped
from reference_broker.log.tests.test_open_transactions import Producers
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import DiskError, MemoryDisk

NAMES = ["a.txnindex", "a.txnindex-checksum"]
CONFIG = LogConfig(segment_bytes=100_000)


def index_of(count: int) -> TransactionIndex:
    """Return transactions of which the n-th has the offsets 10n to 10n + 9, and none overlaps."""
    index = TransactionIndex("d/a")
    for number in range(count):
        index.note(Aborted(number, 10 * number, 10 * number + 9, 10 * number + 10))
        index.note(None)
    return index


@pytest.mark.clause("TransactionIndexTest.testAbortedTxnSerde")
def test_index_has_bytes_of_kafka() -> None:
    disk, index = MemoryDisk(), TransactionIndex("d/a")
    assert index.write(disk) == (), "a segment without a marker has no file"
    index.note(Aborted(983493, 137, 299, 200))
    index.note(Aborted(7, 150, 310, 311))
    assert index.write(disk) == ("d/a.txnindex", "d/a.txnindex-checksum")
    assert disk.files["d/a.txnindex"] == pack(">hqqqq", 0, 983493, 137, 299, 200) + pack(">hqqqq", 0, 7, 150, 310, 311)
    assert index.write(disk) == ()


@pytest.mark.clause(
    "TransactionIndexTest.testLastOffsetMustIncrease", "TransactionIndexTest.testLastOffsetCannotDecrease"
)
@pytest.mark.parametrize("last", [9, 8])
def test_markers_out_of_order_raise(last: int) -> None:
    with pytest.raises(AssertionError, match="follows on"):
        index_of(1).note(Aborted(5, 2, last, 10))


@pytest.mark.clause("TransactionIndexTest.testCollectAbortedTransactions")
@pytest.mark.parametrize("released", [False, True])
def test_lookup_reads_overlapping_entries_and_few_others(released: bool) -> None:
    disk, count = MemoryDisk(), 5000
    index = index_of(count)
    if released:
        index.write(disk)
        index.release()
        assert not index.entries
    for offset, end in ((0, 1), (0, 11), (9, 10), (10, 20), (12345, 12399), (49999, 90000), (0, 50000)):
        disk.reads = 0
        producer_ids = [entry.producer_id for entry in index.between(disk, offset, end)]
        assert producer_ids == list(range(offset // 10, min((end - 1) // 10 + 1, count)))
        assert disk.reads <= (13 + 1 + len(producer_ids) // ENTRIES_PER_READ + 1 if released else 0)
    assert index.between(disk, 50000, 60000) == []


@pytest.mark.clause("TransactionIndexTest.testCollectAbortedTransactions")
def test_long_transaction_is_found_after_shorter_ones() -> None:
    index = TransactionIndex("d/a")
    for entry in (Aborted(1, 20, 30, 5), Aborted(2, 5, 40, 41), Aborted(3, 50, 60, 61)):
        index.note(entry)
    assert [entry.producer_id for entry in index.between(MemoryDisk(), 10, 15)] == [2]
    assert [entry.producer_id for entry in index.between(MemoryDisk(), 0, 25)] == [1, 2]


@pytest.mark.clause("TransactionIndexTest.testTruncate")
def test_truncation_removes_markers() -> None:
    disk, index = MemoryDisk(), index_of(6)
    index.write(disk)
    index.release()
    index.truncate(disk, 29)
    assert [entry.producer_id for entry in index.entries] == [0, 1]
    assert not disk.files, "they are rewritten with the next ones"
    assert index.write(disk)
    assert TransactionIndex("d/a").load(disk, NAMES)


@pytest.mark.clause("TransactionIndexTest.testSanityCheck")
def test_damage_is_detected() -> None:
    disk = MemoryDisk()
    index_of(3).write(disk)
    whole = bytes(disk.files["d/a.txnindex"])
    assert TransactionIndex("d/a").load(disk, NAMES)
    spoiled = [whole[:size] for size in range(len(whole))]
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        spoiled.append(bytes(flipped))
    for content in spoiled:
        disk.files["d/a.txnindex"] = bytearray(content)
        assert not TransactionIndex("d/a").load(disk, NAMES)
    disk.files["d/a.txnindex"] = bytearray(whole)
    del disk.files["d/a.txnindex-checksum"]
    assert not TransactionIndex("d/a").load(disk, NAMES[:1])


def test_entries_damaged_after_start_are_not_returned() -> None:
    disk, index = MemoryDisk(), index_of(3)
    index.write(disk)
    index.release()
    del disk.files["d/a.txnindex"][40:]
    with pytest.raises(DiskError):
        index.between(disk, 0, 30)
    with pytest.raises(DiskError):
        index.hold(disk)


def played(disk: MemoryDisk) -> UnifiedLog:
    """Return a log of three segments. Each has markers, and the transactions of the second one start in the first."""
    log = opened(disk, CONFIG)
    producers = Producers(log)
    for who in (1, 2, 3):
        producers.send(who, 2)
    producers.end(1, commit=False)
    log.roll(NOW)
    producers.send(2, 1)
    producers.end(2, commit=False)
    producers.end(3, commit=True)
    log.roll(NOW)
    producers.send(1, 1)
    producers.end(1, commit=False)
    log.advance_high_watermark(log.log_end_offset)
    return log


@pytest.mark.clause("X-5", "X-13")
@pytest.mark.clause("LogLoaderTest.testFullTransactionIndexRecovery", "LogSegmentTest.testRecoverTransactionIndex")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["flipped", "emptied", "missing", "whole"])
def test_start_rebuilds_damaged_index(how: str, clean: bool) -> None:
    disk = MemoryDisk()
    log = played(disk)
    wanted = log.segments.aborted_between(0, log.log_end_offset)
    assert [entry[:3] for entry in wanted] == [(1, 0, 6), (2, 2, 8), (1, 10, 11)]
    stopped(log)
    paths = [path for path in disk.files if path.endswith(".txnindex")]
    assert len(paths) == 3
    before = {path: bytes(disk.files[path]) for path in paths}
    for path in paths:
        if how == "flipped":
            disk.files[path][9] ^= 2
        elif how == "emptied":
            disk.files[path].clear()
        elif how == "missing":
            del disk.files[path]
    again = opened(disk, CONFIG, clean=clean)
    assert again.segments.aborted_between(0, again.log_end_offset) == wanted
    stopped(again)
    assert {path: bytes(disk.files[path]) for path in paths} == before
    assert [transaction.producer_id for transaction in again.aborted_transactions(0, 12)] == [1, 2, 1]


def test_closed_segments_keep_no_entries_in_memory() -> None:
    disk = MemoryDisk()
    log = played(disk)
    assert [len(segment.aborted.entries) for segment in log.segments] == [0, 0, 1]
    assert [segment.aborted.count for segment in log.segments] == [1, 1, 1]
    stopped(log)
    again = opened(disk, CONFIG)
    assert [len(segment.aborted.entries) for segment in again.segments] == [0, 0, 1]
    again.truncate_to(9)
    assert [len(segment.aborted.entries) for segment in again.segments] == [0, 1]
    assert again.producers.open_transactions == {3: 4}
    assert not disk.exists(f"{DIRECTORY}/{log.bases[2]:020d}.txnindex")
