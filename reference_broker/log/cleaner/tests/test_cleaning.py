"""The records that a pass keeps and removes, as Kafka's LogCleaner does."""

from dataclasses import replace

import pytest

from reference_broker.log.cleaner.cleaning import Cleaning, CleaningFailed, Overtaken, cleanable
from reference_broker.log.cleaner.retention import BYTES_PER_KEY
from reference_broker.log.cleaner.tests.cleaner_world import (
    BUFFER_BYTES,
    COMPACTED,
    all_headers,
    cleaned,
    contents,
    dirty,
    fresh,
    put,
    rolled,
    sync_all,
    texts,
)
from reference_broker.log.tests.log_world import DIRECTORY, NOW, START_MS, at, offset_for_timestamp, opened
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.records.batch import (
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    InvalidRecords,
    checksum,
    read_header,
)
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker


def three_rounds(log: UnifiedLog) -> None:
    for number in range(3):
        for key in "abc":
            put(log, (key, f"{key}{number}"))
    rolled(log)


@pytest.mark.clause(
    "LogCleanerTest.testCleanSegments",
    "LogCleanerTest.testBuildOffsetMap",
    "LogCleanerTest.testCleaningWithUncleanableSection",
)
def test_newest_record_of_each_key_keeps_offset_and_timestamp() -> None:
    log, disk = fresh()
    put(log, ("a", "1"), ("b", "1"), now=at(5))
    put(log, ("a", "2"), now=at(6))
    rolled(log)
    put(log, ("b", "2"), now=at(7))  # In the active segment: it supersedes nothing yet.
    done = cleaned(log, disk, at(8))
    assert texts(log) == [(1, "b", "1"), (2, "a", "2"), (3, "b", "2")]
    assert [record.timestamp_ms - START_MS for _, record in contents(log)] == [5, 6, 7]
    assert (done.records, done.kept, done.end_offset) == (3, 2, 3)
    assert offset_for_timestamp(log, START_MS + 5).offset == 1  # type: ignore[union-attr]
    assert cleanable(log, NOW) is None


@pytest.mark.clause("LogCleanerParameterizedIntegrationTest.cleanerTest")
@pytest.mark.parametrize("codec", list(Compression))
def test_compressed_batches_are_recompressed(codec: Compression) -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 20))
    put(log, *((f"k{number % 7}", "x" * number) for number in range(50)), codec=codec)
    put(log, ("k3", "end"), codec=codec)
    rolled(log)
    cleaned(log, disk)
    assert [offset for offset, _, _ in texts(log)] == [43, 44, 46, 47, 48, 49, 50]
    assert [header.compression for header in all_headers(log)] == [codec, codec]
    assert all_headers(log)[0].last_offset == 49


def test_small_segments_are_merged() -> None:
    log, disk = fresh()
    three_rounds(log)
    before = len(log.segments)
    assert before >= 3
    cleaned(log, disk)
    assert len(log.segments) == 3
    assert [segment.next_offset for segment in log.segments[:-1]] == log.bases[1:]
    names = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    assert names == [f"{base:020d}.log" for base in log.bases]
    log.config = replace(COMPACTED, segment_bytes=1000)
    put(log, ("z", "1"))
    rolled(log)
    cleaned(log, disk)
    assert log.bases == [0, 10]
    assert [value for _, _, value in texts(log)] == ["a2", "b2", "c2", "1"]


@pytest.mark.clause("LogCleanerTest.testCleaningWithDeletes", "LogCleanerTest.testCleanTombstone")
def test_tombstone_is_kept_for_delete_retention_after_first_cleaning() -> None:
    log, disk = fresh()
    put(log, ("a", "1"), now=at(1))
    put(log, ("a", None), ("b", "1"), now=at(2))
    rolled(log)
    cleaned(log, disk, at(10_000))
    assert texts(log) == [(1, "a", None), (2, "b", "1")]
    header = contents(log)[0][0]
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp_ms == START_MS + 11_000
    assert [record.timestamp_ms - START_MS for _, record in contents(log)] == [2, 2]
    assert header.max_timestamp_ms == START_MS + 2
    put(log, ("c", "1"), now=at(10_500))
    rolled(log)
    cleaned(log, disk, at(10_999))
    assert texts(log)[0] == (1, "a", None)
    put(log, ("c", "2"), now=at(10_999))
    rolled(log)
    cleaned(log, disk, at(11_000))
    assert [key for _, key, _ in texts(log)] == ["b", "c"]


@pytest.mark.clause(
    "LogCleanerManagerTest.testCleanableOffsetsForNone",
    "LogCleanerManagerTest.testCleanableOffsetsActiveSegment",
)
def test_active_segment_and_uncommitted_records_are_not_cleaned() -> None:
    log, _ = fresh()
    put(log, ("a", "1"))
    assert cleanable(log, NOW) is None
    log.roll(NOW)
    log.append(NOW, b"".join([]) or _batch("a"), 0)
    log.roll(NOW)
    assert log.high_watermark == 1
    part = dirty(log)
    assert (part.first_dirty_offset, part.end_offset) == (0, 1)


def _batch(key: str) -> bytes:
    return build([Record(timestamp_ms=START_MS, key=key.encode(), value=b"x")])


@pytest.mark.clause(
    "LogCleanerManagerTest.testCleanableOffsetsForTime",
    "LogCleanerManagerTest.testCleanableOffsetsForShortTime",
    "LogCleanerIntegrationTest.testMaxLogCompactionLag",
    "LogCleanerLagIntegrationTest.cleanerTest",
    "LogSegmentTest.testGetFirstBatchTimestamp",
)
def test_minimum_and_maximum_compaction_lag() -> None:
    log, disk = fresh(replace(COMPACTED, min_compaction_lag_ms=100))
    put(log, ("a", "1"), now=at(0))
    rolled(log)
    put(log, ("a", "2"), now=at(50))
    rolled(log, at(1000))
    assert cleanable(log, at(99)) is None
    assert dirty(log, at(120)).end_offset == 1
    assert dirty(log, at(160)).end_offset == 2
    log.config = replace(COMPACTED, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
    assert not dirty(log, at(999)).is_due(1.0)
    assert dirty(log, at(1001)).is_due(1.0)
    cleaned(log, disk, at(1001))
    log.config = replace(COMPACTED, max_compaction_lag_ms=500)
    put(log, ("a", "3"), now=at(1001))
    assert not log.roll_if_due(at(1400))
    assert log.roll_if_due(at(1600))


@pytest.mark.clause("LogCleanerTest.testLogToClean", "LogCleanerTest.testLogToCleanWithUncleanableSection")
def test_dirty_ratio_is_of_cleanable_part() -> None:
    log, disk = fresh()
    three_rounds(log)
    cleaned(log, disk)
    clean = sum(segment.size_bytes for segment in log.segments)
    put(log, ("a", "x" * 30))
    size = log.segments[-1].size_bytes
    rolled(log)
    part = dirty(log)
    assert (part.clean_bytes, part.dirty_bytes) == (clean, size)
    assert part.is_due(size / (clean + size) - 0.01)
    assert not part.is_due(size / (clean + size))


@pytest.mark.clause("LogCleanerTest.testPartialSegmentClean", "LogCleanerTest.testBuildPartialOffsetMap")
def test_full_offset_map_leaves_rest_to_next_pass() -> None:
    log, disk = fresh()
    for number in range(30):
        put(log, (f"k{number}", "1"), (f"k{number}", "2"))
    rolled(log)
    passes = 0
    while cleanable(log, NOW):
        done = cleaned(log, disk, buffer_bytes=4 * BYTES_PER_KEY)
        assert done.map_used_percent <= 100
        passes += 1
    assert passes == 8
    assert [value for _, _, value in texts(log)] == ["2"] * 30
    assert log.cleaned_offset == 60


@pytest.mark.clause("LogCleanerTest.testLogCleanerRetainsProducerLastSequence")
def test_last_batch_of_producer_is_kept_empty() -> None:
    log, disk = fresh()
    put(log, ("a", "1"), ("a", "2"), producer=(7, 0))
    put(log, ("a", "3"))
    put(log, ("a", "4"))
    rolled(log)
    cleaned(log, disk)
    assert texts(log) == [(3, "a", "4")]
    header = next(header for header in all_headers(log) if header.producer_id == 7)
    assert (header.record_count, header.last_sequence, header.base_timestamp_ms) == (0, 1, -1)
    log.close_cleanly()
    again = opened(disk, COMPACTED)
    assert again.producers.by_id[7].last_sequence == 1
    put(again, ("a", "5"), producer=(7, 2))


def test_leader_epochs_are_recovered_from_cleaned_batches() -> None:
    log, disk = fresh()
    for number in range(8):
        put(log, ("a", str(number)), epoch=number // 2)
    rolled(log)
    cleaned(log, disk)
    assert texts(log) == [(7, "a", "7")]
    known = (log.epochs.epochs[:], log.epochs.starts[:])
    assert known == ([0, 1, 2, 3], [0, 2, 4, 6])
    disk.delete(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = opened(disk, COMPACTED, clean=False)
    assert (again.epochs.epochs, again.epochs.starts) == known


@pytest.mark.clause(
    "LogCleanerTest.testLogCleanerRetainsLastSequenceEvenIfTransactionAborted",
    "LogCleanerTest.testAbortMarkerRemoval",
    "LogCleanerTest.testAbortMarkerRetentionWithEmptyBatch",
    "LogCleanerTest.testBasicTransactionAwareCleaning",
)
def test_aborted_records_are_removed_then_their_marker() -> None:
    log, disk = fresh()
    put(log, ("a", "1"))
    put(log, ("a", "aborted"), producer=(7, 0), transactional=True)
    _marker(log, commit=False)
    put(log, ("b", "1"), producer=(8, 0))
    put(log, ("b", "committed"), producer=(9, 0), transactional=True)
    _marker(log, producer_id=9, commit=True)
    rolled(log)
    assert len(log.aborted_transactions(0, 10)) == 1
    cleaned(log, disk, at(0))
    assert [(key, value) for _, key, value in texts(log) if value and key in "ab"] == [("a", "1"), ("b", "committed")]
    assert _markers(log) == [2, 5]
    assert len(log.aborted_transactions(0, 10)) == 1
    put(log, ("c", "1"), producer=(7, 1))  # The producer's last batch is another one now.
    rolled(log)
    cleaned(log, disk, at(1))
    assert not any(
        header.is_transactional and header.producer_id == 7 and not header.is_control for header in all_headers(log)
    )
    put(log, ("c", "2"))
    rolled(log)
    cleaned(log, disk, at(2))
    assert _markers(log) == [2, 5]  # Of nothing now, but readers may still need it.
    assert log.aborted_transactions(0, 10) == []
    put(log, ("c", "3"))
    rolled(log)
    cleaned(log, disk, at(1003))
    assert _markers(log) == [5]
    assert [(key, value) for _, key, value in texts(log) if key in "ab"][-1] == ("b", "committed")


def _marker(log: UnifiedLog, producer_id: int = 7, *, commit: bool) -> None:
    marker = build_marker(
        commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS
    )
    log.append(NOW, marker, 0, origin=BatchOrigin.BROKER)
    log.advance_high_watermark(log.log_end_offset)


def _markers(log: UnifiedLog) -> list[int]:
    return [header.base_offset for header in all_headers(log) if header.is_control and header.record_count]


@pytest.mark.clause("LogCleanerManagerTest.testUndecidedTransactionalDataNotCleanable")
def test_open_transaction_limits_cleaning() -> None:
    log, _ = fresh()
    put(log, ("a", "1"))
    rolled(log)
    put(log, ("a", "2"), producer=(7, 0), transactional=True)
    rolled(log)
    put(log, ("a", "3"))
    rolled(log)
    assert dirty(log).end_offset == 1


def test_damaged_batch_is_detected_and_not_rewritten() -> None:
    log, disk = fresh()
    three_rounds(log)
    disk.files[log.segments[0].path][80] ^= 1
    before = {path: bytes(content) for path, content in disk.files.items()}
    with pytest.raises(InvalidRecords):
        cleaned(log, disk)
    assert {path: bytes(content) for path, content in disk.files.items()} == before


@pytest.mark.clause(
    "LogCleanerTest.testCleanSegmentsWithConcurrentSegmentDeletion",
    "LogCleanerManagerTest.testConcurrentLogCleanupAndLogTruncation",
)
@pytest.mark.parametrize("what", ["truncate", "delete", "restart"])
def test_pass_ends_if_log_is_truncated(what: str) -> None:
    log, disk = fresh()
    three_rounds(log)
    put(log, ("a", "end"))
    steps = Cleaning(log, dirty(log), NOW, BUFFER_BYTES).run()
    next(step for step in steps if step.sync)
    if what == "truncate":
        log.truncate_to(4)
    elif what == "delete":
        log.delete_records_before(9)
    else:
        log.truncate_fully_and_start_at(50, NOW)
    expected = texts(log)
    with pytest.raises(Overtaken):
        list(steps)
    assert texts(log) == expected
    assert not [name for name in disk.list(DIRECTORY) if ".cleaned" in name or ".swap" in name]
    sync_all(log, disk)
    assert texts(opened(disk, COMPACTED, clean=False)) == expected


def test_full_disk_loses_no_records() -> None:
    log, disk = fresh()
    three_rounds(log)
    expected = texts(log)
    disk.fail_after = 1
    with pytest.raises(CleaningFailed, match="made to fail"):
        cleaned(log, disk)
    disk.fail_after = None
    assert texts(log) == expected
    cleaned(log, disk)
    assert [value for _, _, value in texts(log)] == ["a2", "b2", "c2"]


@pytest.mark.clause(
    "LogCleanerManagerTest.testUpdateCheckpointsShouldAddOffsetToPartition",
    "LogCleanerManagerTest.testMaybeTruncateCheckpointShouldTruncateData",
)
def test_truncation_below_cleaner_checkpoint_lowers_it() -> None:
    log, disk = fresh()
    three_rounds(log)
    cleaned(log, disk)
    assert log.cleaned_offset == 9
    rows = bytes(disk.files[f"{DIRECTORY}/cleaner-offset-checkpoint"]).decode().split("\n")
    assert rows == ["0", "1", "events 0 9", ""]
    log.truncate_to(8)
    assert log.cleaned_offset <= 8
    assert opened(disk, COMPACTED).cleaned_offset == log.cleaned_offset
    log.truncate_fully_and_start_at(100, NOW)
    assert log.cleaned_offset == 0


@pytest.mark.clause("LogCleanerManagerTest.testDirtyOffsetResetIfLargerThanEndOffset")
def test_cleaner_checkpoint_beyond_log_is_ignored() -> None:
    log, disk = fresh()
    three_rounds(log)
    log.note_cleaned(1000)
    assert opened(disk, COMPACTED).cleaned_offset == 0


@pytest.mark.thorough
def test_slices_are_short() -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 24))
    put(log, *((f"k{number}", "value") for number in range(10_500)))
    put(log, *((f"k{number}", "value") for number in range(10_500)))
    rolled(log)
    cleaning = Cleaning(log, dirty(log), NOW, 1 << 24)
    steps = list(cleaning.run())
    assert len(steps) >= 2 * 7  # 3,000 records a slice, each read twice.
    assert max(step.io_bytes for step in steps) <= 1 << 20
    assert len(texts(log)) == 10_500
    assert disk.exists(log.segments[0].path)


def test_readers_between_slices_see_newest_records() -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=2000))
    for number in range(200):
        put(log, (f"k{number % 9}", str(number)))
    rolled(log)
    wanted = {f"k{number % 9}": str(number) for number in range(200)}
    for step in Cleaning(log, dirty(log), NOW, BUFFER_BYTES).run():
        disk.sync(step.sync)
        assert {key: value for _, key, value in texts(log)} == wanted
        for offset in range(200):
            assert log.read(offset, 1)


def test_records_outside_offsets_of_batch_are_damage() -> None:
    """The records were written before the topic was compacted: they would supersede later records."""
    log, disk = fresh(replace(COMPACTED, cleanup_policy="delete"))
    plain = build([Record(timestamp_ms=START_MS, key=b"a", value=b"1")])
    at_nine = plain[:HEADER_BYTES] + shifted_offset(plain[HEADER_BYTES:], 9)
    header = read_header(at_nine)
    at_nine = at_nine[:17] + checksum(at_nine[CRC_FROM : header.size_bytes]).to_bytes(4, "big") + at_nine[21:]
    log.append(NOW, at_nine, 0)
    log.config = COMPACTED
    put(log, ("a", "2"))
    rolled(log)
    with pytest.raises(InvalidRecords):
        cleaned(log, disk)
    with pytest.raises(InvalidRecords, match="offset"):
        log.append(NOW, at_nine, 0)


def shifted_offset(record: bytes, offset_delta: int) -> bytes:
    """Length, attributes and timestamp delta take one byte each here."""
    return record[:3] + bytes([2 * offset_delta]) + record[4:]
