"""A log whose file does not match its state, because an append and its undo failed."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from reference_broker.log.checkpoints import LOG_START_FILE
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import NOW, all_bytes, appended, batch_of, opened
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Buffer, DiskError, MemoryDisk, UndoFailed


def synced_cleanly(log: UnifiedLog) -> None:
    """Close the log as a shutdown does: twice, with a sync after each."""
    for _ in range(2):
        log.close_cleanly()
        log.mark_synced(log.sync_point())


@dataclass(slots=True)
class TornDisk(MemoryDisk):
    """``tears``: the next append of records writes half of its bytes, fails, and cannot be undone."""

    tears: bool = False

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        if not (self.tears and path.endswith(".log")):
            return MemoryDisk.append(self, path, buffers)
        data = b"".join(buffers)
        MemoryDisk.append(self, path, [data[: len(data) // 2]])
        self.tears = False
        raise UndoFailed(f"{path}: cannot undo")


@pytest.mark.clause("UnifiedLogTest.testAppendToOrReadFromLogInFailedLogDir")
@pytest.mark.parametrize("segment_bytes", [1 << 20, 200], ids=["same segment", "new segment"])
def test_failed_undo_takes_log_offline_and_restart_truncates(segment_bytes: int) -> None:
    disk, config = TornDisk(), LogConfig(segment_bytes=segment_bytes)
    log = opened(disk, config)
    for _ in range(2):
        appended(log, batch_of(1))
    before, end = all_bytes(log), log.log_end_offset
    disk.tears = True
    with pytest.raises(UndoFailed):
        log.append(NOW, batch_of(1, value=b"torn" * 20), 0)
    assert log.is_offline
    assert log.log_end_offset == end
    with pytest.raises(DiskError, match="offline"):
        log.append(NOW, batch_of(1), 0)
    with pytest.raises(DiskError, match="offline"):
        log.read(0, 1000)
    again = opened(disk, config, clean=False)
    assert all_bytes(again) == before
    assert again.quarantine is None
    assert appended(again, batch_of(1)).first_offset == end


def test_failed_sync_of_truncation_ends_node() -> None:
    """After a failed sync a second one succeeds without the bytes, so it must not be retried."""

    class Failing(MemoryDisk):
        def make_durable(self, path: str) -> None:
            raise DiskError(f"sync {path}: input/output error")

    disk = Failing()
    log = opened(disk, LogConfig())
    for _ in range(5):
        log.append(NOW, batch_of(2), 0)
    log.truncate_to(8)
    with pytest.raises(UndoFailed, match="input/output error"):
        log.append(NOW, batch_of(2), 1)
    assert log.log_end_offset == 8


def test_truncation_with_failed_read_changes_nothing() -> None:
    class Failing(MemoryDisk):
        fails = False

        def read(self, path: str, position: int, length: int) -> bytes:
            if self.fails and position == 0:
                raise DiskError(f"read {path}: input/output error")
            return super().read(path, position, length)

    disk = Failing()
    log = opened(disk, LogConfig(index_interval_bytes=1))
    for _ in range(5):
        log.append(NOW, batch_of(2), 0)
    disk.fails = True
    with pytest.raises(DiskError):
        log.truncate_to(4)
    log.check_invariants()
    assert log.log_end_offset == 10
    disk.fails = False
    log.truncate_to(4)
    log.check_invariants()
    assert log.log_end_offset == 4


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_written_by_append", [True, False])
@pytest.mark.parametrize("empties", [True, False])
def test_log_begins_where_its_records_do_although_the_disk_refuses_the_log_start(
    empties: bool, is_written_by_append: bool, clean: bool
) -> None:
    """Otherwise a log without a tier would seem to have records there, and a start would look for them."""

    class Full(MemoryDisk):
        fails = False

        def write(self, path: str, data: Buffer) -> None:
            if self.fails and LOG_START_FILE in path:
                raise DiskError(f"write {path}: no space left on device")
            super().write(path, data)

    disk = Full()
    log = opened(disk, LogConfig())
    for _ in range(5):
        log.append(NOW, batch_of(2), 0)
    log.advance_high_watermark(8)
    log.delete_records_before(8)
    disk.fails = True
    with pytest.raises(DiskError, match="no space"):
        log.truncate_fully_and_start_at(20, NOW) if empties else log.truncate_to(4)
    starts = log.log_start_offset, log.local_log_start_offset, log.log_end_offset
    assert starts == ((20, 20, 20) if empties else (4, 4, 4))
    log.check_invariants()
    with pytest.raises(DiskError, match="no space"):
        log.append(NOW, batch_of(2), 1)
    disk.fails = False
    if is_written_by_append:
        appended(log, batch_of(8), epoch=1)
    synced_cleanly(log)
    again = opened(disk, LogConfig(), clean=clean)
    assert again.quarantine is None
    assert (again.log_start_offset, again.log_end_offset) == (starts[0], log.log_end_offset)


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("clean", [True, False])
def test_leftover_file_of_failed_roll_is_not_damage(clean: bool) -> None:
    """The disk creates the file and then fails. A smaller batch still fits into the segment before it."""

    @dataclass(slots=True)
    class Full(MemoryDisk):
        fails: bool = False

        def append(self, path: str, buffers: Sequence[Buffer]) -> int:
            is_new = path.endswith(".log") and not self.exists(path)
            size = MemoryDisk.append(self, path, buffers)
            if self.fails and is_new:
                self.fails = False
                raise DiskError(f"append {path}: no space left on device")
            return size

    disk, config = Full(), LogConfig(segment_bytes=400)
    log = opened(disk, config)
    for _ in range(3):
        appended(log, batch_of(1))
    disk.fails = True
    with pytest.raises(DiskError, match="no space"):
        log.append(NOW, batch_of(1, value=b"large" * 40), 0)
    appended(log, batch_of(1))
    before, end = all_bytes(log), log.log_end_offset
    assert len([each for each in disk.list(log.directory) if each.endswith(".log")]) == 2
    for _ in range(2):
        log = opened(disk, config, clean=clean)
        assert all_bytes(log) == before
        assert log.log_end_offset == end
        assert log.quarantine is None
        log.check_invariants()
    appended(log, batch_of(1, value=b"large" * 40))
    assert all_bytes(opened(disk, config, clean=clean)).startswith(before)
