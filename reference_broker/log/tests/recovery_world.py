"""Logs of several small segments, as a start finds them."""

from chaos.sim.disk import SimDisk
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import (
    DIRECTORY,
    all_bytes,
    appended,
    at,
    batch_of,
    offset_for_timestamp,
    offset_of_max_timestamp,
    opened,
)
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Disk, MemoryDisk

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=80)
FIRST_FILE = f"{DIRECTORY}/{0:020d}.log"


def headers_moved(batch: bytes, offset: int) -> bytes:
    """Return the batch at an offset, which its CRC does not cover."""
    return offset.to_bytes(8, "big") + batch[8:]


def filled(disk: Disk, config: LogConfig = SMALL, batches: int = 12, *, each_synced: bool = False) -> UnifiedLog:
    """Return a log with batches of two records, five batches in each leader epoch. If each is synced before the next
    one,
    the log has a recovery point."""
    log = opened(disk, config)
    for number in range(batches):
        appended(log, batch_of(2, timestamps=[number, number]), epoch=number // 5)
        if each_synced:
            log.mark_synced(log.sync_point())
    return log


def stopped(log: UnifiedLog) -> None:
    """Stop cleanly: first the log is synced, then its recovery point."""
    for _ in range(2):
        log.close_cleanly()
        log.mark_synced(log.sync_point())


def synced(disk: SimDisk, log: UnifiedLog) -> None:
    point = log.sync_point()
    disk.finish_sync(disk.begin_sync(point.paths))
    log.mark_synced(point)


def log_files(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.files if path.endswith(".log"))


def same(log: UnifiedLog, other: UnifiedLog) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (other.log_start_offset, other.log_end_offset)
    assert (log.epochs.epochs, log.epochs.starts) == (other.epochs.epochs, other.epochs.starts)
    assert log.bases == other.bases
    assert all_bytes(log) == all_bytes(other)
    for timestamp in range(at(0).wall_ms - 1, at(20).wall_ms):
        assert offset_for_timestamp(log, timestamp) == offset_for_timestamp(other, timestamp)
    assert offset_of_max_timestamp(log) == offset_of_max_timestamp(other)
