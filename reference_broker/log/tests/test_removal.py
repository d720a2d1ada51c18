"""Truncation, durability marks, disk errors, rejected appends."""

from dataclasses import replace

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.tests.log_world import (
    DIRECTORY,
    NOW,
    START_MS,
    THREE_EACH,
    all_bytes,
    appended,
    at,
    batch_of,
    filled,
    headers_of,
    offset_for_timestamp,
    offset_of_max_timestamp,
    opened,
)
from reference_broker.log.unified_log import BatchOrigin, RecordsRefused, UnifiedLog
from reference_broker.ports.disk import DiskError, MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import checksum, validate
from reference_broker.records.control import build_control, leader_change
from reference_broker.wire.errors import Error, ErrorCode


@pytest.mark.clause(
    "UnifiedLogTest.testTimeBasedLogRollDuringAppend",
    "UnifiedLogTest.testRollSegmentThatAlreadyExists",
    "LocalLogTest.testRollEmptyActiveSegment",
    "LocalLogTest.testRollSegmentThatAlreadyExists",
    "LogSegmentTest.testTruncateEmptySegment",
)
def test_segments_roll_by_record_time_and_clock() -> None:
    log = opened(MemoryDisk(), LogConfig(segment_ms=1000))
    appended(log, batch_of(1, timestamps=[0]))
    appended(log, batch_of(1, timestamps=[1000]))
    assert len(log.segments) == 1
    appended(log, batch_of(1, timestamps=[1001]))
    assert log.bases == [0, 2]
    assert not log.roll_if_due(at(1000))
    assert log.roll_if_due(at(1001))
    assert not log.roll_if_due(at(10**9))
    assert log.bases == [0, 2, 3]
    assert appended(log, batch_of(1)).first_offset == 3


@pytest.mark.clause("UnifiedLogTest.testTimeBasedLogRollJitter")
def test_roll_jitter_spreads_rolls() -> None:
    waited_ms = []
    for number in range(20):
        log = run_to_end(
            open_log(MemoryDisk(), f"t-{number}", LogConfig(segment_ms=1000, segment_jitter_ms=400), NOW, True)
        )
        appended(log, batch_of(1, timestamps=[0]))
        waited_ms.append(next(ms for ms in range(2000) if log.roll_if_due(at(ms))))
    assert all(600 < ms <= 1001 for ms in waited_ms)
    assert len(dict.fromkeys(waited_ms)) > 10


@pytest.mark.clause("LogLoaderTest.testRecoverWithEmptyActiveSegment")
def test_empty_rolled_segment_keeps_end_offset_after_restart() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.roll(NOW)
    log.config = replace(THREE_EACH, retention_bytes=0)
    log.enforce_retention(NOW)
    assert log.size_bytes == 0
    for clean in (True, False):
        again = opened(disk.copy(), clean=clean)
        assert (again.log_start_offset, again.log_end_offset) == (24, 24)


def test_sync_covers_earlier_appends() -> None:
    log = opened(MemoryDisk())
    appended(log, batch_of(3))
    point = log.sync_point()
    appended(log, batch_of(2))
    assert log.appended_since_sync == 5
    log.mark_synced(point)
    assert (log.synced_offset, log.appended_since_sync) == (3, 2)
    assert log.sync_point().paths == (log.segments[0].path,)
    log.mark_synced(log.sync_point())
    assert (log.synced_offset, log.sync_point().paths) == (5, ())


def test_sync_from_before_truncation_covers_no_later_appends() -> None:
    log = opened(MemoryDisk())
    appended(log, batch_of(1))
    log.mark_synced(log.sync_point())
    appended(log, batch_of(1))
    appended(log, batch_of(1))
    point = log.sync_point()
    log.truncate_to(1)
    appended(log, batch_of(1))
    appended(log, batch_of(1))
    log.mark_synced(point)
    assert log.synced_offset == 1
    assert log.sync_point().paths != ()
    log.truncate_to(0)
    assert log.synced_offset == 0


@pytest.mark.parametrize("roll", [False, True])
def test_failed_append_leaves_log_unchanged(roll: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk, batches=3 if roll else 2)
    before, end = all_bytes(log), log.log_end_offset
    for fail_after in range(6):
        disk.fail_after = fail_after
        try:
            appended(log, batch_of(2), epoch=1)
        except DiskError:
            assert (all_bytes(log), log.log_end_offset) == (before, end)
            disk.fail_after = None
            assert all_bytes(opened(disk.copy(), THREE_EACH, clean=False)) == before
        else:
            break
    disk.fail_after = None
    assert log.log_end_offset == end + 2
    assert all_bytes(opened(disk, THREE_EACH, clean=False)) == all_bytes(log)


@pytest.mark.clause("LogValidatorTest.checkInvalidChecksum")
def test_several_batches_are_one_atomic_write() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    appended(log, batch_of(1))
    before = disk.appends
    result = appended(log, batch_of(2) + batch_of(3))
    assert disk.appends == before + 1
    assert (result.first_offset, result.last_offset) == (1, 5)
    damaged = bytearray(batch_of(1))
    damaged[-1] ^= 1
    with pytest.raises(RecordsRefused) as refusal:
        log.append(NOW, batch_of(1) + bytes(damaged), 0)
    assert refusal.value.error == ErrorCode.corrupt_message
    assert (log.log_end_offset, disk.appends) == (6, before + 1)
    assert [header.base_offset for header in headers_of(all_bytes(log))] == [0, 1, 3]


def test_log_append_time_is_set_and_returned() -> None:
    log = opened(MemoryDisk(), LogConfig(message_timestamp_type="LogAppendTime"))
    result = appended(log, batch_of(2, timestamps=[5, 9], producer_id=1, producer_epoch=0, base_sequence=0), now=at(77))
    assert result.log_append_time_ms == START_MS + 77
    ((_, header),) = validate(all_bytes(log))
    assert header.max_timestamp_ms == START_MS + 77
    assert header.is_log_append_time
    offset_and_time = offset_for_timestamp(log, START_MS + 60)
    assert offset_and_time is not None
    assert (offset_and_time.offset, offset_and_time.timestamp_ms) == (0, START_MS + 77)
    again = appended(log, batch_of(2, timestamps=[5, 9], producer_id=1, producer_epoch=0, base_sequence=0), now=at(99))
    assert (again.duplicate, again.log_append_time_ms) == (True, START_MS + 77)


@pytest.mark.clause("LogValidatorTest.testControlRecordsNotAllowedFromClients", "UnifiedLogTest.testMessageSizeCheck")
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ErrorCode.invalid_record),
        (b"x" * 100, ErrorCode.corrupt_message),
        (batch_of(1, value=bytes(2_000_000)), ErrorCode.message_too_large),
        (batch_of(1, timestamps=[4_000_000]), ErrorCode.invalid_timestamp),
        (build_control([leader_change(1, [1], [1], 0)]), ErrorCode.invalid_record),
    ],
)
def test_rejected_append_leaves_no_file(data: bytes, error: Error) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    with pytest.raises(RecordsRefused) as refusal:
        log.append(NOW, data, 0)
    assert refusal.value.error == error
    assert disk.files == {}


@pytest.mark.clause("UnifiedLogTest.testMessageSetSizeCheck")
def test_produce_larger_than_segment_is_rejected() -> None:
    log = opened(MemoryDisk(), LogConfig(segment_bytes=200))
    with pytest.raises(RecordsRefused) as refusal:
        log.append(NOW, batch_of(1) * 3, 0)
    assert refusal.value.error == ErrorCode.record_list_too_large


@pytest.mark.clause("LogValidatorTest.testControlRecordsNotCompressed")
def test_control_batches_of_any_size_are_appended() -> None:
    log = opened(MemoryDisk())
    log.append(
        NOW,
        build_control([leader_change(1, [1], [1], 0)]) + batch_of(1, value=bytes(2_000_000)),
        4,
        origin=BatchOrigin.BROKER,
    )
    first, second = headers_of(all_bytes(log))
    assert first.is_control
    assert first.compression == 0
    assert first.leader_epoch == 4
    assert second.base_offset == 1


def test_follower_rejects_duplicate_and_damaged_batches() -> None:
    leader, follower = filled(MemoryDisk()), opened(MemoryDisk(), THREE_EACH)
    data = all_bytes(leader)
    follower.append_replicated(NOW, data)
    assert all_bytes(follower) == data
    assert follower.bases[0] == 0
    assert len(follower.segments) > 2
    for bad in (data, data[:-1]):
        with pytest.raises(RecordsRefused):
            follower.append_replicated(NOW, bad)
    assert all_bytes(follower) == data


@pytest.mark.clause("LogSegmentTest.testReloadLargestTimestampAndNextOffsetAfterTruncation")
def test_truncation_drops_state_of_records() -> None:
    log = opened(MemoryDisk(), LogConfig(index_interval_bytes=1 << 20))
    for number in range(4):
        appended(log, batch_of(1, timestamps=[number]))
    for offset in range(4):
        log.read(offset, 1)
    log.truncate_to(1)
    for number in range(1, 4):
        appended(log, batch_of(1, timestamps=[0], value=bytes(number)))
    for offset in range(4):
        assert headers_of(log.read(offset, 1))[0].base_offset == offset
    largest = offset_of_max_timestamp(log)
    assert (largest.offset, largest.timestamp_ms) == (0, START_MS)
    assert offset_for_timestamp(log, START_MS + 1) is None


def test_every_offset_is_found_with_any_index() -> None:
    for interval in (0, 100, 300, 1 << 20):
        disk = MemoryDisk()
        config = LogConfig(index_interval_bytes=interval, segment_bytes=5000)
        log = opened(disk, config)
        for number in range(60):
            appended(log, batch_of(1 + number % 3, value=bytes(number % 7)))
        log.close_cleanly()
        for each in (log, opened(disk, config), opened(disk, config, clean=False)):
            for offset in range(each.log_end_offset):
                header = headers_of(each.read(offset, 1))[0]
                assert header.base_offset <= offset <= header.last_offset
                assert headers_of(each.read(offset, 1 << 16))[0] == header


@pytest.mark.clause(
    "UnifiedLogTest.shouldTruncateLeaderEpochsWhenDeletingSegments",
    "UnifiedLogTest.shouldTruncateLeaderEpochCheckpointFileWhenTruncatingLog",
)
def test_end_offset_for_epoch() -> None:
    log = opened(MemoryDisk())
    for epoch in (1, 1, 4, 6):
        appended(log, batch_of(2), epoch=epoch)
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in range(-1, 8)}
    assert {epoch: (end.epoch, end.end_offset) for epoch, end in ends.items()} == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 4),
        2: (1, 4),
        3: (1, 4),
        4: (4, 6),
        5: (4, 6),
        6: (6, 8),
        7: (-1, -1),
    }
    log.assign_leader_epoch(9)
    assert log.end_offset_for_epoch(6).end_offset == log.end_offset_for_epoch(9).end_offset == 8
    log.truncate_to(6)
    assert log.latest_epoch == 4
    log.delete_records_before(4)
    assert log.epochs.epochs == [4]
    assert log.end_offset_for_epoch(3).end_offset == 4


def test_leader_epoch_is_written_with_first_append() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    appended(log, batch_of(2), epoch=1)
    before = {path: bytes(content) for path, content in disk.files.items()}
    log.assign_leader_epoch(4)
    assert disk.files == before
    assert (log.latest_epoch, log.end_offset_for_epoch(1).end_offset) == (4, 2)
    appended(log, batch_of(1), epoch=4)
    checkpoint = next(path for path in disk.files if path.endswith("leader-epoch-checkpoint"))
    assert disk.files[checkpoint] == b"0\n2\n1 0\n4 2\n"


def test_sequential_read_is_one_disk_read() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig(index_interval_bytes=400))
    for _ in range(200):
        appended(log, batch_of(1))
    offset = 0
    while offset < 200:
        reads = disk.reads
        offset = headers_of(log.read(offset, 1000))[-1].last_offset + 1
        assert disk.reads == reads + 1
    reads = disk.reads
    appended(log, batch_of(1))
    log.read(200, 1000)
    assert disk.reads == reads + 1


def test_batch_without_records_is_found_by_header() -> None:
    log = opened(MemoryDisk())
    data = bytearray(batch_of(2, timestamps=[3, 5]))
    data[61] = 0x7F
    data[17:21] = checksum(bytes(data[21:])).to_bytes(4, "big")
    appended(log, bytes(data))
    offset_and_time = offset_for_timestamp(log, START_MS)
    assert offset_and_time is not None
    assert (offset_and_time.offset, offset_and_time.timestamp_ms) == (0, START_MS + 5)


def test_truncation_failing_half_way_leaves_consistent_log() -> None:
    whole = MemoryDisk()
    idempotent(whole)
    expected = idempotent(MemoryDisk())
    expected.truncate_to(5)
    steps = 0
    while True:
        disk = whole.copy()
        log = opened(disk, THREE_EACH)
        disk.fail_after = steps
        try:
            log.truncate_to(5)
        except DiskError:
            steps += 1
        else:
            break
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset == log.segments[-1].next_offset
        assert log.synced_offset <= log.log_end_offset
        assert all(start < log.log_end_offset for start in log.epochs.starts)
        disk.fail_after = None
        assert log.truncate_to(5) == 4
        assert log.producers.by_id == expected.producers.by_id
        log.append_replicated(NOW, batch_of(2, base_offset=4, leader_epoch=0))
        assert (log.epochs.epochs, log.epochs.starts) == ([0], [0])
        assert opened(disk, THREE_EACH, clean=False).epochs.epochs == [0]
        assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] == b"0\n1\n0 0\n"
    assert steps > 8, "it writes in many places"


def test_truncation_with_failed_read_truncates_nothing() -> None:
    disk = MemoryDisk()
    log = idempotent(disk)
    before, producers = all_bytes(log), dict(log.producers.by_id)
    first = log.segments[0].path
    content = disk.files.pop(first)
    with pytest.raises(DiskError):
        log.truncate_to(5)
    disk.files[first] = content
    assert all_bytes(log) == before
    assert log.producers.by_id == producers


@pytest.mark.clause("UnifiedLogTest.testLogReinitializeAfterManualDelete")
def test_truncation_of_log_without_segments() -> None:
    """The directory has the files of a log that was being restarted when its node died."""
    log = opened(MemoryDisk({f"{DIRECTORY}/log-start-offset-checkpoint": bytearray(b"0\n1\n55\n")}))
    assert log.log_end_offset == 55
    assert log.truncate_to(40) == log.log_end_offset == log.log_start_offset == 40


def idempotent(disk: MemoryDisk) -> UnifiedLog:
    """24 offsets of one producer, of epoch 0 and, from 12 on, 5."""
    log = opened(disk, THREE_EACH)
    for number in range(12):
        data = batch_of(2, timestamps=[number] * 2, producer_id=7, producer_epoch=0, base_sequence=2 * number)
        appended(log, data, epoch=0 if number < 6 else 5)
    return log
