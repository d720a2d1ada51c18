"""A tiered log whose process or power ends at any operation on the disk, or whose disk refuses one."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from chaos.sim.disk import SimDisk
from reference_broker.log.opening import open_log
from reference_broker.log.producer_state import encode_snapshot
from reference_broker.log.tests.log_world import DIRECTORY, NOW, at, opened
from reference_broker.log.tests.mortal_disk import Died, MortalDisk
from reference_broker.log.tests.tiered_world import TIERED, filled
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Disk, DiskError, MemoryDisk, UndoFailed
from reference_broker.ports.slicing import run_to_end

EPOCHS = [(0, 0), (1, 10), (2, 20)]


def _synced(disk: MortalDisk, log: UnifiedLog) -> None:
    """Sync the paths as one operation, at which the process may die, too."""
    point = log.sync_point()
    disk.make_durable(point.paths[0])
    disk.disk.finish_sync(disk.disk.begin_sync(point.paths))
    log.mark_synced(point)


def _shorten(disk: MortalDisk, log: UnifiedLog) -> None:
    for copied in (6, 12, 18):
        log.copied_end_offset = copied
        log.enforce_retention(at(100))
        _synced(disk, log)


def _start_in_the_tier(_: MortalDisk, log: UnifiedLog) -> None:
    log.start_from_remote(NOW, 40, 3, EPOCHS, encode_snapshot(log.producers), log.producers)


def _cut_into_the_tier(disk: MortalDisk, log: UnifiedLog) -> None:
    log.truncate_to(4)
    _synced(disk, log)


def _deaths(
    change: Callable[[MortalDisk, UnifiedLog], None], before: Callable[[MortalDisk, UnifiedLog], None] | None = None
) -> Iterator[tuple[UnifiedLog, UnifiedLog]]:
    """Yield the log as it was before the change, and as a start finds it after each death in it, with and without
    power."""
    for loses_power in (False, True):
        for left in range(1000):
            disk = MortalDisk(SimDisk(Random(left)))
            log = filled(_as_disk(disk))
            _synced(disk, log)
            if before is not None:
                before(disk, log)
            disk.left = left
            try:
                change(disk, log)
            except Died:
                disk.left = None
            else:
                assert left > 5, "the change has more operations than that"
                break
            if loses_power:
                disk.disk.power_loss()
            again = run_to_end(open_log(_as_disk(disk), DIRECTORY, TIERED, NOW, clean=False))
            again.check_invariants()
            assert again.quarantine is None
            yield log, again


def _as_disk(disk: MortalDisk) -> Disk:
    found: Disk = disk
    return found


@pytest.mark.clause("P-11")
def test_death_in_local_retention_keeps_epochs_and_producers() -> None:
    whole = filled(MemoryDisk())
    found = set()
    for _, again in _deaths(_shorten):
        found.add(again.local_log_start_offset)
        assert (again.log_start_offset, again.log_end_offset) == (0, 24)
        assert (again.epochs.epochs, again.epochs.starts) == ([0, 1, 2], [0, 10, 20])
        assert encode_snapshot(again.producers) == encode_snapshot(whole.producers)
        again.advance_high_watermark(24)
        for offset in range(again.local_log_start_offset, 24):
            assert again.read(offset, 1) == whole.read(offset, 1)
    assert found == {0, 6, 12, 18}


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("before", [None, _shorten], ids=["a whole log", "a log that is in the tier already"])
def test_death_while_starting_in_tier_leaves_whole_or_empty_log(
    before: Callable[[MortalDisk, UnifiedLog], None] | None,
) -> None:
    """The log never has its leader's offsets without the producers and the epochs."""
    whole = encode_snapshot(filled(MemoryDisk()).producers)
    found = set()
    for log, again in _deaths(_start_in_the_tier, before):
        found.add(again.log_end_offset)
        if again.log_end_offset == 40:
            assert (again.log_start_offset, again.local_log_start_offset) == (3, 40)
            assert (again.epochs.epochs, again.epochs.starts) == ([0, 1, 2], [3, 10, 20])
            assert encode_snapshot(again.producers) == whole
        elif again.log_end_offset == 24:
            assert encode_snapshot(again.producers) == whole
        else:
            assert again.log_start_offset == again.local_log_start_offset == again.log_end_offset
            assert not again.producers.by_id
            assert not again.segments
        del log
    assert {0, 24} <= found
    assert found <= {0, 3, 24, 40}


def test_death_in_truncation_into_tier_leaves_whole_or_empty_log() -> None:
    found = {
        (again.log_start_offset, again.log_end_offset, bool(again.producers.by_id))
        for _, again in _deaths(_cut_into_the_tier, _shorten)
    }
    assert found == {(0, 24, True), (0, 0, False)}


def test_restarted_log_keeps_later_records() -> None:
    """The record that it was about to restart must not reappear."""
    for seed in range(20):
        disk = MortalDisk(SimDisk(Random(seed)))
        log = filled(_as_disk(disk))
        _synced(disk, log)
        _shorten(disk, log)
        _cut_into_the_tier(disk, log)
        log = filled(_as_disk(disk))
        _synced(disk, log)
        disk.disk.power_loss()
        again = opened(_as_disk(disk), TIERED, clean=False)
        assert (again.log_start_offset, again.log_end_offset) == (0, 24)


def test_disk_error_during_log_restart_ends_node() -> None:
    refused = 0
    for fail_after in range(100):
        disk = MemoryDisk()
        log = filled(disk)
        log.mark_synced(log.sync_point())
        disk.fail_after = fail_after
        try:
            log.start_from_remote(NOW, 40, 3, EPOCHS, encode_snapshot(log.producers), log.producers)
        except UndoFailed:
            refused += 1
            disk.fail_after = None
            assert opened(disk, TIERED, clean=False).log_end_offset in (0, 3, 24, 40)
        else:
            break
    assert refused > 5


def test_disk_error_in_local_retention_changes_nothing() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.mark_synced(log.sync_point())
    log.copied_end_offset = 12
    disk.fail_after = 0
    with pytest.raises(DiskError):
        log.enforce_retention(NOW)
    disk.fail_after = None
    log.check_invariants()
    assert log.local_log_start_offset == 0
    assert log.enforce_retention(NOW) == 2


def _lose_snapshots(_: MortalDisk, log: UnifiedLog) -> None:
    for offset in log.segments.snapshots.offsets[:]:
        log.segments.snapshots.delete(offset)


def _recreate(_: MortalDisk, log: UnifiedLog) -> None:
    _recreated(log)


def _recreated(log: UnifiedLog) -> list[bytes]:
    """Make all snapshots that a copy of the closed segments needs, and return them."""
    return [run_to_end(log.recreate_snapshot(NOW, offset)).snapshot for offset in log.bases[1:]]


@pytest.mark.clause("P-8", "P-12")
def test_death_in_snapshot_rebuild_leaves_whole_or_no_snapshot() -> None:
    """A torn one is never loaded, and the next attempt makes the same."""
    whole = filled(MemoryDisk())
    _lose_snapshots(MortalDisk(SimDisk(Random(0))), whole)
    wanted = _recreated(whole)
    found = set()
    for _, again in _deaths(_recreate, _lose_snapshots):
        found.add(len(again.segments.snapshots.offsets))
        assert encode_snapshot(again.producers) == encode_snapshot(whole.producers)
        assert _recreated(again) == wanted
    assert len(found) > 1
