"""One partition's log over a disk that loses names: what was synced is there after each power loss, and nothing else is
in its place. The operations are drawn, and include those that create, rename and delete files."""

from random import Random

import pytest

from chaos.sim.disk import SimDisk, Synced
from reference_broker.log.cleaner.cleaning import Cleaning, cleanable
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.opening import open_log
from reference_broker.log.segments import CLEANED_SUFFIX
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import iterate
from reference_broker.records.record import Record, build

NOW = Now(0, 1_700_000_000_000)
DIRECTORY = "t-0"
KEPT = LogConfig(segment_bytes=300, index_interval_bytes=80, retention_bytes=900)
COMPACTED = LogConfig(
    segment_bytes=300,
    index_interval_bytes=80,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    max_message_bytes=300,
)


class Life:
    """``durable`` has the batches that no power loss may take, by offset. It holds nothing below ``start``.

    ``written_at`` and ``cut_at`` have for each batch of this life how many batches had been written when it was written
    and when it was cut away.
    """

    def __init__(self, seed: int, config: LogConfig) -> None:
        self.random = Random(seed)
        self.config = config
        self.disk = SimDisk(Random(seed + 1))
        self.log = self._opened(clean=False)
        self.epoch = 0
        self.written = 0
        self.durable: dict[int, bytes] = {}
        self.running: tuple[SyncPoint, Synced] | None = None
        self.written_at: dict[bytes, int] = {}
        self.cut_at: dict[bytes, int] = {}

    def _opened(self, *, clean: bool) -> UnifiedLog:
        log = run_to_end(open_log(self.disk, DIRECTORY, self.config, NOW, clean))
        log.check_invariants()
        log.advance_high_watermark(log.log_end_offset)
        return log

    def batches(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset, log = self.log.log_start_offset, self.log
        while offset < log.log_end_offset:
            data = log.read(offset, 1 << 20, log.log_end_offset, True)
            for position, header in iterate(data):
                found[header.base_offset] = bytes(data[position : position + header.size_bytes])
                offset = header.last_offset + 1
        return found

    def step(self) -> None:
        log, random = self.log, self.random
        kind = random.random()
        if kind < 0.55:
            self.written += 1
            record = Record(timestamp_ms=NOW.wall_ms, key=b"%d" % random.randrange(4), value=b"%d" % self.written)
            log.append(NOW, build([record]), self.epoch)
            self.written_at[log.read(log.segments[-1].next_offset - 1, 1, log.log_end_offset, True)] = self.written
            log.advance_high_watermark(log.log_end_offset)
        elif kind < 0.75:
            self._sync()
        elif kind < 0.80 and log.segments and log.segments[-1].size_bytes:
            log.roll(NOW)
        elif kind < 0.86 and self.config.is_compacted:
            self._clean()
        elif kind < 0.86:
            log.enforce_retention(NOW)
        elif kind < 0.90 and not self.config.is_compacted:
            log.delete_records_before(random.randint(log.log_start_offset, log.high_watermark))
        elif kind < 0.95:
            self._truncate(random.randint(max(log.log_start_offset, log.log_end_offset - 12), log.log_end_offset))
        elif kind < 0.96:
            log.truncate_fully_and_start_at(log.log_end_offset + random.randrange(3), NOW)
            self._forget_outside()

    def _sync(self) -> None:
        if self.running is None:
            point = self.log.sync_point()
            self.running = point, self.disk.begin_sync(point.paths)
        else:
            point, sync = self.running
            self.running = None
            self.disk.finish_sync(sync)
            self.log.mark_synced(point)
            there = self.batches()
            self.durable |= {at: there[at] for at in there if at < self.log.synced_offset}
        self._forget_outside()

    def _truncate(self, offset: int) -> None:
        before = self.batches()
        self.log.truncate_to(offset)
        self.cut_at |= {batch: self.written for at, batch in before.items() if at >= self.log.log_end_offset}
        self.epoch += 1
        self._forget_outside()

    def _clean(self) -> None:
        self.log.mark_synced(self._synced_now())
        part = cleanable(self.log, NOW)
        if part is None:
            return
        for step in Cleaning(self.log, part, NOW, 1 << 20).run():
            for path in step.sync:
                self.disk.make_durable(path)
        self.durable = {at: batch for at, batch in self.batches().items() if at < self.log.synced_offset}

    def _synced_now(self) -> SyncPoint:
        self.running = None
        point = self.log.sync_point()
        self.disk.finish_sync(self.disk.begin_sync(point.paths))
        return point

    def _forget_outside(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.durable = {at: batch for at, batch in self.durable.items() if start <= at < end}

    def end(self) -> None:
        """The power is lost, or the process is killed, or it ends cleanly; then it starts again."""
        self._forget_outside()
        kind = self.random.random()
        if kind < 0.15:
            self.log.close_cleanly()
            self.log.mark_synced(self._synced_now())
        elif kind < 0.8:
            self.disk.power_loss()
        self.running = None
        self.log = self._opened(clean=kind < 0.15)
        assert self.log.quarantine is None, "no bit was flipped, so what is missing is a torn end"
        there = self.batches()
        lost = {at for at, batch in self.durable.items() if there.get(at) != batch}
        assert not lost, f"offsets {sorted(lost)} are gone or have other records"
        assert not [name for name in self.disk.list(DIRECTORY) if name.endswith(CLEANED_SUFFIX)]
        self._check_order(there)
        self.epoch += 1

    def _check_order(self, there: dict[int, bytes]) -> None:
        """A batch that was cut away may come back, but not in front of one that was written after the cut. A follower
        whose last batch is its leader's must hold nothing else that the leader does not have (log matching)."""
        cut = -1
        for at, batch in there.items():
            assert not 0 <= cut < self.written_at.get(batch, 0), f"offset {at} follows a batch that had been cut away"
            if batch in self.cut_at:
                cut = self.cut_at[batch] if cut < 0 else min(cut, self.cut_at[batch])
        self.written_at.clear()
        self.cut_at.clear()


@pytest.mark.thorough
@pytest.mark.parametrize("config", [KEPT, COMPACTED], ids=["retention", "compaction"])
def test_synced_records_survive_every_power_loss(config: LogConfig) -> None:
    for seed in range(150):
        life = Life(seed, config)
        for _ in range(5):
            for _ in range(life.random.randrange(60)):
                life.step()
            try:
                life.end()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
