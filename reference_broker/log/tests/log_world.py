"""Helpers of the log's tests: batches, a fresh log on a disk in memory, restarts."""

from collections.abc import Sequence
from typing import Any

import pytest

from reference_broker.log.appending import AppendResult, BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import FoundOffset, RecordsRefused, UnifiedLog
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, run_to_end
from reference_broker.records.batch import BatchHeader, iterate
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import Error

DIRECTORY = "events-0"
START_MS = 1_700_000_000_000
NOW = Now(0, START_MS)
THREE_EACH = LogConfig(segment_bytes=300, index_interval_bytes=80, retention_ms=-1)
"""Three batches of ``filled`` for each segment."""


def at(ms: int) -> Now:
    """Return the time ``ms`` after the tests' start."""
    return Now(ms * 1000, START_MS + ms)


def opened(disk: Disk, config: LogConfig | None = None, *, now: Now = NOW, clean: bool = True) -> UnifiedLog:
    log = run_to_end(open_log(disk, DIRECTORY, config or LogConfig(), now, clean))
    log.check_invariants()
    log.advance_high_watermark(log.log_end_offset)
    return log


def offset_for_timestamp(log: UnifiedLog, timestamp_ms: int) -> FoundOffset | None:
    return run_to_end(log.search_timestamp(timestamp_ms, Budget(LOOKUP_US_PER_SLICE)))


def offset_of_max_timestamp(log: UnifiedLog) -> FoundOffset:
    return run_to_end(log.search_max_timestamp(Budget(LOOKUP_US_PER_SLICE)))


def batch_of(count: int, *, timestamps: Sequence[int] | None = None, value: bytes = b"value", **how: Any) -> bytes:
    """``timestamps``: ms after the tests' start."""
    times = timestamps or [0] * count
    records = [Record(timestamp_ms=START_MS + time, key=b"k", value=value + b"%d" % n) for n, time in enumerate(times)]
    return build(records, **how)


def appended(log: UnifiedLog, data: bytes, *, now: Now = NOW, epoch: int = 0) -> AppendResult:
    result = log.append(now, data, epoch)
    log.check_invariants()
    log.advance_high_watermark(log.log_end_offset)
    return result


def filled(disk: Disk, config: LogConfig = THREE_EACH, batches: int = 12) -> UnifiedLog:
    """Append batches of two records, from offset 0 on."""
    log = opened(disk, config)
    for number in range(batches):
        appended(log, batch_of(2, timestamps=[number, number]))
    return log


def sent(
    log: UnifiedLog, producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, **how: Any
) -> AppendResult:
    """Return an idempotent producer's batch."""
    data = batch_of(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return appended(log, data, **how)


def refused(log: UnifiedLog, producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0) -> Error:
    """Return the error of such a batch, which changed nothing."""
    end, size = log.log_end_offset, log.size_bytes
    with pytest.raises(RecordsRefused) as refusal:
        sent(log, producer_id, sequence, count, epoch=epoch)
    assert (log.log_end_offset, log.size_bytes) == (end, size)
    return refusal.value.error


def marked(log: UnifiedLog, data: bytes) -> AppendResult:
    """Append a transaction marker, as the broker writes it."""
    result = log.append(NOW, data, 0, origin=BatchOrigin.BROKER)
    log.advance_high_watermark(log.log_end_offset)
    return result


def headers_of(data: bytes) -> list[BatchHeader]:
    return [header for _, header in iterate(data)]


def all_bytes(log: UnifiedLog) -> bytes:
    """Return the whole log, read as by a client."""
    offset, parts = log.log_start_offset, []
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert data, f"nothing at offset {offset} of {log.log_end_offset}"
        parts.append(data)
        offset = headers_of(data)[-1].last_offset + 1
    return b"".join(parts)
