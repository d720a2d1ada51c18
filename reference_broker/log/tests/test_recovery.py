"""Opening a log after clean and unclean ends: torn tails, lost index files, checkpoints."""

import struct
from contextlib import suppress
from random import Random

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.log.config import LogConfig
from reference_broker.log.partition_log import PartitionLog, open_log
from reference_broker.log.tests.log_world import (
    DIRECTORY,
    NOW,
    START_MS,
    all_bytes,
    appended,
    at,
    batch_of,
    headers_of,
    opened,
    sent,
)
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.memory_disk import MemoryDisk

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=80)
FIRST_FILE = f"{DIRECTORY}/{0:020d}.log"


def headers_moved(batch: bytes, offset: int) -> bytes:
    """The batch at an offset, which lies outside its CRC."""
    return offset.to_bytes(8, "big") + batch[8:]


def filled(disk: Disk, config: LogConfig = SMALL, batches: int = 12) -> PartitionLog:
    log = opened(disk, config)
    for number in range(batches):
        appended(log, batch_of(2, timestamps=[number, number]), epoch=number // 5)
    return log


def synced(disk: SimDisk, log: PartitionLog) -> None:
    point = log.sync_point()
    disk.finish_sync(disk.begin_sync(point.paths))
    log.mark_synced(point)


def log_files(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.files if path.endswith(".log"))


def same(one: PartitionLog, other: PartitionLog) -> None:
    assert (one.log_start_offset, one.log_end_offset) == (other.log_start_offset, other.log_end_offset)
    assert (one.epochs.epochs, one.epochs.starts) == (other.epochs.epochs, other.epochs.starts)
    assert one.bases == other.bases
    assert all_bytes(one) == all_bytes(other)
    for timestamp in range(at(0).wall_ms - 1, at(20).wall_ms):
        assert one.offset_for_timestamp(timestamp) == other.offset_for_timestamp(timestamp)
    assert one.offset_of_max_timestamp() == other.offset_of_max_timestamp()


@pytest.mark.parametrize("config", [SMALL, LogConfig()])
@pytest.mark.parametrize("clean", [True, False])
def test_a_reopened_log_is_the_same(config: LogConfig, clean: bool) -> None:
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


def test_a_torn_tail_at_every_byte_of_the_last_batch_costs_that_batch_only() -> None:
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


def test_damage_at_every_byte_of_the_last_batch_is_cut() -> None:
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
        # The base offset and the leader epoch lie outside the CRC: Kafka cannot see damage there either.
        if position - kept in range(8, 12) or position - kept >= 16:
            assert end == 2


def test_zeros_and_garbage_behind_the_last_batch_are_cut() -> None:
    for tail in (bytes(1000), b"\xff" * 1000, b"x" * 61, bytes(30)):
        disk = MemoryDisk()
        log = filled(disk, LogConfig())
        before = all_bytes(log)
        disk.append(FIRST_FILE, [tail])
        again = opened(disk, clean=False)
        assert all_bytes(again) == before
        assert again.recovered.cut_bytes == len(tail)


def test_segments_behind_a_cut_go() -> None:
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


def test_a_segment_that_lost_whole_batches_is_cut_there_too() -> None:
    """A power loss may take the end of an unsynced segment and leave the segment after it: no hole may stay."""
    disk = MemoryDisk()
    log = filled(disk)
    shorter = log.segments[1]
    whole = bytes(disk.files[shorter.path])
    del disk.files[shorter.path][headers_of(whole)[0].size_bytes :]
    again = opened(disk, SMALL, clean=False)
    assert again.log_end_offset == shorter.base_offset + 2
    assert log_files(disk) == [log.segments[0].path, shorter.path]
    assert len(headers_of(all_bytes(again))) == again.log_end_offset // 2


def test_an_empty_segment_behind_lost_batches_goes() -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig(), batches=3)
    log.roll(NOW)
    del disk.files[FIRST_FILE][headers_of(bytes(disk.files[FIRST_FILE]))[0].size_bytes :]
    assert opened(disk, clean=False).log_end_offset == 2


def test_a_recovery_that_dies_at_any_point_is_finished_by_the_next_one() -> None:
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


def test_durable_segments_are_not_read_again_after_a_crash() -> None:
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for number in range(12):
        appended(log, batch_of(2, timestamps=[number, number]))
        log.mark_synced(log.sync_point())
    appended(log, batch_of(2))
    again = opened(disk.copy(), SMALL, clean=False)
    same(again, log)
    assert 0 < again.recovered.verified_bytes <= 3 * 300 < log.size_bytes
    assert again.synced_offset >= log.bases[-3]


def test_truncated_and_rewritten_records_are_scanned_again() -> None:
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for _ in range(12):
        appended(log, batch_of(2))
        log.mark_synced(log.sync_point())
    point = log.recovery_point
    assert point > 4
    log.truncate_to(4)
    for _ in range(10):
        appended(log, batch_of(2))
    assert log.log_end_offset > point
    damaged = log.segments[1]
    disk.files[damaged.path][70] ^= 1
    assert opened(disk, SMALL, clean=False).log_end_offset == damaged.base_offset


def test_a_record_rewritten_after_a_cut_inside_a_batch_is_scanned_again() -> None:
    """The cut takes the whole batch, so the log ends below the offset that was asked for."""
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for _ in range(12):
        appended(log, batch_of(2))
        log.mark_synced(log.sync_point())
    assert log.recovery_point > 5
    assert log.truncate_to(5) == 4
    appended(log, batch_of(1))
    log.roll(NOW)
    rewritten = log.segments[-2]
    assert (rewritten.next_offset, log.log_end_offset) == (5, 5)
    disk.files[rewritten.path][-1] ^= 1
    assert opened(disk, SMALL, clean=False).log_end_offset == 4


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"\x01\x02\x03", b"\xff" * 24, bytes(24), b"\x7f" * 24])
def test_index_files_that_are_lost_or_damaged_are_made_anew(suffix: str, content: bytes | None) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.close_cleanly()
    for path in [path for path in disk.files if path.endswith(suffix)]:
        if content is None:
            disk.delete(path)
        else:
            disk.write(path, content)
    same(opened(disk, SMALL), log)


@pytest.mark.parametrize("entry", [struct.pack(">qi", START_MS, 1000), struct.pack(">qi", START_MS + 1000, 0)])
def test_a_time_index_that_is_of_another_segment_is_made_anew(entry: bytes) -> None:
    """It could be, as far as its file says. After it, the next entry would go back."""
    disk = MemoryDisk()
    log = filled(disk, LogConfig(index_interval_bytes=0))
    log.close_cleanly()
    disk.write(log.segments[0].times.path, entry)
    again = opened(disk, LogConfig(index_interval_bytes=0))
    same(again, log)
    appended(again, batch_of(1, timestamps=[50]))
    appended(again, batch_of(1, timestamps=[60]))


def test_damage_after_a_clean_stop_is_kept_aside_with_all_behind_it() -> None:
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for number in range(12):
        sent(log, 1, number)
    log.close_cleanly()
    damaged, last = log.segments[1:]
    second = headers_of(bytes(disk.files[damaged.path]))[0].size_bytes
    disk.files[damaged.path][second + 10] ^= 1  # The length of its second batch.
    files = {path: bytes(disk.files[path]) for path in (damaged.path, last.path)}
    again = opened(disk, SMALL)
    assert again.log_end_offset == damaged.base_offset
    assert again.recovered.cut_bytes == 0
    assert {path: bytes(disk.files[f"{path}.damaged"]) for path in files} == files
    assert again.quarantine is not None
    assert (again.quarantine.until, again.quarantine.why.split(" (")[0]) == (
        last.base_offset,
        f"{damaged.path} is damaged at byte {second}",
    )
    assert [mark.first_sequence for mark in again.producers.by_id[1].marks] == [0, 1, 2, 3]
    assert opened(disk.copy(), SMALL, clean=False).quarantine == again.quarantine


def test_after_a_clean_stop_the_recovery_point_is_the_end_even_if_the_next_start_dies_early() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    for _ in range(2):
        log.close_cleanly()
        log.mark_synced(log.sync_point())
    log.close_cleanly()
    assert log.sync_point().paths == ()
    assert opened(disk.copy(), SMALL).recovery_point == log.log_end_offset
    last = log.segments[-1]
    disk.files[last.path][16] ^= 1
    again = opened(disk, SMALL, clean=False)
    assert again.quarantine is not None
    assert disk.exists(f"{last.path}.damaged")


def test_damage_below_the_recovery_point_is_no_torn_tail() -> None:
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for _ in range(12):
        appended(log, batch_of(2))
        log.mark_synced(log.sync_point())
    assert log.bases[2] <= log.recovery_point
    for damaged, position in ((0, 16), (1, 0), (1, 10)):
        torn = disk.copy()
        segment = log.segments[damaged]
        torn.files[segment.path][position] ^= 0x40
        again = opened(torn, SMALL, clean=False)
        assert again.quarantine is not None
        assert again.log_end_offset == segment.base_offset
        kept = sorted(path for path in torn.files if path.endswith(".damaged"))
        assert kept == [f"{each.path}.damaged" for each in log.segments[damaged:]]


def test_a_quarantine_ends_when_the_log_holds_everything_again() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.close_cleanly()
    until, records = log.segments[-1].base_offset, all_bytes(log)
    first = headers_of(records)[0].size_bytes
    disk.files[log.segments[0].path][16] ^= 1
    again = opened(disk, SMALL)
    assert (again.log_start_offset, again.log_end_offset) == (0, 0)
    again.append_replicated(NOW, records[:first])
    assert not again.release(again.log_end_offset)
    again.append_replicated(NOW, records[first:])
    assert again.log_end_offset > until
    assert not again.release(again.log_end_offset + 1)
    assert again.quarantine is not None
    assert again.release(again.log_end_offset)
    assert again.quarantine is None
    assert opened(disk.copy(), SMALL, clean=False).quarantine is None
    assert [path for path in disk.files if path.endswith(".damaged")], "they are for whoever asks what happened"


def test_no_power_loss_brings_a_quarantine_back_that_has_ended() -> None:
    """The replica may be elected, and takes records that nobody else has."""
    disk = SimDisk(Random(1))
    log = filled(disk)
    disk.make_durable(log.segments[-1].path)
    log.close_cleanly()
    disk.flip(log.segments[0].path, 16 * 8)
    records = all_bytes(filled(MemoryDisk()))
    again = opened(disk, SMALL)
    again.append_replicated(NOW, records)
    assert again.release(again.log_end_offset)
    disk.power_loss()
    disk.process_started()
    assert opened(disk, SMALL, clean=False).quarantine is None


def test_what_is_synced_is_not_noted_before_the_new_start_of_a_log_that_began_anew_is_durable() -> None:
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
        log.note_synced()
        assert log.durable_end == 0
        disk.make_durable(log.synced_note)
        disk.power_loss()
        disk.process_started()
        assert opened(disk, SMALL, clean=False).quarantine is None
    synced(disk, log)
    log.note_synced()
    assert log.durable_end == 1002


def test_what_is_synced_is_noted_while_a_deletion_waits_for_its_log_start() -> None:
    disk = SimDisk(Random(1))
    log = filled(disk)
    synced(disk, log)
    log.advance_high_watermark(log.log_end_offset)
    log.delete_records_before(6)
    assert log.has_retired
    log.note_synced()
    assert log.durable_end == log.log_end_offset


def test_a_second_damage_leaves_what_the_first_one_put_aside() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.close_cleanly()
    disk.files[FIRST_FILE][16] ^= 1
    first = bytes(disk.files[FIRST_FILE])
    again = opened(disk, SMALL)
    again.append_replicated(NOW, all_bytes(filled(MemoryDisk())))
    again.close_cleanly()
    disk.files[FIRST_FILE][16] ^= 2
    opened(disk, SMALL)
    assert disk.files[f"{FIRST_FILE}.damaged"] == first
    assert disk.exists(f"{FIRST_FILE}.2.damaged")


def test_two_damages_that_show_one_after_the_other_are_both_kept_aside() -> None:
    """The first segment is read with its CRCs only once the second one, whose header is bad, is gone."""
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for _ in range(12):
        appended(log, batch_of(2))
        log.mark_synced(log.sync_point())
    first, second = log.segments[:2]
    assert second.next_offset <= log.recovery_point
    disk.files[first.path][-1] ^= 1
    disk.files[second.path][10] ^= 0x40
    again = opened(disk, SMALL, clean=False)
    assert again.log_end_offset == first.base_offset
    assert again.quarantine is not None
    assert again.quarantine.until >= log.recovery_point, "the later finding may not forget what the earlier one knew"
    assert {f"{each.path}.damaged" for each in (first, second)} <= set(disk.files)


@pytest.mark.parametrize("is_whole_file", [True, False])
def test_an_end_that_was_durable_and_is_gone_is_damage(is_whole_file: bool) -> None:
    """All batches that are left are good, so only the recovery point tells."""
    disk = MemoryDisk()
    log = filled(disk)
    for _ in range(2):
        log.close_cleanly()
        log.mark_synced(log.sync_point())
    last = log.segments[-1]
    if is_whole_file:
        for path in (last.path, last.offsets.path, last.times.path):
            disk.delete(path)
    else:
        *_, final = headers_of(bytes(disk.files[last.path]))
        disk.truncate(last.path, last.size_bytes - final.size_bytes)
    again = opened(disk, SMALL)
    assert again.log_end_offset < log.log_end_offset
    assert again.quarantine is not None
    assert again.quarantine.until == log.log_end_offset


def test_a_deleted_segment_that_comes_back_is_refused() -> None:
    """Below the recovery point nothing comes back by itself. Above it, it is what an unsynced deletion leaves."""
    disk = MemoryDisk()
    log = filled(disk, LogConfig())
    old = bytes(disk.files[FIRST_FILE])[: 71 * 2]
    log.close_cleanly()
    back = f"{DIRECTORY}/{7:020d}.log"
    disk.append(back, [old])
    closed = opened(disk.copy(), clean=True)
    assert closed.quarantine is not None
    assert "overlaps" in closed.quarantine.why
    assert closed.log_end_offset == log.log_end_offset
    torn = opened(disk, clean=False)
    assert torn.quarantine is None
    assert [cut.path for cut in torn.recovered.cuts] == [back]
    assert all_bytes(torn) == all_bytes(log)


def test_an_epoch_that_goes_back_is_refused() -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig())
    end, size = log.log_end_offset, log.size_bytes
    log.append_replicated(NOW, headers_moved(batch_of(1, leader_epoch=1), end))
    log.close_cleanly()
    closed = opened(disk.copy(), clean=True)
    assert closed.quarantine is not None
    assert f"byte {size} (offset {end}: its leader epoch goes back from 2 to 1)" in closed.quarantine.why
    torn = opened(disk, clean=False)
    assert (torn.log_end_offset, torn.latest_epoch, torn.recovered.cut_bytes) == (end, 2, log.size_bytes - size)


@pytest.mark.parametrize("bit", range(64))
def test_a_flipped_bit_of_an_index_entry_is_found(bit: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig(index_interval_bytes=0))
    log.close_cleanly()
    path = log.segments[0].offsets.path
    disk.files[path][16 + bit // 8] ^= 1 << bit % 8
    same(opened(disk, LogConfig(index_interval_bytes=0)), log)


def test_stray_index_files_are_deleted() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.write(f"{DIRECTORY}/{9999:020d}.index", bytes(8))
    opened(disk, SMALL)
    assert log_files(disk) == [segment.path for segment in log.segments]
    assert not disk.exists(f"{DIRECTORY}/{9999:020d}.index")


def test_an_empty_partition_has_no_files_and_stays_empty() -> None:
    disk = MemoryDisk()
    for clean in (True, False):
        log = opened(disk, clean=clean)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        assert log.read(0, 100) == b""
        assert log.sync_point().paths == ()
        log.close_cleanly()
    assert disk.files == {}


def test_recovery_is_cut_into_slices() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig())
    for _ in range(20):
        appended(log, batch_of(1, value=bytes(100_000)))
    for clean in (True, False):
        slices = list(open_log(disk.copy(), DIRECTORY, LogConfig(), NOW, clean))
        assert 5 <= len(slices) <= 8


def test_the_log_start_survives_a_crash_whether_synced_or_not() -> None:
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


def test_a_log_that_lost_more_than_was_deleted_starts_anew_there() -> None:
    disk = MemoryDisk()
    log = filled(disk, LogConfig())
    log.delete_records_before(20)
    del disk.files[FIRST_FILE][300:]
    again = opened(disk, clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (20, 20)
    assert appended(again, batch_of(2)).first_offset == 20
    same(opened(disk.copy(), clean=False), again)


@pytest.mark.parametrize("rows", [b"", b"0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"0\n2\n3 0\n3 9\n", b"1\n1\n0 0\n"])
def test_leader_epochs_come_from_the_batches_where_the_file_is_lost(rows: bytes) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.write(f"{DIRECTORY}/leader-epoch-checkpoint", rows)
    same(opened(disk.copy(), SMALL, clean=False), log)
    same(opened(disk.copy(), SMALL, clean=True), log)


@pytest.mark.parametrize(
    "rows",
    [
        b"0\n4\n0 0\n1 10\n2 20\n5 24\n",  # Of records that were cut off, before others came in their place.
        b"0\n3\n0 0\n1 10\n3 20\n",  # Of records that a power loss took, while the ones that they replaced came back.
        b"0\n3\n0 0\n1 10\n2 26\n",
        b"0\n3\n0 4\n1 6\n2 20\n",
        b"0\n2\n0 0\n2 20\n",
        b"0\n1\n7 0\n",
        b"0\n3\n1 10\n2 20\n9 22\n",
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_batches_are_right_where_the_epoch_file_says_otherwise(rows: bytes, clean: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.write(f"{DIRECTORY}/leader-epoch-checkpoint", rows)
    same(opened(disk, SMALL, clean=clean), log)
    assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 10\n2 20\n"


def test_a_log_that_starts_inside_its_first_batches_writes_no_epochs_at_each_start() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.delete_records_before(11)
    before = disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"]
    assert before == b"0\n2\n1 11\n2 20\n"
    for clean in (True, False):
        assert opened(disk, SMALL, clean=clean).epochs.starts == [11, 20]
        assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] is before


def test_the_epoch_file_has_kafkas_format() -> None:
    disk = MemoryDisk()
    filled(disk)
    assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 10\n2 20\n"
