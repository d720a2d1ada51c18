"""The index files have Kafka's format, and match the segment."""

from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from random import Random
from struct import iter_unpack

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.log.checkpoints import read_partition_metadata
from reference_broker.log.config import LogConfig
from reference_broker.log.indexes import OffsetIndex, TimeIndex
from reference_broker.log.tests.log_world import DIRECTORY, NOW, START_MS, appended, batch_of, headers_of, opened
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import iterate


@pytest.mark.clause("OffsetIndexTest.testEntry", "TimeIndexTest.testEntrySize", "TimeIndexTest.testParseEntry")
def test_index_entries_point_at_batches_at_interval() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig(segment_bytes=4000, index_interval_bytes=300))
    for number in range(60):
        appended(log, batch_of(3, timestamps=[number, 7, number - 1]))
    log.close_cleanly()
    assert len(log.segments) > 1
    for segment in log.segments:
        batches = dict(iterate(bytes(disk.files[segment.path])))
        entries = list(iter_unpack(">ii", disk.files[segment.offsets.path]))
        assert entries
        assert [(batches[at].last_offset - segment.base_offset, at) for _, at in entries] == entries
        positions = [0, *(position for _, position in entries)]
        assert all(later - earlier > 300 for earlier, later in pairwise(positions))
        times = list(iter_unpack(">qi", disk.files[segment.times.path]))
        largest = max(header.max_timestamp_ms for header in batches.values())
        assert times[-1][0] == largest
        for timestamp, offset in times:
            before = [h.max_timestamp_ms for h in batches.values() if h.last_offset - segment.base_offset <= offset]
            assert max(before) == timestamp


@pytest.mark.clause("UnifiedLogTest.testBuildTimeIndexWhenNotAssigningOffsets")
def test_follower_batches_are_indexed_by_time() -> None:
    log = opened(MemoryDisk(), LogConfig(segment_bytes=10_000, index_interval_bytes=1))
    for number in range(100):
        log.append_replicated(NOW, batch_of(1, base_offset=100 + number, leader_epoch=0, timestamps=[number]))
    assert [len(segment.times) for segment in log.segments] == [99]
    log.close_cleanly()
    assert log.segments[0].times.timestamps[-1] == START_MS + 99


@pytest.mark.clause("OffsetIndexTest.appendTooMany")
def test_full_index_rolls_segment() -> None:
    log = opened(MemoryDisk(), LogConfig(index_interval_bytes=0, segment_index_bytes=32))
    for _ in range(20):
        appended(log, batch_of(1))
    assert len(log.segments) > 3
    assert all(len(segment.offsets) <= 4 for segment in log.segments)


@pytest.mark.clause(
    "LogSegmentTest.testAppendForLogSegmentOffsetOverflowException",
    "LogSegmentTest.testTruncateEmptySegment",
)
def test_offset_distance_beyond_32_bits_rolls_segment() -> None:
    log = opened(MemoryDisk())
    appended(log, batch_of(1))
    log.append_replicated(NOW, batch_of(1, base_offset=2**31 - 1, leader_epoch=0))
    assert len(log.segments) == 1
    log.append_replicated(NOW, batch_of(1, base_offset=2**31, leader_epoch=0))
    assert log.bases == [0, 2**31]
    assert headers_of(log.read(2**31, 1000, 2**31 + 1))[0].base_offset == 2**31


@pytest.mark.clause(
    "LogLoaderTest.testOverCompactedLogRecovery",
    "LogLoaderTest.testOverCompactedLogRecoveryMultiRecord",
    "LogSegmentTest.testTruncateEmptySegment",
)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("start", [0, 1], ids=["empty log", "one record"])
def test_gap_wider_than_segment_is_between_segments(start: int, count: int) -> None:
    """As a follower gets it from the leader of a compacted log."""
    disk, far = MemoryDisk(), 2**31 + 1
    config = LogConfig(segment_bytes=1000, index_interval_bytes=1, cleanup_policy="compact")
    log = opened(disk, config)
    log.topic_id = bytes(range(16))
    if start:
        log.append_replicated(NOW, batch_of(1, leader_epoch=0))
    batches = [batch_of(count, base_offset=far + number * count, leader_epoch=0) for number in range(3)]
    for each in (batches[0], batches[1] + batches[2]):
        log.append_replicated(NOW, each)
        log.check_invariants()
    assert log.bases == [0, far]
    assert log.log_end_offset == far + 3 * count
    assert read_partition_metadata(disk, DIRECTORY) == log.topic_id
    plain = replace(config, cleanup_policy="delete")
    killed = opened(disk.copy(), plain, clean=False)
    log.close_cleanly()
    assert len(list(iter_unpack(">ii", disk.files[log.segments[1].offsets.path]))) == 2
    for again in (killed, opened(disk.copy(), config), opened(disk.copy(), plain)):
        assert again.quarantine is None
        assert (again.bases, again.log_start_offset, again.log_end_offset) == (log.bases, 0, log.log_end_offset)
        assert headers_of(again.read(5, 1, again.log_end_offset))[0].base_offset == far
        assert again.truncate_to(5) == start


def test_records_before_wide_gap_are_durable_before_later_ones() -> None:
    """Otherwise a start would take records that were removed by a power loss for a part of the gap."""
    ends = set()
    for seed in range(20):
        disk, far = SimDisk(Random(seed)), 2**31 + 9
        log = opened(disk)
        for offset in (0, 1, far):
            log.append_replicated(NOW, batch_of(1, base_offset=offset, leader_epoch=0))
        disk.power_loss()
        disk.process_started()
        again = opened(disk, clean=False)
        assert [header.base_offset for header in headers_of(again.read(0, 1000, 2))] == [0, 1]
        ends.add(again.log_end_offset)
    assert {2, far} <= ends <= {2, far, far + 1}, "the far segment is gone, is empty, or is there"


@pytest.mark.clause("OffsetIndexTest.randomLookupTest", "OffsetIndexTest.lookupExtremeCases")
def test_lookup_starts_at_nearest_entry() -> None:
    random = Random(1)
    index = OffsetIndex("index")
    assert [index.floor(offset) for offset in (0, 1, 92)] == [0, 0, 0]
    bases, positions, last, position = [], [], 0, 0
    for _ in range(50):
        base = last + random.randint(1, 15)
        last, position = base + random.randint(0, 3), position + random.randint(1, 15)
        index.add(base, last, position)
        bases.append(base)
        positions.append(position)
    for offset in range(last + 20):
        at = bisect_right(bases, offset)
        assert index.floor(offset) == (positions[at - 1] if at else 0)


@pytest.mark.clause(
    "OffsetIndexTest.testReopen",
    "OffsetIndexTest.truncate",
    "OffsetIndexTest.testSanityLastOffsetEqualToBaseOffset",
    "OffsetIndexTest.testEntry",
)
def test_index_file_round_trip_and_truncation() -> None:
    disk = MemoryDisk()
    index = OffsetIndex("index")
    for number in range(10):
        index.add(number, number, 10 * number)
    index.write(disk)
    again = OffsetIndex("index")
    assert again.load(disk, 1000)
    assert (list(again.last_offsets), list(again.positions)) == (list(range(10)), list(range(0, 100, 10)))
    for size, left in ((1000, 10), (91, 10), (90, 9), (55, 6), (0, 0)):
        again.truncate(disk, size)
        assert (len(again), disk.size("index")) == (left, 8 * left)
        assert again.floor(99) == max(10 * (left - 1), 0)
    again.add(3, 3, 0)
    again.write(disk)
    third = OffsetIndex("index")
    assert third.load(disk, 1000)
    assert (list(third.keys), list(third.positions)) == ([3], [0])


@pytest.mark.clause(
    "TimeIndexTest.testLookUp",
    "TimeIndexTest.testAppend",
    "TimeIndexTest.testLastEntry",
    "TimeIndexTest.testTruncate",
    "TimeIndexTest.testEntry",
)
def test_time_index_lookup() -> None:
    disk = MemoryDisk()
    times = TimeIndex("times")
    assert times.offset_before(100) == 0
    for number in range(1, 7):
        times.add(10 * number, 10 * number + 5)
        times.add(10 * number - 1, 10 * number + 7)  # Not the largest so far.
        assert (times.timestamps[-1], times.offsets[-1]) == (10 * number, 10 * number + 5)
    for timestamp, offset in ((9, 0), (10, 0), (11, 15), (25, 25), (30, 25), (31, 35), (1000, 65)):
        assert times.offset_before(timestamp) == offset
    times.write(disk)
    assert list(iter_unpack(">qi", disk.files["times"]))[:2] == [(10, 15), (20, 25)]
    again = TimeIndex("times")
    assert again.load(disk)
    for relative, left in ((66, 6), (65, 5), (20, 1), (15, 0)):
        again.truncate(disk, relative)
        assert (len(again), disk.size("times")) == (left, 12 * left)


@pytest.mark.clause("LocalLogTest.testOffsetFromFile")
def test_file_names_are_those_of_kafka() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig(segment_bytes=200, index_interval_bytes=0))
    for _ in range(3):
        appended(log, batch_of(1, timestamps=[3]))
    log.close_cleanly()
    assert f"{DIRECTORY}/00000000000000000002.log" in disk.files
    assert f"{DIRECTORY}/00000000000000000000.timeindex" in disk.files
