"""Log end, high watermark, read limits, and appends of followers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.log.checkpoints import read_partition_metadata
from reference_broker.log.config import LogConfig
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.log.tests.log_world import (
    DIRECTORY,
    NOW,
    START_MS,
    all_bytes,
    at,
    batch_of,
    headers_of,
    offset_of_max_timestamp,
    opened,
)
from reference_broker.log.unified_log import RecordsRefused, UnexpectedOffset, UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_records


@pytest.mark.clause(
    "UnifiedLogTest.testHighWatermarkMaintenance",
    "UnifiedLogTest.testMaybeUpdateHighWatermarkAsFollower",
)
def test_high_watermark_moves_forward_and_is_truncated_with_log() -> None:
    log = opened(MemoryDisk())
    log.append(NOW, batch_of(3), 0)
    assert log.high_watermark == 0
    for wanted, moved, reached in ((1, True, 1), (1, False, 1), (5, True, 3), (4, False, 3), (2, False, 3)):
        assert (log.advance_high_watermark(wanted), log.high_watermark) == (moved, reached)
    log.append_replicated(NOW, batch_of(3, base_offset=3, leader_epoch=0))
    log.advance_high_watermark(6)
    log.truncate_to(3)
    assert log.high_watermark == 3
    log.append(NOW, batch_of(3), 0)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 3, 6)
    log.truncate_fully_and_start_at(4, NOW)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (4, 4, 4)


@pytest.mark.clause(
    "UnifiedLogTest.testFetchUpToLogEndOffset",
    "UnifiedLogTest.testFetchUpToHighWatermark",
    "UnifiedLogTest.testHighWatermarkMetadataUpdatedAfterSegmentRoll",
    "LocalLogTest.testWhenFetchOffsetHigherThanMaxOffset",
)
def test_read_ends_at_high_watermark_also_after_roll() -> None:
    log = opened(MemoryDisk())

    def found(offset: int, end: int | None = None) -> list[int]:
        return [header.base_offset for header in headers_of(log.read(offset, 1 << 20, end))]

    log.append(NOW, batch_of(3), 0)
    log.append(NOW, batch_of(2), 0)
    for offset in range(6):
        assert found(offset) == []
        assert found(offset, log.log_end_offset) == [base for base, last in ((0, 2), (3, 4)) if last >= offset]
    log.advance_high_watermark(3)
    assert [found(offset) for offset in range(6)] == [[0], [0], [0], [], [], []]
    log.advance_high_watermark(5)
    log.roll(NOW)
    assert [found(offset) for offset in (0, 3, 4, 5)] == [[0, 3], [3], [3], []]
    log.append(NOW, batch_of(3), 0)
    assert found(5) == []


@pytest.mark.clause("UnifiedLogTest.testSizeBasedLogRoll")
def test_segments_roll_at_size_limit() -> None:
    size = len(batch_of(1))
    log = opened(MemoryDisk(), LogConfig(segment_bytes=5 * size))
    for count in range(1, 17):
        log.append(NOW, batch_of(1), 0)
        assert len(log.segments) == (count + 4) // 5
    assert log.bases == [0, 5, 10, 15]


@pytest.mark.clause("UnifiedLogTest.testAppendWithNoTimestamp", "UnifiedLogTest.testTimeBasedLogRollDuringAppend")
def test_segments_without_timestamps_age_by_clock() -> None:
    """As long as one of the two compared batches has no timestamp."""
    log = opened(MemoryDisk(), LogConfig(segment_ms=1000))

    def append(ms: int, timestamp_ms: int) -> int:
        log.append(at(ms), build([Record(timestamp_ms=timestamp_ms, value=b"v")]), 0)
        return len(log.segments)

    assert [append(ms, -1) for ms in (0, 1000, 1001, 2001, 2002)] == [1, 1, 2, 2, 3]
    assert append(3002, START_MS + 9000) == 3, "its first batch has no timestamp"
    assert append(3003, START_MS + 9000) == 4
    assert append(9999, START_MS + 10_000) == 4, "both have one"
    assert append(9999, START_MS + 10_001) == 5
    assert [segment.max_timestamp_ms for segment in log.segments][:2] == [-1, -1]
    assert offset_of_max_timestamp(log).offset == 8


@pytest.mark.clause("UnifiedLogTest.testAppendMessageWithNullPayload")
def test_null_value() -> None:
    log = opened(MemoryDisk())
    log.append(NOW, build([Record(timestamp_ms=START_MS)]), 0)
    assert [(record.offset, record.key, record.value) for record in read_records(all_bytes(log))] == [(0, None, None)]


@pytest.mark.clause("UnifiedLogTest.testCompressedMessages", "LogSegmentTest.testReadFromMiddleOfBatch")
def test_compressed_batch_is_read_whole_from_each_offset() -> None:
    log = opened(MemoryDisk(), LogConfig(segment_bytes=110))
    for _ in range(2):
        log.append(NOW, batch_of(2, compression=Compression.GZIP), 0)
    assert len(log.segments) == 2
    for offset, first in ((0, 0), (1, 0), (2, 2), (3, 2)):
        assert next(read_records(log.read(offset, 1, 4))).offset == first


@pytest.mark.clause(
    "UnifiedLogTest.testReadOutOfRange",
    "UnifiedLogTest.testLoadEmptyLog",
    "LogSegmentTest.testReadOnEmptySegment",
    "LogSegmentTest.testReadAfterLast",
)
def test_log_of_empty_file_starts_at_offset_of_name() -> None:
    disk = MemoryDisk()
    for suffix in (".log", ".index"):
        disk.write(f"{DIRECTORY}/{1024:020d}{suffix}", b"")
    log = opened(disk)
    assert (log.log_start_offset, log.log_end_offset) == (1024, 1024)
    assert log.append(NOW, batch_of(1), 0).first_offset == 1024
    assert log.read(1025, 1000, 1025) == b""
    for offset in (0, 1026):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1000)


def with_gaps(disk: MemoryDisk) -> tuple[UnifiedLog, list[int]]:
    """Return a follower's log of a leader whose log was cleaned, and the offsets of its records."""
    offsets = [*range(50), *range(50, 200, 7)]
    log = opened(disk, LogConfig(segment_bytes=200, index_interval_bytes=100))
    for offset in offsets:
        log.append_replicated(NOW, batch_of(1, base_offset=offset, leader_epoch=0))
    return log, offsets


@pytest.mark.clause(
    "UnifiedLogTest.testAppendAndReadWithNonSequentialOffsets",
    "UnifiedLogTest.testReadWithMinMessage",
    "LogSegmentTest.testReadBeforeFirstOffset",
    "LogSegmentTest.testReadFromGap",
)
def test_read_in_gap_returns_next_record() -> None:
    log, offsets = with_gaps(MemoryDisk())
    assert not set(log.bases) <= set(offsets), "some segments start in a gap"
    for offset in range(offsets[-1] + 1):
        following = next(each for each in offsets if each >= offset)
        for limit in (1, 100, 100_000):
            assert headers_of(log.read(offset, limit, log.log_end_offset))[0].base_offset == following
        assert log.read(offset, 1, log.log_end_offset, at_least_one=False) == b""


@pytest.mark.clause("UnifiedLogTest.testReadAtLogGap")
def test_read_after_last_batch_continues_in_next_segment() -> None:
    log, _ = with_gaps(MemoryDisk())
    first, second = log.segments[:2]
    first.truncate(log.disk, headers_of(log.read(0, 1, 200))[0].size_bytes, 1)
    assert second.base_offset > 1
    assert headers_of(log.read(1, 1, 200))[0].base_offset == second.base_offset


@pytest.mark.clause("UnifiedLogTest.testMessageSizeCheckInAppendAsFollower", "LogSegmentTest.testNextOffsetCalculation")
def test_follower_accepts_batches_of_any_size() -> None:
    log = opened(MemoryDisk(), LogConfig(max_message_bytes=70, segment_bytes=100))
    small, large = batch_of(1), batch_of(4, base_offset=5, leader_epoch=0)
    assert len(small) > 70
    log.append_replicated(NOW, large)
    assert log.log_end_offset == 9
    assert len(large) > 100
    with pytest.raises(RecordsRefused):
        log.append(NOW, small, 0)


@pytest.mark.clause(
    "UnifiedLogTest.testAppendBelowExpectedOffsetThrowsException",
    "UnifiedLogTest.testAppendEmptyLogBelowLogStartOffsetThrowsException",
)
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_batch_below_start_of_empty_log_is_rejected(codec: Compression) -> None:
    log = opened(MemoryDisk())
    log.truncate_fully_and_start_at(7, NOW)
    with pytest.raises(UnexpectedOffset) as refused:
        log.append_replicated(NOW, batch_of(3, base_offset=4, leader_epoch=0, compression=codec))
    assert (refused.value.first_offset, refused.value.last_offset) == (4, 6)
    log.append_replicated(NOW, batch_of(2, base_offset=7, leader_epoch=0))
    with pytest.raises(UnexpectedOffset):
        log.append_replicated(NOW, batch_of(1, base_offset=8, leader_epoch=0, compression=codec))
    assert log.log_end_offset == 9


@pytest.mark.clause("UnifiedLogTest.testLogFlushesPartitionMetadataOnAppend")
def test_topic_id_is_written_with_first_records() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.topic_id = bytes(range(16))
    assert read_partition_metadata(disk, DIRECTORY) is None
    log.append(NOW, batch_of(1), 0)
    assert read_partition_metadata(disk, DIRECTORY) == log.topic_id
    assert f"{DIRECTORY}/partition.metadata" in log.sync_point().paths


@pytest.mark.parametrize("clean", [True, False])
def test_unsynced_topic_id_is_synced_after_restart(clean: bool) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.topic_id = bytes(range(16))
    log.append(NOW, batch_of(1), 0)
    assert (f"{DIRECTORY}/partition.metadata" in opened(disk, clean=clean).sync_point().paths) is not clean


GOOD = batch_of(1, leader_epoch=0)


@pytest.mark.clause("UnifiedLogTest.testInvalidMemoryRecords")
@pytest.mark.parametrize(
    "records",
    [
        GOOD[:5],
        GOOD[:15],
        GOOD[:-1],
        GOOD[:8] + (13).to_bytes(4, "big") + GOOD[12:],
        GOOD[:16] + b"\xff" + GOOD[17:],
        GOOD[:16] + b"\x03" + GOOD[17:],
        GOOD[:8] + bytes(4) + GOOD[12:],
    ],
    ids=["no length", "no magic", "too short", "small length", "negative magic", "large magic", "no size"],
)
def test_follower_rejects_invalid_batch(records: bytes) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    with pytest.raises(RecordsRefused):
        log.append_replicated(NOW, records)
    assert (log.log_end_offset, disk.files) == (0, {})


@given(st.binary(min_size=1, max_size=200))
def test_follower_rejects_random_bytes(records: bytes) -> None:
    log = opened(MemoryDisk())
    with pytest.raises(RecordsRefused):
        log.append_replicated(NOW, records)
    assert log.log_end_offset == 0


@pytest.mark.clause("UnifiedLogTest.testAppendWithOutOfOrderOffsetsThrowsException")
def test_batches_with_decreasing_offsets_are_rejected() -> None:
    log = opened(MemoryDisk())
    with pytest.raises(UnexpectedOffset):
        log.append_replicated(NOW, b"".join(batch_of(1, base_offset=at, leader_epoch=0) for at in (0, 1, 3, 2, 4)))
    assert log.log_end_offset == 4


@pytest.mark.clause("UnifiedLogTest.testTruncateTo", "LogSegmentTest.shouldTruncateEvenIfOffsetPointsToAGapInTheLog")
def test_truncation_in_gap_ends_log_after_previous_record() -> None:
    log = opened(MemoryDisk())
    for offset in (0, 40, 43):
        log.append_replicated(NOW, batch_of(1, base_offset=offset, leader_epoch=0, timestamps=[offset]))
    assert log.truncate_to(41) == 41
    assert [header.base_offset for header in headers_of(all_bytes(log))] == [0, 40]
    assert offset_of_max_timestamp(log).offset == 40


@pytest.mark.parametrize("beyond", [0, 1])
def test_truncation_at_or_beyond_end_changes_nothing(beyond: int) -> None:
    log = opened(MemoryDisk())
    log.append(NOW, batch_of(3), 0)
    before = all_bytes(log)
    assert log.truncate_to(3 + beyond) == 3
    assert all_bytes(log) == before
    assert log.truncate_to(0) == log.log_end_offset == log.size_bytes == 0
    log.append(NOW, batch_of(3), 0)
    assert all_bytes(log) == before
