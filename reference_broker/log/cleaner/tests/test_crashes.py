"""A pass that dies at any disk operation: the next start has a log without losses, and cleans it."""

from dataclasses import replace

import pytest

from reference_broker.log.cleaner.cleaning import CleaningFailed
from reference_broker.log.cleaner.tests.cleaner_world import (
    COMPACTED,
    SyncingDisk,
    cleaned,
    fresh,
    put,
    sync_all,
    texts,
)
from reference_broker.log.opening import open_log
from reference_broker.log.tests.log_world import DIRECTORY, NOW, at, opened
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import DiskError
from reference_broker.ports.slicing import run_to_end

POLICIES = [COMPACTED, replace(COMPACTED, cleanup_policy="delete", retention_ms=-1)]
"""In force at the next start: holes that the cleaner made are no damage, whatever has become of the topic."""


def written() -> tuple[UnifiedLog, SyncingDisk]:
    """Return a log that is durable, cleaned once, and dirty again, of several groups, the first of which has several
    segments."""
    log, disk = fresh()
    for number in range(20):
        put(log, (f"k{number % 6}", str(number)), ("same", str(number)), epoch=number // 8, producer=(number % 2, 0))
    log.roll(NOW)
    cleaned(log, disk)
    for number in range(20, 30):
        put(log, (f"k{number % 6}", str(number)), (f"only{number}", None), epoch=4)
    log.roll(NOW)
    put(log, ("k0", "end"), epoch=5)
    sync_all(log, disk)
    return log, disk


def newest(log: UnifiedLog) -> dict[str, tuple[int, str | None]]:
    return {key: (offset, value) for offset, key, value in texts(log)}


def reopened(disk: SyncingDisk, policy: int = 0, *, clean: bool = False) -> UnifiedLog:
    log = run_to_end(open_log(disk, DIRECTORY, POLICIES[policy], at(5), clean))
    log.advance_high_watermark(log.log_end_offset)
    return log


@pytest.mark.thorough
@pytest.mark.clause("LogCleanerTest.testRecoveryAfterCrash")
@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("power_loss", [False, True])
def test_pass_dying_at_each_operation_loses_no_records(power_loss: bool, policy: int) -> None:
    log, disk = written()
    wanted, end, epochs = newest(log), log.log_end_offset, (log.epochs.epochs[:], log.epochs.starts[:])
    whole_log, whole_disk = written()
    cleaned(whole_log, whole_disk)
    died = 0
    for operations in range(1000):
        log, disk = written()
        disk.fail_after = operations
        try:
            cleaned(log, disk)
        except (CleaningFailed, DiskError):
            died += 1
        else:
            break
        left = disk.after_power_loss() if power_loss else disk.as_it_is()
        again = reopened(left, policy)
        assert again.log_end_offset == end
        assert again.recovered.cut_bytes == again.recovered.deleted_segments == 0
        assert newest(again) == wanted
        assert (again.epochs.epochs, again.epochs.starts) == epochs
        assert [segment.next_offset for segment in again.segments[:-1]] == again.bases[1:]
        assert not [name for name in left.list(DIRECTORY) if ".cleaned" in name or ".swap" in name]
        again.config = COMPACTED
        if again.cleaned_offset < whole_log.cleaned_offset:
            cleaned(again, left)
        assert texts(again) == texts(whole_log)
    assert died > 25


@pytest.mark.thorough
def test_start_dying_at_each_operation_is_completed_by_next() -> None:
    log, _ = written()
    wanted, end = newest(log), log.log_end_offset
    starts = 0
    for operations in range(1000):
        log, disk = written()
        disk.fail_after = operations
        try:
            cleaned(log, disk)
        except (CleaningFailed, DiskError):
            pass
        else:
            break
        for until in range(100):
            left = disk.as_it_is()
            left.fail_after = until
            try:
                reopened(left)
            except DiskError:
                starts += 1
                left.fail_after = None
                again = reopened(left)
                assert (newest(again), again.log_end_offset) == (wanted, end)
            else:
                break
    assert starts > 50


def test_clean_start_completes_swap_without_old_indexes() -> None:
    for operations in range(1000):
        log, disk = written()
        log.close_cleanly()
        wanted = newest(log)
        disk.fail_after = operations
        try:
            cleaned(log, disk)
        except (CleaningFailed, DiskError):
            disk.fail_after = None
            again = reopened(disk, clean=True)
            assert newest(again) == wanted
            for offset in range(again.log_end_offset):
                assert again.read(offset, 1)
        else:
            return


def test_swapped_segments_need_no_scan_after_crash() -> None:
    log, disk = written()
    cleaned(log, disk)
    sync_all(log, disk)
    put(log, ("x", "y" * 300), epoch=5)
    sync_all(log, disk)
    put(log, ("x", "y" * 300), epoch=5)
    again = reopened(disk.as_it_is())
    assert again.recovered.verified_bytes < log.size_bytes / 2


def test_lost_tail_is_distinguished_from_gap() -> None:
    log, disk = fresh()
    for number in range(12):
        put(log, ("k", str(number)))
    lost = log.segments[1]
    disk.files[lost.path] = disk.files[lost.path][:-80]
    again = opened(disk, COMPACTED, clean=False)
    assert again.log_end_offset < lost.next_offset
