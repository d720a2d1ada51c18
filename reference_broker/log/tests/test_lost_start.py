"""A log whose first segment is missing: detection, and cases where it cannot be detected."""

import pytest

from reference_broker.log.tests.log_world import DIRECTORY, NOW, opened
from reference_broker.log.tests.recovery_world import SMALL, filled, stopped
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk

EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"
LOG_START = f"{DIRECTORY}/log-start-offset-checkpoint"


def written(disk: MemoryDisk, *, clean: bool = True) -> UnifiedLog:
    log = filled(disk, each_synced=True)
    if clean:
        stopped(log)
    return log


@pytest.mark.parametrize("clean", [True, False])
def test_missing_first_segment_is_detected_by_leader_epoch(clean: bool) -> None:
    disk = MemoryDisk()
    log = written(disk, clean=clean)
    assert not disk.exists(LOG_START)
    disk.delete(log.segments[0].path)
    rest = {segment.path: bytes(disk.files[segment.path]) for segment in log.segments[1:]}
    again = opened(disk, SMALL, clean=clean)
    assert again.quarantine is not None
    assert f"the records from offset 0 to {log.bases[1]} before it are gone" in again.quarantine.why
    assert (again.log_start_offset, again.log_end_offset) == (0, 0)
    assert {path: bytes(disk.files[f"{path}.damaged"]) for path in rest} == rest


@pytest.mark.parametrize("clean", [True, False])
def test_missing_first_segment_is_detected_by_log_start(clean: bool) -> None:
    disk = MemoryDisk()
    log = written(disk, clean=False)
    start = log.bases[1]
    log.delete_records_before(start)
    log.mark_synced(log.sync_point())
    if clean:
        stopped(log)
    assert opened(disk.copy(), SMALL, clean=clean).quarantine is None
    disk.delete(log.segments[0].path)
    again = opened(disk, SMALL, clean=clean)
    assert again.quarantine is not None
    assert f"the records from offset {start} to {log.bases[1]} before it are gone" in again.quarantine.why
    assert (again.log_start_offset, again.log_end_offset) == (start, start)


@pytest.mark.parametrize(("epochs", "clean"), [(None, True), (b"0\n0\n", True), (b"0\n0\n", False)])
def test_log_without_known_start_starts_at_first_segment(epochs: bytes | None, clean: bool) -> None:
    """As in a directory of Kafka, which keeps the log starts of all partitions in one file, and has no epochs of old
    records. Its epoch file is never missing after a crash."""
    disk = MemoryDisk()
    log = filled(disk)
    if clean:
        stopped(log)
    disk.delete(log.segments[0].path)
    if epochs is None:
        disk.delete(EPOCHS)
    else:
        disk.write(EPOCHS, epochs)
    again = opened(disk, SMALL, clean=clean)
    assert again.quarantine is None
    assert again.log_start_offset == log.bases[1]
    assert again.log_end_offset == log.log_end_offset


def test_log_start_can_be_set_to_remaining_records_by_hand() -> None:
    disk = MemoryDisk()
    log = written(disk)
    disk.delete(log.segments[0].path)
    assert opened(disk, SMALL).quarantine is not None
    for segment in log.segments[1:]:
        disk.rename(f"{segment.path}.damaged", segment.path)
    disk.write(LOG_START, f"0\n1\nt 0 {log.bases[1]}\n".encode())
    disk.delete(f"{DIRECTORY}/quarantine")
    again = opened(disk, SMALL)
    assert again.quarantine is None
    assert (again.log_start_offset, again.log_end_offset) == (log.bases[1], log.log_end_offset)


def test_deletion_interrupted_by_power_loss_is_not_damage() -> None:
    """The new first segment may be durable before the new log start is."""
    disk = MemoryDisk()
    log = written(disk)
    log.truncate_fully_and_start_at(100, NOW)
    for path in [path for path in disk.files if path.startswith(LOG_START)]:
        disk.delete(path)
    again = opened(disk, SMALL, clean=False)
    assert again.quarantine is None
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("epochs", ["whole", "torn", "missing"])
def test_log_does_not_start_after_records_lost_in_power_loss(epochs: str) -> None:
    """Nothing was synced yet, and only the name of the second segment has survived. A replica with such a log would be
    elected later, and all others would delete the records that it lacks."""
    disk = MemoryDisk()
    log = filled(disk)
    assert len(log.segments) > 1
    disk.delete(log.segments[0].path)
    if epochs == "torn":
        disk.truncate(EPOCHS, 3)
    elif epochs == "missing":
        disk.delete(EPOCHS)
    again = opened(disk, SMALL, clean=False)
    assert again.quarantine is None
    assert (again.log_start_offset, again.log_end_offset, again.latest_epoch) == (0, 0, -1)
    assert not [path for path in disk.files if path == log.segments[1].path]
