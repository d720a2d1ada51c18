"""Units of a pass: groups of segments, gaps between them, large records, its counts."""

from dataclasses import replace
from itertools import pairwise

import pytest

from reference_broker.log.cleaner.cleaning import SEGMENTS_PER_GROUP, cleanable
from reference_broker.log.cleaner.tests.cleaner_world import (
    COMPACTED,
    SyncingDisk,
    all_headers,
    cleaned,
    fresh,
    put,
    rolled,
    texts,
)
from reference_broker.log.tests.log_world import NOW, START_MS
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.records.batch import InvalidRecords, iterate
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build


def in_ten_segments() -> tuple[UnifiedLog, SyncingDisk]:
    log, disk = fresh(replace(COMPACTED, index_interval_bytes=0))
    for number in range(10, 40):
        put(log, (f"k{number}", "value"))
        if number % 3 == 0:
            log.roll(NOW)
    rolled(log)
    assert len(log.segments) == 11
    return log, disk


def sizes(**config: int) -> list[int]:
    """Return how many of the ten segments became each of the new ones. All records stay."""
    log, disk = in_ten_segments()
    bases = [*log.bases]
    log.config = replace(COMPACTED, index_interval_bytes=0, **{"segment_bytes": 1 << 20, **config})  # type: ignore[arg-type]
    cleaned(log, disk)
    assert len(texts(log)) == 30
    at = [bases.index(base) for base in log.bases]
    return [end - begin for begin, end in pairwise(at)]


@pytest.mark.clause("LogCleanerTest.testSegmentGrouping")
def test_segments_are_merged_within_byte_and_index_limits() -> None:
    log, _ = in_ten_segments()
    size, entries = log.segments[1].size_bytes, len(log.segments[1].offsets)
    assert entries == 2
    assert sizes() == [10]
    assert sizes(segment_bytes=1) == [1] * 10
    assert sizes(segment_index_bytes=8) == [1] * 10
    assert sizes(segment_bytes=3 * size + 1) == [3, 3, 3, 1]
    assert sizes(segment_index_bytes=3 * entries * 8 + 1) == [3, 3, 3, 1]
    assert SEGMENTS_PER_GROUP > 10


def test_emptied_segments_are_merged() -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1000))
    for number in range(3 * SEGMENTS_PER_GROUP):
        put(log, ("the same key", "value" * 170 + str(number)))
        rolled(log)
    cleaned(log, disk)
    assert log.bases == [0, 16, 32, 48]
    assert [(header.last_offset, header.record_count) for header in all_headers(log)] == [
        (0, 0),
        (15, 0),
        (31, 0),
        (47, 1),
    ]


@pytest.mark.clause(
    "LogCleanerTest.testSegmentGroupingWithSparseOffsets",
    "LogCleanerTest.testSegmentGroupingFollowingLoadOfZeroIndex",
)
@pytest.mark.parametrize(("last", "expected"), [(2**31 - 1, 1), (2**31, 2)])
def test_segments_with_distant_offsets_are_not_merged(last: int, expected: int) -> None:
    log, disk = fresh()
    put(log, ("a", "1"))
    log.roll(NOW)
    log.append_replicated(NOW, keyed(("b", "2"), last))
    rolled(log)
    log.advance_high_watermark(log.log_end_offset)
    cleaned(log, disk)
    assert len(log.bases) == expected + 1


def keyed(pair: tuple[str, str], offset: int) -> bytes:
    record = Record(timestamp_ms=START_MS, key=pair[0].encode(), value=pair[1].encode())
    return build([record], base_offset=offset, leader_epoch=0)


@pytest.mark.clause("LogCleanerTest.testCleaningBeyondMissingOffsets", "OffsetMapTest.testUpdateLatestOffset")
@pytest.mark.parametrize("ends", [(11,), (15, 30)])
def test_log_with_gaps_is_clean_up_to_active_segment(ends: tuple[int, ...]) -> None:
    """Other software leaves such gaps, and a follower of a log with a very wide gap does."""
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 20))
    for end in ends:
        for offset in range(log.log_end_offset, log.log_end_offset + 10):
            log.append_replicated(NOW, keyed((f"k{offset % 15}", str(offset)), offset))
        log.files.roll(NOW, end, log.log_start_offset, log.producers)
        log.append_replicated(NOW, keyed(("end", "of all"), end))
    log.advance_high_watermark(log.log_end_offset)
    cleaned(log, disk)
    assert log.cleaned_offset == ends[-1] == log.bases[-1]
    assert cleanable(log, NOW) is None


@pytest.mark.clause("LogCleanerTest.testBuildOffsetMapFakeLarge")
def test_pass_crosses_gap_wider_than_segment() -> None:
    log, disk = fresh()
    far = 2**31 + 9
    for offset, key in ((0, "a"), (1, "b"), (far, "a"), (far + 1, "c")):
        log.append_replicated(NOW, keyed((key, str(offset)), offset))
    rolled(log)
    log.advance_high_watermark(log.log_end_offset)
    cleaned(log, disk)
    assert texts(log) == [(1, "b", "1"), (far, "a", str(far)), (far + 1, "c", str(far + 1))]
    assert log.cleaned_offset == far + 2


@pytest.mark.clause("LogCleanerTest.testCleanSegmentsRetainingLastEmptyBatch")
def test_emptied_segment_keeps_last_batch_empty() -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 20))
    for _ in range(2):
        for number in range(10):
            put(log, (f"k{number}", "value"))
        log.roll(NOW)
    log.config = replace(log.config, segment_bytes=1)
    cleaned(log, disk)
    kept = [(header.last_offset, header.record_count) for header in all_headers(log) if header.base_offset < 10]
    assert kept == [(0, 0), (9, 0)], "the first one starts its leader epoch"
    assert log.bases == [0, 10, 20]


@pytest.mark.clause("LogCleanerTest.testLogCleanerStats")
def test_pass_counts_read_kept_and_written_records() -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 20))
    for number in range(5):
        put(log, (f"k{number % 2}", "value"))
    rolled(log)
    log.note_cleaned(2)
    before = log.size_bytes
    done = cleaned(log, disk)
    assert (done.end_offset, done.records, done.kept) == (5, 5, 2)
    assert done.written_bytes == log.size_bytes < before
    assert before <= done.read_bytes <= 2 * before


@pytest.mark.clause("LogCleanerTest.testLargeMessage", "LogCleanerTest.testMessageLargerThanMaxMessageSize")
def test_records_beyond_current_size_limit_are_cleaned() -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 24))
    for number in range(6):
        put(log, (f"k{number % 2}", f"{number}" * (1 << 18)))
    rolled(log)
    log.config = replace(log.config, max_message_bytes=100)
    cleaned(log, disk)
    assert [offset for offset, _, _ in texts(log)] == [4, 5]


@pytest.mark.clause(
    "LogCleanerTest.testMessageLargerThanMaxMessageSizeWithCorruptHeader",
    "LogCleanerTest.testCorruptMessageSizeLargerThanBytesAvailable",
)
@pytest.mark.parametrize("damage", ["magic", "end"])
def test_damaged_large_batch_is_detected_and_kept(damage: str) -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=1 << 24))
    for number in range(3):
        put(log, ("k", f"{number}" * (1 << 18)))
    rolled(log)
    file = disk.files[log.segments[0].path]
    if damage == "magic":
        file[16] = 0xFF
    else:
        del file[1024:]
    before = {path: bytes(content) for path, content in disk.files.items()}
    with pytest.raises(InvalidRecords):
        cleaned(log, disk)
    assert {path: bytes(content) for path, content in disk.files.items()} == before


@pytest.mark.parametrize(("number", "offset"), [(2, 3), (2, 1), (1, 2), (3, 7), (2, 258), (3, 0)])
def test_batch_with_damaged_base_offset_loses_no_other_batch(number: int, offset: int) -> None:
    log, disk = fresh(COMPACTED)
    for key in "abcdefgh":
        put(log, (key, "value"))
    rolled(log)
    file = disk.files[log.segments[0].path]
    position = [each for each, _ in iterate(file)][number]
    file[position : position + 8] = offset.to_bytes(8, "big")
    before = bytes(file)
    with pytest.raises(InvalidRecords, match="begins at"):
        cleaned(log, disk)
    assert bytes(disk.files[log.segments[0].path]) == before


@pytest.mark.clause("LogCleanerTest.testCleaningWithUnkeyedMessages")
def test_records_without_keys_are_removed() -> None:
    log, disk = fresh(replace(COMPACTED, cleanup_policy="delete"))
    for codec in (Compression.NONE, Compression.GZIP):
        records = [Record(timestamp_ms=START_MS, value=b"no key"), Record(timestamp_ms=START_MS, key=b"a", value=b"1")]
        log.append(NOW, build(records, compression=codec), 0)
    log.config = COMPACTED
    put(log, ("b", "1"))
    rolled(log)
    cleaned(log, disk)
    assert [(key, value) for _, key, value in texts(log)] == [("a", "1"), ("b", "1")]
