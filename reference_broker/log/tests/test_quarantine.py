"""Damage of durable records: they are kept aside, the log is quarantined, and the quarantine ends in time."""

from random import Random

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import (
    DIRECTORY,
    NOW,
    all_bytes,
    batch_of,
    headers_of,
    opened,
    sent,
)
from reference_broker.log.tests.recovery_world import FIRST_FILE, SMALL, filled, headers_moved, stopped
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import iterate


def test_damage_after_clean_stop_sets_rest_aside() -> None:
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
    assert [mark.first_sequence for mark in again.producers.by_id[1].batch_metadata] == [0, 1, 2, 3]
    assert opened(disk.copy(), SMALL, clean=False).quarantine == again.quarantine


def test_damage_below_recovery_point_is_not_torn_tail() -> None:
    disk = MemoryDisk()
    log = filled(disk, each_synced=True)
    assert log.bases[2] <= log.files.recovery_point
    for damaged, position in ((0, 16), (1, 0), (1, 10)):
        torn = disk.copy()
        segment = log.segments[damaged]
        torn.files[segment.path][position] ^= 0x40
        again = opened(torn, SMALL, clean=False)
        assert again.quarantine is not None
        assert again.log_end_offset == segment.base_offset
        kept = sorted(path for path in torn.files if path.endswith(".damaged"))
        assert kept == [f"{each.path}.damaged" for each in log.segments[damaged:]]


def test_quarantine_ends_when_log_has_all_records_again() -> None:
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
    assert [path for path in disk.files if path.endswith(".damaged")], "they are kept for analysis"


def test_ended_quarantine_survives_power_loss() -> None:
    """The replica may be elected, and accepts records that no other replica has."""
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


def test_second_damage_keeps_earlier_files_set_aside() -> None:
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


def test_two_damages_found_in_sequence_are_both_set_aside() -> None:
    """The first segment is read with its CRCs only after the second one, whose header is bad, is set aside."""
    disk = MemoryDisk()
    log = filled(disk, each_synced=True)
    first, second = log.segments[:2]
    assert second.next_offset <= log.files.recovery_point
    disk.files[first.path][-1] ^= 1
    disk.files[second.path][10] ^= 0x40
    again = opened(disk, SMALL, clean=False)
    assert again.log_end_offset == first.base_offset
    assert again.quarantine is not None
    assert again.quarantine.until >= log.files.recovery_point, (
        "the later finding may not forget what the earlier one knew"
    )
    assert {f"{each.path}.damaged" for each in (first, second)} <= set(disk.files)


@pytest.mark.parametrize("is_whole_file", [True, False])
def test_missing_durable_end_is_damage(is_whole_file: bool) -> None:
    """All remaining batches are valid, so only the recovery point shows it."""
    disk = MemoryDisk()
    log = filled(disk)
    stopped(log)
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


def test_reappearing_deleted_segment_is_rejected() -> None:
    """Below the recovery point no segment reappears by itself. Above it, it is left by an unsynced deletion."""
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


def test_decreasing_epoch_is_damage() -> None:
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


@pytest.mark.thorough
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", range(12))
def test_damaged_base_offset_does_not_end_node(number: int, clean: bool) -> None:
    """No CRC covers it. A producer snapshot shows where no batch can be."""
    for bit in range(64):
        disk = MemoryDisk()
        log = opened(disk, SMALL)
        for sequence in range(0, 24, 2):
            sent(log, 7, sequence, 2)
            log.mark_synced(log.sync_point())
        if clean:
            stopped(log)
        path = next(segment.path for segment in reversed(log.segments) if segment.base_offset <= 2 * number)
        position = {header.base_offset: at for at, header in iterate(disk.files[path])}[2 * number]
        disk.files[path][position + 7 - bit // 8] ^= 1 << bit % 8
        again = opened(disk, SMALL, clean=clean)
        assert again.quarantine is not None or again.log_end_offset >= 24 or not clean
        if bit == 0 and clean and 2 * number + 2 in (*log.bases, 24):  # It ends one beyond the snapshot there.
            assert again.quarantine is not None
            assert f"spans {2 * number + 2}" in again.quarantine.why
        sent(again, 8, 0)
