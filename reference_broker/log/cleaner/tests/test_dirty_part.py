"""Start and end of the dirty part of a log, its checkpoint, and the map of its keys."""

from dataclasses import replace

import pytest

from reference_broker.log.cleaner.cleaning import cleanable
from reference_broker.log.cleaner.retention import BYTES_PER_KEY, OffsetMap, short
from reference_broker.log.cleaner.tests.cleaner_world import COMPACTED, cleaned, dirty, fresh, put, rolled, texts
from reference_broker.log.tests.log_world import NOW, at, opened
from reference_broker.log.unified_log import UnifiedLog


def with_segments(*sizes: int) -> UnifiedLog:
    log, _ = fresh(replace(COMPACTED, segment_bytes=1 << 20))
    for size in sizes:
        for number in range(size):
            put(log, (f"k{number}", "value"))
        log.roll(NOW)
    return log


@pytest.mark.clause("LogCleanerManagerTest.testDirtyOffsetResetIfSmallerThanStartOffset")
def test_deleted_records_are_not_dirty() -> None:
    log = with_segments(5, 5, 5)
    log.note_cleaned(2)
    log.delete_records_before(7)
    assert (dirty(log).first_dirty_offset, dirty(log).end_offset) == (7, 15)


@pytest.mark.clause(
    "LogCleanerManagerTest.testLogStartOffsetLargerThanActiveSegmentBaseOffset",
    "LogCleanerManagerTest.testDirtyOffsetLargerThanActiveSegmentBaseOffset",
)
def test_nothing_is_dirty_if_clean_part_ends_in_active_segment() -> None:
    for earlier in ((), (5,)):
        log = with_segments(*earlier)
        for number in range(9):
            put(log, (f"k{number}", "value"))
        log.delete_records_before(log.bases[-1] + 2)
        assert cleanable(log, NOW) is None
        log.note_cleaned(log.bases[-1] + 3)
        assert cleanable(log, NOW) is None


@pytest.mark.clause("LogCleanerManagerTest.testMaybeTruncateCheckpointShouldTruncateData")
def test_truncation_above_clean_part_keeps_checkpoint() -> None:
    log = with_segments(5, 5)
    log.note_cleaned(5)
    log.truncate_to(7)
    assert log.cleaned_offset == opened(log.disk, log.config).cleaned_offset == 5
    log.truncate_to(3)
    assert log.cleaned_offset == opened(log.disk, log.config).cleaned_offset == 0


@pytest.mark.clause("LogCleanerParameterizedIntegrationTest.testCleansCombinedCompactAndDeleteTopic")
def test_compact_and_delete_policy_cleans_and_retains() -> None:
    log, disk = fresh(replace(COMPACTED, cleanup_policy="compact,delete", retention_ms=1000))
    for number in range(30):
        put(log, (f"k{number % 7}", f"{number}"))
    rolled(log)
    cleaned(log, disk)
    assert [offset for offset, _, _ in texts(log)] == list(range(23, 30))
    log.enforce_retention(at(1001))
    assert (log.log_start_offset, texts(log)) == (30, [])
    for number in range(10):
        put(log, (f"k{number % 3}", f"{number}"), now=at(1001))
    rolled(log)
    cleaned(log, disk, at(1001))
    assert texts(log) == [(37, "k1", "7"), (38, "k2", "8"), (39, "k0", "9")]


@pytest.mark.clause(
    "OffsetMapTest.testBasicValidation",
    "OffsetMapTest.testGetWhenFull",
    "OffsetMapTest.testLatestOffset",
    "OffsetMapTest.testUtilization",
)
def test_offset_map_has_newest_offset_of_limited_keys() -> None:
    newest = OffsetMap(100 * BYTES_PER_KEY)
    keys = [b"%d" % number * (1 + 16 * (number % 2)) for number in range(100, 200)]
    assert (newest.latest_offset, newest.used_percent) == (-1, 0)
    for number in range(0, 100, 2):
        assert newest.put(keys[number : number + 2], [number, number + 1])
        assert (newest.latest_offset, newest.used_percent) == (number + 1, number + 2)
    assert not newest.put([b"one more"], [100])
    assert newest.put([keys[3]], [101])
    assert not newest.put([keys[4], b"one more", keys[5]], [102, 103, 104])
    assert [newest.offsets[short(key)] for key in keys] == [0, 1, 2, 101, 102, *range(5, 100)]
    assert short(b"one more") not in newest.offsets
    assert newest.latest_offset == 102
