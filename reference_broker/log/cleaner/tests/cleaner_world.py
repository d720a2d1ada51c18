"""Helpers of the cleaner's tests: a disk that models power losses, keyed records, passes run by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_broker.log.cleaner.cleaning import Cleanable, Cleaned, Cleaning, Step, cleanable
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import NOW, START_MS, opened
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Buffer, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.records.batch import BatchHeader
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_all

BUFFER_BYTES = 1 << 20
COMPACTED = LogConfig(
    segment_bytes=400,
    index_interval_bytes=120,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)


@dataclass(slots=True)
class SyncingDisk(MemoryDisk):
    """``durable``: by path, the number of bytes that survive a power loss."""

    durable: dict[str, int] = field(default_factory=dict)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path in self.files:
                self.durable[path] = len(self.files[path])

    def truncate(self, path: str, size: int) -> None:
        MemoryDisk.truncate(self, path, size)
        self.durable[path] = min(self.durable.get(path, 0), size)

    def write(self, path: str, data: Buffer) -> None:
        MemoryDisk.write(self, path, data)
        self.durable.pop(path, None)

    def rename(self, source: str, target: str) -> None:
        MemoryDisk.rename(self, source, target)
        self.durable[target] = self.durable.pop(source, 0)

    def delete(self, path: str) -> None:
        MemoryDisk.delete(self, path)
        self.durable.pop(path, None)

    def after_power_loss(self) -> "SyncingDisk":
        files = {path: content[: self.durable.get(path, 0)] for path, content in self.files.items()}
        return SyncingDisk(files, durable={path: len(content) for path, content in files.items()})

    def as_it_is(self) -> "SyncingDisk":
        """Return the disk after the process was killed: nothing is lost."""
        return SyncingDisk({path: bytearray(content) for path, content in self.files.items()}, durable=self.durable)


def sync_all(log: UnifiedLog, disk: SyncingDisk) -> None:
    point = log.sync_point()
    disk.sync(point.paths)
    log.mark_synced(point)


def put(
    log: UnifiedLog,
    *pairs: tuple[str, str | None],
    now: Now = NOW,
    epoch: int = 0,
    codec: Compression = Compression.NONE,
    producer: tuple[int, int] | None = None,
    transactional: bool = False,
) -> int:
    """Append one batch; value None: a tombstone. ``producer``: ID and base sequence. Return the first offset."""
    records = [
        Record(timestamp_ms=now.wall_ms, key=key.encode(), value=None if value is None else value.encode())
        for key, value in pairs
    ]
    who: dict[str, Any] = {}
    if producer is not None:
        who = {"producer_id": producer[0], "producer_epoch": 0, "base_sequence": producer[1]}
    data = build(records, compression=codec, is_transactional=transactional, **who)
    first = log.append(now, data, epoch).first_offset
    log.advance_high_watermark(log.log_end_offset)
    return first


def rolled(log: UnifiedLog, now: Now = NOW) -> None:
    """Roll the log, so that all records are in closed segments."""
    if log.segments and log.segments[-1].size_bytes:
        log.roll(now)


def dirty(log: UnifiedLog, now: Now = NOW) -> Cleanable:
    part = cleanable(log, now)
    assert part is not None, "nothing is dirty"
    return part


def carry_out(disk: SyncingDisk, step: Step) -> None:
    disk.sync(step.sync)


def cleaned(log: UnifiedLog, disk: SyncingDisk, now: Now = NOW, buffer_bytes: int = BUFFER_BYTES) -> Cleaned:
    """Run one whole pass."""
    cleaning = Cleaning(log, dirty(log, now), now, buffer_bytes)
    for step in cleaning.run():
        carry_out(disk, step)
    return cleaning.done


def contents(log: UnifiedLog) -> list[tuple[BatchHeader, Record]]:
    """Return every record, read as by a client, and the header of its batch."""
    offset, found = log.log_start_offset, []
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert data, f"nothing at offset {offset} of {log.log_end_offset}"
        for header, record in read_all(data):
            if record.offset >= log.log_start_offset:
                found.append((header, record))
        offset = headers_in(data)[-1].last_offset + 1
    return found


def headers_in(data: bytes) -> list[BatchHeader]:
    from reference_broker.records.batch import iterate

    return [header for _, header in iterate(data)]


def all_headers(log: UnifiedLog) -> list[BatchHeader]:
    disk = log.disk
    files = [disk.read(segment.path, 0, segment.size_bytes) for segment in log.segments]
    return [header for data in files for header in headers_in(data)]


def texts(log: UnifiedLog) -> list[tuple[int, str, str | None]]:
    """Return offset, key and value of each record."""
    return [
        (record.offset, (record.key or b"?").decode(), None if record.value is None else record.value.decode())
        for _, record in contents(log)
    ]


def fresh(config: LogConfig = COMPACTED) -> tuple[UnifiedLog, SyncingDisk]:
    disk = SyncingDisk()
    return opened(disk, config), disk


__all__ = ["NOW", "START_MS"]
