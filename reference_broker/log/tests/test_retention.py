"""Retention and deletion from the start: the deleted segments, and when the active one is deleted."""

from dataclasses import replace

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.log.tests.log_world import NOW, START_MS, THREE_EACH, appended, at, batch_of, filled, opened
from reference_broker.ports.disk import MemoryDisk


@pytest.mark.clause(
    "UnifiedLogTest.shouldDeleteSizeBasedSegments",
    "UnifiedLogTest.shouldNotDeleteSizeBasedSegmentsWhenUnderRetentionSize",
)
def test_bytes_retention_keeps_at_least_limit() -> None:
    log = filled(MemoryDisk())
    total, first = log.size_bytes, log.segments[0].size_bytes
    log.config = replace(THREE_EACH, retention_bytes=total - first + 1)
    assert log.enforce_retention(NOW) == 0
    log.config = replace(THREE_EACH, retention_bytes=total - first)
    assert log.enforce_retention(NOW) == 1
    assert log.log_start_offset == 6
    with pytest.raises(OffsetOutOfRange):
        log.read(5, 100)


def test_bytes_retention_deletes_active_segment_only_if_zero() -> None:
    log = filled(MemoryDisk())
    log.config = replace(THREE_EACH, retention_bytes=1)
    log.enforce_retention(at(10**12))
    assert len(log.segments) == 1
    assert log.log_start_offset == 18
    assert log.log_end_offset == 24
    log.config = replace(THREE_EACH, retention_bytes=0)
    log.high_watermark = 23
    assert log.enforce_retention(NOW) == 0
    log.high_watermark = 24
    assert log.enforce_retention(NOW) == 1
    assert (log.bases, log.size_bytes, log.log_start_offset) == ([24], 0, 24)
    assert log.enforce_retention(NOW) == 0


@pytest.mark.clause(
    "UnifiedLogTest.shouldDeleteTimeBasedSegmentsReadyToBeDeleted",
    "UnifiedLogTest.testThatGarbageCollectingSegmentsDoesntChangeOffset",
    "UnifiedLogTest.testDeleteOldSegments",
)
def test_expired_active_segment_is_rolled_and_deleted() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.config = replace(THREE_EACH, retention_ms=1000)
    newest = log.segments[-1].max_timestamp_ms - START_MS
    log.enforce_retention(at(newest + 1000))
    assert log.log_start_offset < 24
    log.enforce_retention(at(newest + 1001))
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (24, 24, 0)
    assert (log.epochs.epochs, log.epochs.starts) == ([0], [24])
    assert log.enforce_retention(at(10**12)) == 0, "an empty segment stays"
    assert opened(disk, clean=False).log_end_offset == 24
    assert appended(log, batch_of(1)).first_offset == 24
    assert opened(MemoryDisk()).enforce_retention(at(10**12)) == 0


def test_expired_active_segment_stays_while_earlier_one_stays() -> None:
    log = opened(MemoryDisk(), THREE_EACH)
    for time in (5000, 5000, 5000, 0):
        appended(log, batch_of(2, timestamps=[time, time]))
    log.config = replace(THREE_EACH, retention_ms=1000)
    assert log.enforce_retention(at(2000)) == 0
    assert log.bases == [0, 6]


def test_expired_active_segment_stays_until_committed() -> None:
    log = filled(MemoryDisk())
    log.high_watermark = 23
    log.config = replace(THREE_EACH, retention_ms=1000)
    log.enforce_retention(at(10**12))
    assert log.log_start_offset < 23


@pytest.mark.clause(
    "UnifiedLogTest.shouldDeleteTimeBasedSegmentsReadyToBeDeleted",
    "UnifiedLogTest.shouldNotDeleteTimeBasedSegmentsWhenNoneReadyToBeDeleted",
)
def test_time_retention_uses_largest_timestamp() -> None:
    log = filled(MemoryDisk())
    log.config = replace(THREE_EACH, retention_ms=1000)
    newest = log.segments[0].max_timestamp_ms - START_MS
    assert log.enforce_retention(at(newest + 1000)) == 0
    assert log.enforce_retention(at(newest + 1001)) == 1


@pytest.mark.clause("UnifiedLogTest.testSegmentDeletionWithHighWatermarkInitialization")
def test_retention_stops_at_high_watermark() -> None:
    log = filled(MemoryDisk())
    log.high_watermark = 11
    log.config = replace(THREE_EACH, retention_bytes=0)
    assert log.enforce_retention(NOW) == 1
    assert log.log_start_offset == 6


@pytest.mark.clause(
    "UnifiedLogTest.shouldNotDeleteSegmentsWhenPolicyDoesNotIncludeDelete",
    "UnifiedLogTest.shouldDeleteSegmentsReadyToBeDeletedWhenCleanupPolicyIsCompactAndDelete",
    "UnifiedLogTest.shouldDeleteStartOffsetBreachedSegmentsWhenPolicyDoesNotIncludeDelete",
)
def test_compacted_topic_deletes_only_below_log_start() -> None:
    config = replace(THREE_EACH, cleanup_policy="compact", retention_bytes=0, retention_ms=1)
    log = filled(MemoryDisk(), config)
    assert log.enforce_retention(at(10**12)) == 0
    log.delete_records_before(6)
    assert log.bases == [6, 12, 18]
    assert log.enforce_retention(at(10**12)) == 0
    log.config = replace(config, cleanup_policy="compact,delete", retention_bytes=-1)
    assert log.enforce_retention(at(10**12)) == 3
    assert log.bases == [24]


@pytest.mark.clause("UnifiedLogTest.testRetentionIdempotency")
def test_segment_below_log_start_does_not_block_retention() -> None:
    log = opened(MemoryDisk(), LogConfig(retention_ms=900))
    for time in (100, 0, 100):
        appended(log, batch_of(1, timestamps=[time]))
        if len(log.segments) < 3:
            log.roll(NOW)
    assert log.enforce_retention(at(901)) == 0
    log.delete_records_before(1)
    assert log.enforce_retention(at(901)) == 1
    assert log.bases == [2]
    assert log.enforce_retention(at(901)) == 0


@pytest.mark.clause("UnifiedLogTest.testLogDeletionAfterDeleteRecords")
def test_delete_records_removes_whole_segments() -> None:
    log = filled(MemoryDisk())
    for start, first in ((1, 0), (6, 6), (11, 6), (24, 18)):
        assert log.delete_records_before(start) == start
        assert (log.bases[0], log.log_start_offset) == (first, start)


@pytest.mark.clause("UnifiedLogTest.testCannotDeleteSegmentsAtOrAboveHighWatermark")
def test_retention_at_each_high_watermark() -> None:
    log = filled(MemoryDisk(), replace(THREE_EACH, retention_ms=0), 9)
    for committed in range(19):
        log.high_watermark = committed
        log.enforce_retention(at(1000))
        expected = committed if committed == 18 else committed // 6 * 6
        assert (log.log_start_offset, log.bases[0]) == (expected, expected)
    assert log.size_bytes == 0


@pytest.mark.clause("UnifiedLogTest.testCannotIncrementLogStartOffsetPastHighWatermark")
def test_records_beyond_high_watermark_are_not_deleted() -> None:
    log = filled(MemoryDisk())
    log.high_watermark = 4
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(5)
    assert log.delete_records_before(4) == 4
    assert log.delete_records_before(1) == 4


@pytest.mark.clause(
    "LocalLogTest.testRemoveAndDeleteSegmentsSync",
    "LocalLogTest.testDeleteSegmentFilesSync",
    "LocalLogTest.testRemoveAndDeleteSegmentsAsync",
    "LocalLogTest.testDeleteSegmentFilesAsync",
)
def test_segment_files_are_deleted_after_durable_log_start() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    gone = [path for segment in log.segments[:2] for path in segment.paths if disk.exists(path)]
    log.delete_records_before(13)
    assert all(disk.exists(path) for path in gone)
    log.mark_synced(log.sync_point())
    assert not any(disk.exists(path) for path in gone)
    assert [segment.base_offset for segment in log.segments] == [12, 18]
