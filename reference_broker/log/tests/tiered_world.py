"""Logs whose old segments are in a remote tier."""

from dataclasses import replace

from chaos.sim.disk import SimDisk
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import appended, at, batch_of, opened
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Disk, MemoryDisk

TIERED = LogConfig(
    segment_bytes=300, index_interval_bytes=80, retention_ms=-1, remote_storage_enable=True, local_retention_bytes=0
)
"""Three batches of ``filled`` for each segment. All that is copied goes here."""
NOT_TIERED = replace(TIERED, remote_storage_enable=False)


def filled(disk: Disk, config: LogConfig = TIERED, batches: int = 12) -> UnifiedLog:
    """Batches of two records, from offset 0 on, in three leader epochs, of two idempotent producers."""
    log = opened(disk, config)
    for number in range(batches):
        data = batch_of(
            2, timestamps=[number, number], producer_id=number % 2, producer_epoch=0, base_sequence=number // 2 * 2
        )
        appended(log, data, epoch=number // 5)
    return log


def synced(log: UnifiedLog) -> None:
    """Make all bytes of the log durable."""
    point = log.sync_point()
    if isinstance(log.disk, SimDisk):
        log.disk.finish_sync(log.disk.begin_sync(point.paths))
    log.mark_synced(point)


def shortened(disk: Disk, copied: int = 12, config: LogConfig = TIERED) -> UnifiedLog:
    """Return a log whose records below the offset ``copied`` are listed in the tier, and deleted locally."""
    log = filled(disk, config)
    synced(log)
    log.copied_end_offset = copied
    log.enforce_retention(at(100))
    synced(log)
    return log


def log_names(disk: MemoryDisk) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in disk.files if path.endswith(".log"))
