"""The cleaner compared with a naive model: all records that were ever appended. Passes run step by step between
appends,
rolls, truncation, deletion, crashes and restarts."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_broker.log.cleaner.cleaning import Cleaning, CleaningFailed, Overtaken, Step, cleanable
from reference_broker.log.cleaner.retention import BYTES_PER_KEY
from reference_broker.log.cleaner.tests.cleaner_world import SyncingDisk, all_headers, contents, rolled, sync_all
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import START_MS, at, opened
from reference_broker.ports.disk import DiskError
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build

RETENTION_MS = 50
KEYS = ["a", "b", "c", "a key that is longer than the digest which stands for it"]


@dataclass(frozen=True)
class Written:
    key: str
    value: str | None
    time_ms: int
    epoch: int


@pytest.mark.clause("LogCleanerParameterizedIntegrationTest.cleanerTest")
class CleanerMachine(RuleBasedStateMachine):
    """Random histories of a log with a cleaner.

    ``written``: by offset, all that was appended and not truncated. ``touched``: started passes reach this far.
    ``lost_power``: a power loss may have removed the epoch file. A gap at the log's start then counts to the first
    batch. ``superseded``: a newer record existed once, which a truncation may have removed. ``looked_at``: by offset,
    when the first pass started that may have given a tombstone its horizon.
    """

    @initialize(
        segment_bytes=st.sampled_from([150, 300, 1000, 1 << 20]),
        keys=st.sampled_from([1, 2, 1000]),
        policy=st.sampled_from(["compact", "compact", "compact,delete"]),
    )
    def start(self, segment_bytes: int, keys: int, policy: str) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            cleanup_policy=policy,
            retention_ms=-1,
            delete_retention_ms=RETENTION_MS,
        )
        self.buffer_bytes = keys * BYTES_PER_KEY
        self.disk = SyncingDisk()
        self.log = opened(self.disk, self.config)
        self.written: dict[int, Written] = {}
        self.looked_at: dict[int, int] = {}
        self.superseded: set[int] = set()
        self.touched = self.clock_ms = self.epoch = self.first = 0
        self.lost_power = False
        self.steps: Iterator[Step] | None = None
        self.cleaning: Cleaning | None = None

    @rule(
        batches=st.lists(
            st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9)), min_size=1, max_size=4),
            min_size=1,
            max_size=5,
        ),
        codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.GZIP]),
        epochs=st.sampled_from([0, 0, 0, 1]),
        producer=st.sampled_from([-1, -1, 5]),
    )
    def append(
        self, batches: list[list[tuple[str, int | None]]], codec: Compression, epochs: int, producer: int
    ) -> None:
        self.epoch += epochs
        for batch in batches:
            records = [
                Record(
                    timestamp_ms=START_MS + self.clock_ms,
                    key=key.encode(),
                    value=None if value is None else str(value).encode(),
                )
                for key, value in batch
            ]
            known = self.log.producers.by_id.get(producer)
            who = (
                {}
                if producer < 0
                else {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": 0 if known is None else known.last_sequence + 1,
                }
            )
            data = build(records, compression=codec, **who)  # type: ignore[arg-type]
            if len(data) > self.config.segment_bytes:
                continue
            first = self.log.append(at(self.clock_ms), data, self.epoch).first_offset
            for delta, (key, value) in enumerate(batch):
                text = None if value is None else str(value)
                self.written[first + delta] = Written(key, text, START_MS + self.clock_ms, self.epoch)
        self.log.advance_high_watermark(self.log.log_end_offset)

    @rule(ms=st.integers(1, 40))
    def time_passes(self, ms: int) -> None:
        self.clock_ms += ms

    @rule()
    def roll(self) -> None:
        rolled(self.log, at(self.clock_ms))

    @precondition(lambda self: self.steps is None)
    @rule()
    def begin_a_pass(self) -> None:
        part = cleanable(self.log, at(self.clock_ms))
        if part is None:
            return
        self.cleaning = Cleaning(self.log, part, at(self.clock_ms), self.buffer_bytes)
        self.steps = iter(self.cleaning.run())
        self.touched = max(self.touched, part.end_offset)
        for offset in self.written:
            if offset < part.end_offset:
                self.looked_at.setdefault(offset, self.clock_ms)

    @precondition(lambda self: self.steps is not None)
    @rule(steps=st.sampled_from([1, 2, 5, 1000]))
    def go_on(self, steps: int) -> None:
        assert self.steps is not None
        for _ in range(steps):
            try:
                step = next(self.steps)
            except StopIteration:
                self._passed()
                return
            except Overtaken:
                self.steps = None
                return
            self.disk.sync(step.sync)

    def _passed(self) -> None:
        """Below the pass's end each key exists once at most."""
        assert self.cleaning is not None
        self.steps = None
        end = self.cleaning.done.end_offset
        assert self.log.cleaned_offset == end > 0
        keys = [record.key for _, record in contents(self.log) if record.offset < end]
        assert len(keys) == len(set(keys))

    @rule(back=st.integers(0, 8))
    def truncate(self, back: int) -> None:
        newest = {record.key: offset for offset, record in sorted(self.written.items())}
        self.superseded |= {offset for offset, record in self.written.items() if newest[record.key] != offset}
        end = self.log.truncate_to(max(self.log.log_end_offset - back, self.log.log_start_offset))
        for gone in [offset for offset in self.written if offset >= end]:
            del self.written[gone]
            self.looked_at.pop(gone, None)
            self.superseded.discard(gone)
        self.touched = min(self.touched, end)
        self.first = min(self.first, end)
        assert self.log.cleaned_offset <= end

    @rule(forward=st.integers(0, 6))
    def delete_records(self, forward: int) -> None:
        self.first = min(self.first + forward, self.log.high_watermark)
        self.log.delete_records_before(self.first)

    @rule()
    def sync(self) -> None:
        sync_all(self.log, self.disk)

    @rule(power_loss=st.booleans(), operations=st.integers(0, 12) | st.none())
    def die(self, power_loss: bool, operations: int | None) -> None:
        """Crash, perhaps during a pass. Appended records were synced before, so that the model knows what remains; the
        cleaner's writes are durable where it says so."""
        sync_all(self.log, self.disk)
        if self.steps is not None and operations is not None:
            self.disk.fail_after = operations
            try:
                for step in self.steps:
                    self.disk.sync(step.sync)
            except (CleaningFailed, DiskError, Overtaken):
                self.steps = None
            self.disk.fail_after = None
        self.steps = None
        sync_start = self.disk.as_it_is()
        self.disk = self.disk.after_power_loss() if power_loss else sync_start
        self.lost_power |= power_loss
        self.log = opened(self.disk, self.config, now=at(self.clock_ms), clean=False)
        assert self.log.recovered.cut_bytes == self.log.recovered.deleted_segments == 0

    @precondition(lambda self: self.steps is None)
    @rule()
    def restart(self) -> None:
        self.log.close_cleanly()
        sync_all(self.log, self.disk)
        self.log = opened(self.disk, self.config, now=at(self.clock_ms), clean=True)

    @invariant()
    def newest_and_dirty_records_are_there(self) -> None:
        if not hasattr(self, "log"):
            return
        found = {record.offset: record for _, record in contents(self.log)}
        for offset, record in found.items():
            wanted = self.written[offset]
            text = None if record.value is None else record.value.decode()
            assert (record.key or b"").decode() == wanted.key
            assert text == wanted.value
            assert record.timestamp_ms == wanted.time_ms
        newest = {record.key: offset for offset, record in sorted(self.written.items())}
        for offset, wanted in self.written.items():
            if offset < self.log.log_start_offset or offset in found:
                continue
            assert offset < self.touched, f"{offset} was dirty and is gone"
            if newest[wanted.key] == offset and offset not in self.superseded:
                assert wanted.value is None, f"{offset} is the newest of its key and is gone"
                assert self.clock_ms - self.looked_at[offset] >= RETENTION_MS

    @invariant()
    def the_log_agrees_with_itself(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.log_end_offset == max(self.written, default=self.first - 1) + 1 or not self.written
        log.check_invariants()
        assert [each.next_offset for each in log.segments[:-1]] == log.bases[1:]
        for segment in log.segments:
            assert self.disk.size(segment.path) == segment.size_bytes
        first = next((header for header in all_headers(log) if header.last_offset >= log.log_start_offset), None)
        for offset, wanted in self.written.items():
            if offset >= log.log_start_offset:
                epochs = [wanted.epoch]
                if self.lost_power and first is not None and offset < first.base_offset:
                    epochs.append(first.leader_epoch)
                assert log.epoch_at(offset) in epochs


CleanerMachine.TestCase.settings = settings(stateful_step_count=40)
TestCleanerAgainstModel = pytest.mark.thorough(CleanerMachine.TestCase)
