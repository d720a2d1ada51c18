"""Passes over transactions: aborted records are removed, then their markers, and read_committed consumers see the same
as
before."""

import pytest

from reference_broker.log.cleaner.cleaning import cleanable
from reference_broker.log.cleaner.retention import BYTES_PER_KEY
from reference_broker.log.cleaner.tests.cleaner_world import (
    COMPACTED,
    all_headers,
    cleaned,
    contents,
    dirty,
    fresh,
    put,
    rolled,
)
from reference_broker.log.tests.log_world import NOW, START_MS, at, opened
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.records.control import ControlType, control_record
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker


class TransactionalLog:
    """A log and its producers, each with its next sequence."""

    def __init__(self) -> None:
        self.log, self.disk = fresh()
        self.next: dict[int, int] = {}

    def put(self, producer_id: int, *keys: str) -> None:
        """Append one batch of a transaction, whose values are their offsets. Producer 0 has no transactions."""
        end = self.log.log_end_offset
        pairs = [(key, f"{end + index}") for index, key in enumerate(keys)]
        if producer_id == 0:
            put(self.log, *pairs)
        else:
            sequence = self.next.get(producer_id, 0)
            self.next[producer_id] = sequence + len(keys)
            put(self.log, *pairs, producer=(producer_id, sequence), transactional=True)

    def end(self, producer_id: int, *, commit: bool) -> None:
        marker = build_marker(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS
        )
        self.log.append(NOW, marker, 0, origin=BatchOrigin.BROKER)
        self.log.advance_high_watermark(self.log.log_end_offset)

    def clean(self, now: Now = NOW, *, again: bool = False) -> None:
        """Run a pass. ``again``: also over the clean part."""
        rolled(self.log)
        if again:
            self.log.note_cleaned(0)
        cleaned(self.log, self.disk, now)

    @property
    def offsets(self) -> list[int]:
        """Return the offsets of all records and markers."""
        return [record.offset for _, record in contents(self.log)]

    @property
    def batches(self) -> list[int]:
        """Return the ends of all batches, the empty ones too."""
        return [header.last_offset for header in all_headers(self.log)]


def committed(log: UnifiedLog) -> dict[str, str]:
    """Return the newest value of each key, as a read_committed consumer finds it with the log's aborted
    transactions."""
    aborted = sorted(
        (
            (transaction.first_offset, transaction.producer_id)
            for transaction in log.aborted_transactions(0, log.log_end_offset)
        ),
        reverse=True,
    )
    ongoing: set[int] = set()
    found: dict[str, str] = {}
    for header, record in contents(log):
        while aborted and aborted[-1][0] <= header.last_offset:
            ongoing.add(aborted.pop()[1])
        if header.is_control:
            if record.key == control_record(ControlType.ABORT, b"", 0).key:
                ongoing.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ongoing):
            found[(record.key or b"").decode()] = (record.value or b"").decode()
    return found


STEPS = "1:ab 2:bc 1:cd 1! 2! 1:bc 1- 2:de roll 1:ef 1! 2- 2:fg 2! 0:ab 1:xy roll 2:ay 3:zz 2- 3! 1- 0:q"
"""``1:ab``: producer 1 writes the keys a and b. ``1!``: it commits. ``1-``: it aborts."""


@pytest.mark.clause(
    "X-11",
    "LogCleanerTest.testMultiPassSegmentCleaningWithAbortedTransactions",
    "LogCleanerTest.testBasicTransactionAwareCleaning",
)
@pytest.mark.parametrize("keys", [1, 3, 100])
def test_read_committed_result_is_unchanged_by_each_pass(keys: int) -> None:
    world = TransactionalLog()
    log = world.log
    for step in STEPS.split():
        if step == "roll":
            log.roll(NOW)
        elif step[1] == ":":
            world.put(int(step[0]), *step[2:])
        else:
            world.end(int(step[0]), commit=step[1] == "!")
    rolled(log)
    expected = committed(log)
    assert expected == {"a": "20", "b": "21", "c": "4", "d": "5", "e": "13", "f": "17", "g": "18", "z": "27", "q": "31"}
    passes = 0
    while cleanable(log, NOW) is not None:
        cleaned(log, world.disk, at(2000 * passes), keys * BYTES_PER_KEY)
        passes += 1
        assert committed(log) == expected
        assert all(producer.current_txn_first_offset < 0 for producer in log.producers.by_id.values())
    for late in (10, 20):
        log.note_cleaned(0)
        cleaned(log, world.disk, at(10_000 * late))
        assert committed(log) == expected
    values = [(record.value or b"").decode() for header, record in contents(log) if not header.is_control]
    assert sorted(values) == sorted(expected.values())


@pytest.mark.clause(
    "LogCleanerTest.testCleanWithTransactionsSpanningSegments",
    "LogCleanerTest.testCommittedTransactionSpanningSegments",
    "LogCleanerTest.testAbortedTransactionSpanningSegments",
)
def test_transactions_over_several_segments_are_cleaned_once_completed() -> None:
    world = TransactionalLog()
    world.put(1, "a", "b")
    world.put(3, "b", "c")
    world.put(2, "c", "d")
    rolled(world.log)
    world.put(2, "e", "f")
    world.end(2, commit=False)
    assert cleanable(world.log, NOW) is None, "transactions are open"
    world.end(3, commit=True)
    world.end(1, commit=False)
    rolled(world.log)
    assert dirty(world.log).end_offset == world.log.log_end_offset
    world.clean()
    assert world.offsets == [2, 3, 8, 9, 10]
    for time in (2000, 4000):
        world.clean(at(time), again=True)
        assert world.offsets == [2, 3, 8, 9, 10], "of each transaction there is a batch, empty or not"


@pytest.mark.clause(
    "X-11", "LogCleanerTest.testCommitMarkerRemoval", "LogCleanerTest.testDeletedBatchesWithNoMessagesRead"
)
def test_commit_marker_is_removed_without_batches_of_transaction() -> None:
    world = TransactionalLog()
    world.put(0, "z")
    world.put(1, "a")
    world.put(1, "b", "c")
    world.end(1, commit=True)
    world.put(1, "b")
    world.end(1, commit=True)
    world.clean(at(0))
    assert world.offsets == [0, 1, 3, 4, 5, 6]
    world.put(1, "a", "c")
    world.end(1, commit=True)
    world.clean(at(1))
    for time in (1000, 1999):
        world.clean(at(time), again=True)
        assert world.offsets == [0, 4, 5, 6, 7, 8, 9], "it has its delete horizon"
    world.clean(at(2000), again=True)
    assert world.offsets == [0, 5, 6, 7, 8, 9]


@pytest.mark.clause(
    "LogCleanerTest.testCommitMarkerRetentionWithEmptyBatch",
    "LogCleanerTest.testAbortMarkerRetentionWithEmptyBatch",
    "LogCleanerTest.testAbortMarkerRemoval",
)
def test_markers_stay_while_empty_batch_of_transaction_stays() -> None:
    """The batch has the producer's last sequence."""
    for commit, readers in ((True, []), (False, [(1, 1)])):
        world = TransactionalLog()
        world.put(0, "z")
        world.put(1, "a", "b")
        world.put(0, "a", "b")
        world.end(1, commit=commit)
        for time in (0, 2000, 4000):
            world.clean(at(time), again=True)
            assert (world.offsets, world.batches) == ([0, 3, 4, 5], [0, 2, 4, 5])
            aborted = world.log.aborted_transactions(0, 10)
            assert [(each.producer_id, each.first_offset) for each in aborted] == readers
        world.put(1, "c")
        world.end(1, commit=True)
        world.clean(at(6000), again=True)
        assert (world.offsets, world.batches) == ([0, 3, 4, 5, 6, 7], [0, 4, 5, 6, 7])
        world.clean(at(8000), again=True)
        assert 5 in world.offsets, "readers may be on their way to it"
        world.clean(at(9000), again=True)
        assert world.offsets == [0, 3, 4, 6, 7]
        assert world.log.aborted_transactions(0, 10) == []


@pytest.mark.clause("LogCleanerTest.testCleanEmptyControlBatch")
def test_removed_marker_leaves_empty_batch_for_producer() -> None:
    world = TransactionalLog()
    world.put(0, "z")
    world.end(1, commit=True)
    world.put(0, "a")
    world.put(0, "b")
    world.clean(at(0))
    for time in (2000, 4000):
        world.clean(at(time), again=True)
        assert (world.offsets, world.batches) == ([0, 2, 3], [0, 1, 2, 3])


@pytest.mark.clause("LogCleanerTest.testEmptyBatchRemovalWithSequenceReuse")
def test_producer_restarting_at_zero_leaves_one_empty_batch() -> None:
    """As Kafka's group coordinator does."""
    world = TransactionalLog()
    world.put(0, "z")
    for key in "ab":
        sequence = build(
            [Record(timestamp_ms=START_MS, key=key.encode(), value=b"1")],
            base_offset=world.log.log_end_offset,
            leader_epoch=0,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        world.log.append_replicated(NOW, sequence)
        world.end(1, commit=True)
    world.put(0, "a")
    world.put(0, "b")
    for time in (0, 2000, 4000):
        world.clean(at(time), again=True)
    assert world.offsets == [0, 4, 5, 6]
    assert world.batches == [0, 3, 4, 5, 6]


@pytest.mark.clause("LogCleanerTest.testCleaningWithKeysConflictingWithTxnMarkerKeys")
def test_record_with_key_of_marker_supersedes_no_marker() -> None:
    world = TransactionalLog()
    world.put(1, "a")
    world.end(1, commit=True)
    key = control_record(ControlType.COMMIT, b"", 0).key
    data = build(
        [Record(timestamp_ms=START_MS, key=key, value=b"v")],
        producer_id=2,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    world.log.append(NOW, data, 5)
    world.end(2, commit=True)
    world.clean()
    assert world.offsets == world.batches == [0, 1, 2, 3]


@pytest.mark.clause("LogCleanerTest.testDuplicateCheckAfterCleaning")
def test_duplicates_are_detected_after_pass_and_restart() -> None:
    log, disk = fresh()

    def sent(producer_id: int, keys: str) -> tuple[bool, int, int]:
        records = [Record(timestamp_ms=START_MS, key=key.encode(), value=b"v") for key in keys]
        data = build(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        appended = log.append(NOW, data, 0)
        log.advance_high_watermark(log.log_end_offset)
        return appended.duplicate, appended.first_offset, appended.last_offset

    def restarted() -> UnifiedLog:
        log.close_cleanly()
        return opened(disk, COMPACTED)

    first = [sent(1, "abc"), sent(2, "cad"), sent(3, "ad")]
    assert first == [(False, 0, 2), (False, 3, 5), (False, 6, 7)]
    keys: list[tuple[str, str]] = []
    for more in ("", "b"):
        if more:
            sent(4, more)
        rolled(log)
        cleaned(log, disk)
        log = restarted()
        assert [sent(1, "abc"), sent(3, "ad"), sent(2, "cad")] == [(True, 0, 2), (True, 6, 7), (True, 3, 5)]
        assert {each: known.last_sequence for each, known in log.producers.by_id.items() if each < 4} == {
            1: 2,
            2: 2,
            3: 1,
        }
        keys.append(("".join((record.key or b"").decode() for _, record in contents(log)), more))
    assert keys == [("bcad", ""), ("cadb", "b")]
