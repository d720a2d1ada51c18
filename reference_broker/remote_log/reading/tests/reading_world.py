"""A log whose closed segments are in the tier only, and a twin with all records."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import appended, batch_of, headers_of, opened
from reference_broker.log.tests.test_open_transactions import Producers
from reference_broker.log.tests.tiered_world import TIERED, synced
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.remote_log.reading import reader, segment_readings
from reference_broker.remote_log.reading.reader import RemoteRecords
from reference_broker.remote_log.tests.tier_world import Tier, TierNode
from reference_broker.replication.partitions import Partition

BLOCK_SIZES = (64, 100, 1 << 20)


def set_block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module in (segment_readings, reader):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)


class Tiered:
    """A log whose closed segments are in the tier only, and ``twin``, which has all of it."""

    def __init__(self, fill: Callable[[UnifiedLog], object], config: LogConfig = TIERED, **broker: Any) -> None:
        self.twin = opened(MemoryDisk(), replace(config, remote_storage_enable=False))
        self.log = opened(MemoryDisk(), config)
        for log in (self.twin, self.log):
            fill(log)
            log.advance_high_watermark(log.log_end_offset)
        self.tier = Tier()
        disk: Any = self.log.disk
        self.node = TierNode(self.tier, disk=disk, **broker)
        self.partition: Partition = self.node.lead(self.log)
        self.tier.pass_ms(5000)
        synced(self.log)
        self.log.delete_local(self.log.copied_end_offset)
        synced(self.log)
        self.log.check_invariants()
        assert self.log.local_log_start_offset == self.log.bases[0] == self.twin.bases[-1]
        self.gets: list[str] = []
        self.node.ports.after = self._note

    def _note(self, name: str) -> None:
        self.gets.append(name)

    def result(self, start: Callable[..., object], *args: Any, ms: int = 50, **how: Any) -> Any:
        results: list[Any] = []
        start(self.log, 0, *args, results.append, **how)
        self.tier.pass_ms(ms)
        assert len(results) == 1
        return results[0]

    def read(self, offset: int, max_bytes: int = 1 << 20, **how: Any) -> Any:
        return self.result(self.node.manager.reader.read, offset, max_bytes, **how)

    def time(self, timestamp_ms: int) -> Any:
        return self.result(self.node.manager.reader.first_of_time, timestamp_ms)

    def auxiliary(self, leader_epoch: int, offset: int) -> Any:
        return self.result(self.node.manager.reader.auxiliary, leader_epoch, offset)

    def all(self, max_bytes: int) -> bytes:
        """Return the whole log, read as by a client: from the tier, then locally."""
        offset, pieces = self.log.log_start_offset, []
        while offset < self.log.local_log_start_offset:
            found = self.read(offset, max_bytes)
            assert isinstance(found, RemoteRecords), found
            assert found.records
            assert len(found.records) <= max_bytes or len(headers_of(found.records)) == 1
            pieces.append(found.records)
            offset = headers_of(found.records)[-1].last_offset + 1
        assert offset == self.log.local_log_start_offset
        pieces.append(self.log.read(offset, 1 << 20, self.log.log_end_offset))
        return b"".join(pieces)


def plain(log: UnifiedLog) -> None:
    """Batches of one to five records, in three leader epochs."""
    for number in range(40):
        appended(
            log,
            batch_of(number % 5 + 1, timestamps=[10 * number + n for n in range(number % 5 + 1)]),
            epoch=number // 15,
        )


def by_epochs(log: UnifiedLog) -> None:
    """Append the same batches, in leader epochs that start inside segments."""
    for number in range(40):
        appended(log, batch_of(number % 5 + 1), epoch=number // 7)


def transactional(log: UnifiedLog) -> None:
    """Append overlapping transactions of three producers, some longer than a segment. Every second one is aborted."""
    producers = Producers(log)
    for number in range(60):
        producers.send(number % 3, number % 4 + 1)
        if number % 7 == 6 or number % 11 == 3:
            producers.end(number % 3, commit=number % 2 == 0)
        producers.plain(1)
    for producer_id in range(3):
        producers.send(producer_id, 1)
        producers.end(producer_id, commit=producer_id == 1)
    log.advance_high_watermark(log.log_end_offset)
