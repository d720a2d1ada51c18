"""Opening a log after clean and unclean ends: torn tails, lost index files, checkpoints."""

import struct
from contextlib import suppress
from random import Random

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.tests.log_world import (
    DIRECTORY,
    NOW,
    START_MS,
    all_bytes,
    appended,
    batch_of,
    headers_of,
    opened,
    sent,
)
from reference_broker.log.tests.recovery_world import FIRST_FILE, SMALL, filled, log_files, same, stopped, synced
from reference_broker.ports.disk import DiskError, MemoryDisk


@pytest.mark.clause("LogLoaderTest.testCleanShutdownFile", "LogLoaderTest.testLogRecoversToCorrectOffset")
@pytest.mark.parametrize("config", [SMALL, LogConfig()])
@pytest.mark.parametrize("clean", [True, False])
def test_reopened_log_is_equal(config: LogConfig, clean: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk, config)
    if clean:
        log.close_cleanly()
    again = opened(disk.copy(), config, clean=clean)
    same(again, log)
    assert again.recovered.cut_bytes == 0
    assert (again.recovered.verified_bytes > 0) is not clean
    appended(log, batch_of(3, timestamps=[1, 30, 2]), epoch=9)
    appended(again, batch_of(3, timestamps=[1, 30, 2]), epoch=9)
    same(again, log)


def test_torn_tail_at_each_byte_loses_only_last_batch() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig())
    sent(log, 1, 0, 2)
    sent(log, 1, 2, 2)
    whole = bytes(disk.files[FIRST_FILE])
    kept = len(whole) - headers_of(whole)[-1].size_bytes
    for size in range(kept, len(whole)):
        torn = disk.copy()
        del torn.files[FIRST_FILE][size:]
        again = opened(torn, clean=False)
        assert again.log_end_offset == 2
        assert bytes(torn.files[FIRST_FILE]) == whole[:kept] == all_bytes(again)
        assert again.recovered.cut_bytes == size - kept
        assert again.producers.by_id[1].last_sequence == 1
        assert not sent(again, 1, 2, 2).duplicate
        assert all_bytes(again) == whole


@pytest.mark.clause("LogSegmentTest.testRecoveryWithCorruptMessage")
def test_damage_at_each_byte_of_last_batch_is_truncated() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig())
    for number in range(3):
        appended(log, batch_of(1, timestamps=[number]))
    whole = bytes(disk.files[FIRST_FILE])
    kept = len(whole) - headers_of(whole)[-1].size_bytes
    for position in range(kept, len(whole)):
        damaged = disk.copy()
        damaged.files[FIRST_FILE][position] ^= 0x80
        end = opened(damaged, clean=False).log_end_offset
        # The base offset and the leader epoch are outside the CRC: Kafka cannot detect damage there either.
        if position - kept in range(8, 12) or position - kept >= 16:
            assert end == 2


@pytest.mark.parametrize("byte", [1, 2, 3, 4])
def test_batch_beyond_index_range_is_damage(byte: int) -> None:
    """A flipped bit of a base offset is no flaw of its CRC."""
    disk = MemoryDisk()
    log = filled(disk, LogConfig(index_interval_bytes=0))
    log.close_cleanly()
    end = log.log_end_offset - 2
    disk.files[FIRST_FILE][log.size_bytes - headers_of(all_bytes(log))[-1].size_bytes + byte] ^= 0x80
    killed = opened(disk.copy(), LogConfig(index_interval_bytes=0), clean=False)
    assert (killed.log_end_offset, killed.quarantine) == (end, None)
    for again in (killed, opened(disk, LogConfig(index_interval_bytes=0))):
        assert (again.log_end_offset, again.quarantine is None) in ((end, True), (0, False))
        appended(again, batch_of(1), epoch=2)
        again.close_cleanly()


@pytest.mark.clause("LogLoaderTest.testCorruptLog")
def test_zeros_and_garbage_after_last_batch_are_truncated() -> None:
    for tail in (bytes(1000), b"\xff" * 1000, b"x" * 61, bytes(30)):
        disk = MemoryDisk()
        log = filled(disk, LogConfig())
        before = all_bytes(log)
        disk.append(FIRST_FILE, [tail])
        again = opened(disk, clean=False)
        assert all_bytes(again) == before
        assert again.recovered.cut_bytes == len(tail)


@pytest.mark.clause("LogSegmentTest.testRecoveryWithCorruptMessage")
def test_segments_after_truncation_are_deleted() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    assert len(log.segments) >= 4
    damaged = log.segments[1]
    disk.files[damaged.path][80] ^= 1
    again = opened(disk, SMALL, clean=False)
    assert again.log_end_offset == damaged.base_offset
    assert again.recovered.deleted_segments == len(log.segments) - 2
    assert log_files(disk) == [log.segments[0].path, damaged.path]
    assert [cut.path for cut in again.recovered.cuts] == [
        *(segment.path for segment in reversed(log.segments[2:])),
        damaged.path,
    ]
    assert again.recovered.cuts[-1].offset == damaged.base_offset
    assert again.latest_epoch == log.epoch_at(damaged.base_offset - 1)
    appended(again, batch_of(1))
    same(opened(disk.copy(), SMALL, clean=False), again)


def test_segment_with_lost_batches_truncates_later_ones() -> None:
    """A power loss may remove the end of an unsynced segment and keep the segment after it: no gap may stay."""
    disk = MemoryDisk()
    log = filled(disk)
    shorter = log.segments[1]
    whole = bytes(disk.files[shorter.path])
    del disk.files[shorter.path][headers_of(whole)[0].size_bytes :]
    again = opened(disk, SMALL, clean=False)
    assert again.log_end_offset == shorter.base_offset + 2
    assert log_files(disk) == [log.segments[0].path, shorter.path]
    assert len(headers_of(all_bytes(again))) == again.log_end_offset // 2


def test_empty_segment_after_lost_batches_is_deleted() -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig(), batches=3)
    log.roll(NOW)
    del disk.files[FIRST_FILE][headers_of(bytes(disk.files[FIRST_FILE]))[0].size_bytes :]
    assert opened(disk, clean=False).log_end_offset == 2


def test_interrupted_recovery_is_completed_by_next_start() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    damaged = log.segments[1]
    disk.files[damaged.path][-30] ^= 1
    expected = opened(disk.copy(), SMALL, clean=False)
    for changes in range(30):
        dying = disk.copy()
        dying.fail_after = changes
        with suppress(DiskError):
            opened(dying, SMALL, clean=False)
        dying.fail_after = None
        same(opened(dying, SMALL, clean=False), expected)


@pytest.mark.clause(
    "UnifiedLogTest.testLogRolls",
    "LogLoaderTest.testLogRecoversToCorrectOffset",
    "LocalLogTest.testLogFlush",
)
def test_durable_segments_are_not_scanned_after_crash() -> None:
    disk = MemoryDisk()
    log = filled(disk, each_synced=True)
    appended(log, batch_of(2), epoch=2)
    again = opened(disk.copy(), SMALL, clean=False)
    same(again, log)
    assert 0 < again.recovered.verified_bytes <= 3 * 300 < log.size_bytes
    assert again.synced_offset >= log.bases[-3]


def test_rewritten_records_are_scanned_again() -> None:
    disk = MemoryDisk()
    log = filled(disk, each_synced=True)
    point = log.files.recovery_point
    assert point > 4
    log.truncate_to(4)
    for _ in range(10):
        appended(log, batch_of(2))
    assert log.log_end_offset > point
    damaged = log.segments[1]
    disk.files[damaged.path][70] ^= 1
    assert opened(disk, SMALL, clean=False).log_end_offset == damaged.base_offset


def test_record_rewritten_after_truncation_inside_batch_is_scanned() -> None:
    """The truncation removes the whole batch, so the log ends below the requested offset."""
    disk = MemoryDisk()
    log = filled(disk, each_synced=True)
    assert log.files.recovery_point > 5
    assert log.truncate_to(5) == 4
    appended(log, batch_of(1))
    log.roll(NOW)
    rewritten = log.segments[-2]
    assert (rewritten.next_offset, log.log_end_offset) == (5, 5)
    disk.files[rewritten.path][-1] ^= 1
    assert opened(disk, SMALL, clean=False).log_end_offset == 4


@pytest.mark.clause(
    "LogLoaderTest.testIndexRebuild",
    "LogLoaderTest.testCorruptIndexRebuild",
    "LogSegmentTest.testRecoveryFixesCorruptIndex",
    "LogSegmentTest.testRecoveryFixesCorruptTimeIndex",
    "TimeIndexTest.testSanityCheck",
)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"\x01\x02\x03", b"\xff" * 24, bytes(24), b"\x7f" * 24])
def test_lost_or_damaged_index_files_are_rebuilt(suffix: str, content: bytes | None) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.close_cleanly()
    for path in [path for path in disk.files if path.endswith(suffix)]:
        if content is None:
            disk.delete(path)
        else:
            disk.write(path, content)
    same(opened(disk, SMALL), log)


@pytest.mark.clause("TimeIndexTest.testSanityCheck")
@pytest.mark.parametrize("entry", [struct.pack(">qi", START_MS, 1000), struct.pack(">qi", START_MS + 1000, 0)])
def test_time_index_of_other_segment_is_rebuilt(entry: bytes) -> None:
    """The index could be that of the segment, as far as its file shows. After it, the next entry would go back."""
    disk = MemoryDisk()
    log = filled(disk, LogConfig(index_interval_bytes=0))
    log.close_cleanly()
    disk.write(log.segments[0].times.path, entry)
    again = opened(disk, LogConfig(index_interval_bytes=0))
    same(again, log)
    appended(again, batch_of(1, timestamps=[50]))
    appended(again, batch_of(1, timestamps=[60]))


def test_recovery_point_after_clean_stop_is_log_end() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    stopped(log)
    log.close_cleanly()
    assert log.sync_point().paths == ()
    assert opened(disk.copy(), SMALL).files.recovery_point == log.log_end_offset
    last = log.segments[-1]
    disk.files[last.path][16] ^= 1
    again = opened(disk, SMALL, clean=False)
    assert again.quarantine is not None
    assert disk.exists(f"{last.path}.damaged")


def test_recovery_point_is_not_written_before_new_log_start_is_durable() -> None:
    """A start would miss the records between the old log start and the new one, and take them for lost."""
    for seed in range(20):
        disk = SimDisk(Random(seed))
        log = filled(disk)
        synced(disk, log)
        log.advance_high_watermark(log.log_end_offset)
        log.delete_records_before(6)
        synced(disk, log)
        log.truncate_fully_and_start_at(1000, NOW)
        appended(log, batch_of(2), epoch=3)
        log.files.note_synced()
        assert log.files.durable_end == 0
        disk.make_durable(log.files.synced_note)
        disk.power_loss()
        disk.process_started()
        assert opened(disk, SMALL, clean=False).quarantine is None
    synced(disk, log)
    log.files.note_synced()
    assert log.files.durable_end == 1002


def test_recovery_point_is_written_while_deletion_waits() -> None:
    disk = SimDisk(Random(1))
    log = filled(disk)
    synced(disk, log)
    log.advance_high_watermark(log.log_end_offset)
    log.delete_records_before(6)
    assert log.files.has_retired
    log.files.note_synced()
    assert log.files.durable_end == log.log_end_offset


@pytest.mark.parametrize("bit", range(64))
def test_flipped_bit_of_index_entry_is_detected(bit: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig(index_interval_bytes=0))
    log.close_cleanly()
    path = log.segments[0].offsets.path
    disk.files[path][16 + bit // 8] ^= 1 << bit % 8
    same(opened(disk, LogConfig(index_interval_bytes=0)), log)


@pytest.mark.clause("LogLoaderTest.testBogusIndexSegmentsAreRemoved")
def test_stray_index_files_are_deleted() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.write(f"{DIRECTORY}/{9999:020d}.index", bytes(8))
    opened(disk, SMALL)
    assert log_files(disk) == [segment.path for segment in log.segments]
    assert not disk.exists(f"{DIRECTORY}/{9999:020d}.index")


@pytest.mark.clause("UnifiedLogTest.testLoadPartitionDirWithNoSegmentsShouldNotThrow")
def test_empty_partition_has_no_files() -> None:
    disk = MemoryDisk()
    for clean in (True, False):
        log = opened(disk, clean=clean)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        assert log.read(0, 100) == b""
        assert log.sync_point().paths == ()
        log.close_cleanly()
    assert disk.files == {}


def test_recovery_takes_slices() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig())
    for _ in range(20):
        appended(log, batch_of(1, value=bytes(100_000)))
    for clean in (True, False):
        slices = list(open_log(disk.copy(), DIRECTORY, LogConfig(), NOW, clean))
        assert 5 <= len(slices) <= 8


def test_log_start_survives_crash() -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig())
    log.delete_records_before(5)
    assert opened(disk.copy(), clean=False).log_start_offset == 5
    log.mark_synced(log.sync_point())
    log.delete_records_before(7)
    assert opened(disk.copy(), clean=False).log_start_offset == 7
    new = next(path for path in log.sync_point().paths if "log-start" in path)
    content = bytes(disk.files[new])
    for size in range(len(content)):
        torn = disk.copy()
        del torn.files[new][size:]
        assert opened(torn, clean=False).log_start_offset == 5
    log.mark_synced(log.sync_point())
    assert log.sync_point().paths == ()
    assert not disk.exists(new)
    assert opened(disk.copy()).log_start_offset == 7


@pytest.mark.clause("LogLoaderTest.testLogEndLessThanStartAfterReopen")
def test_log_with_end_below_log_start_restarts_there() -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig())
    log.delete_records_before(20)
    del disk.files[FIRST_FILE][300:]
    again = opened(disk, clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (20, 20)
    assert appended(again, batch_of(2)).first_offset == 20
    same(opened(disk.copy(), clean=False), again)


@pytest.mark.clause("E-6", "P-4")
def test_truncation_of_earlier_start_is_synced_by_next_start() -> None:
    """A kill between the two leaves no trace of the truncation, and a power loss could restore the torn bytes in front
    of
    later segments."""
    disk = MemoryDisk()
    stopped(filled(disk, LogConfig(), 2))
    disk.append(FIRST_FILE, [bytes(33)])
    log = opened(disk, clean=False)
    assert [cut.size_bytes for cut in log.recovered.cuts] == [33]
    log.roll(NOW)
    log = opened(disk, clean=False)
    assert log.recovered.cuts == []
    assert FIRST_FILE in log.sync_point().paths

    appended(log, batch_of(2))
    log.mark_synced(log.sync_point())
    stopped(log)
    assert FIRST_FILE not in opened(disk, clean=False).sync_point().paths, "what was synced behind it was never torn"
