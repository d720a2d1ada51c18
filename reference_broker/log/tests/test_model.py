"""The log against a naive model: a list of batches. Appends, reads, truncation, deletion, retention, restarts."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import (
    NOW,
    START_MS,
    appended,
    at,
    batch_of,
    headers_of,
    offset_for_timestamp,
    offset_of_max_timestamp,
    opened,
)
from reference_broker.log.timestamp_lookup import NOTHING, FoundOffset
from reference_broker.log.unified_log import OffsetOutOfRange
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.compression import Compression
from reference_broker.records.record import read_records


@dataclass(frozen=True)
class Batch:
    base: int
    last: int
    data: bytes
    epoch: int
    times: tuple[int, ...]


@pytest.mark.clause(
    "UnifiedLogTest.testAppendInfoFirstOffset",
    "UnifiedLogTest.testAppendAndReadWithSequentialOffsets",
    "UnifiedLogTest.testCompressedMessages",
    "UnifiedLogTest.testTruncateTo",
    "UnifiedLogTest.testLogRolls",
    "UnifiedLogTest.testFetchUpToLogEndOffset",
    "UnifiedLogTest.shouldApplyEpochToMessageOnAppendIfLeader",
    "UnifiedLogTest.testFetchOffsetByTimestampWithMaxTimestampIncludesTimestamp",
    "LogLoaderTest.testReopenThenTruncate",
    "LogLoaderTest.testOpenDeletesObsoleteFiles",
    "LocalLogTest.testLogAppend",
    "LocalLogTest.testNewSegmentsAfterRoll",
    "LocalLogTest.testTruncateTo",
    "LocalLogTest.testTruncateFullyAndStartAt",
    "LogSegmentTest.testTruncate",
    "LogSegmentTest.testFindOffsetByTimestamp",
    "LogSegmentTest.testReadFromMiddleOfBatch",
)
class LogMachine(RuleBasedStateMachine):
    """``batches``: everything that is still in the log's files or above its start."""

    @initialize(segment_bytes=st.sampled_from([150, 400, 1000, 1 << 20]), interval=st.sampled_from([0, 100, 250, 4096]))
    def start(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=interval, retention_bytes=2000, retention_ms=100
        )
        self.disk = MemoryDisk()
        self.log = opened(self.disk, self.config)
        self.batches: list[Batch] = []
        self.first = self.end = self.epoch = 0
        self.clock_ms = 0

    @rule(
        sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
        times=st.lists(st.integers(-40, 40), min_size=1, max_size=4),
        epochs=st.sampled_from([0, 0, 0, 1, 2]),
        codec=st.sampled_from([Compression.NONE, Compression.NONE, Compression.GZIP]),
    )
    def append(self, sizes: list[int], times: list[int], epochs: int, codec: Compression) -> None:
        self.epoch += epochs
        for size in sizes:
            times = [*times[1:], times[0]]
            self._append_one(size, [max(self.clock_ms + time, 0) for time in times[: 1 + size % len(times)]], codec)

    def _append_one(self, size: int, times: list[int], codec: Compression) -> None:
        how: dict[str, Any] = {"timestamps": times, "compression": codec, "value": b"v" * size}
        data = batch_of(len(times), **how)
        if len(data) > self.config.segment_bytes:
            return
        result = appended(self.log, data, now=at(self.clock_ms), epoch=self.epoch)
        assert (result.first_offset, result.last_offset) == (self.end, self.end + len(times) - 1)
        stored = batch_of(len(times), **how, base_offset=self.end, leader_epoch=self.epoch)
        self.batches.append(Batch(self.end, result.last_offset, stored, self.epoch, tuple(START_MS + t for t in times)))
        self.end = result.last_offset + 1

    @rule()
    def failed_append(self) -> None:
        for fail_after in range(3):
            self.disk.fail_after = fail_after
            try:
                self.log.append(at(self.clock_ms), batch_of(1), self.epoch)
            except OSError:
                continue
            else:
                stored = batch_of(1, base_offset=self.end, leader_epoch=self.epoch)
                self.batches.append(Batch(self.end, self.end, stored, self.epoch, (START_MS,)))
                self.end += 1
                self.log.advance_high_watermark(self.end)
                break
            finally:
                self.disk.fail_after = None

    @rule(ms=st.integers(1, 60))
    def time_passes(self, ms: int) -> None:
        self.clock_ms += ms

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 1, 61, 100, 250, 700, 1 << 16, 1 << 20]), least=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, least: bool) -> None:
        for _ in range(4):
            self._read_one(data, max_bytes, least)

    @rule()
    def read_all(self) -> None:
        for batch in self.batches:
            for offset in range(max(batch.base, self.first), batch.last + 1):
                assert self.log.read(offset, 1).startswith(batch.data)

    def _read_one(self, data: st.DataObject, max_bytes: int, at_least_one: bool) -> None:
        offset = data.draw(st.integers(self.first, self.end))
        end = data.draw(st.sampled_from([self.end, self.end, offset]) | st.integers(self.first, self.end))
        wanted = [batch for batch in self.batches if offset <= batch.last < end]
        found = self.log.read(offset, max_bytes, end, at_least_one)
        if offset >= end or not wanted:
            assert found == b""
            return
        fits = len(wanted[0].data) <= max_bytes
        count = len(headers_of(found))
        assert found == b"".join(batch.data for batch in wanted[:count])
        assert len(found) <= max_bytes or (count == 1 and at_least_one)
        assert (count >= 1) == (fits or at_least_one)
        if count and max_bytes < 1 << 16 and len(found) < max_bytes:
            following = wanted[count:]
            ends_segment = wanted[count - 1].last + 1 in self.log.bases
            assert not following or ends_segment or len(found) + len(following[0].data) > max_bytes

    @rule(data=st.data())
    def bytes_between(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.first, self.end))
        end = data.draw(st.integers(offset, self.end))
        if offset == end:
            assert self.log.bytes_between(offset, end) == 0
        else:
            wanted = sum(len(b.data) for b in self.batches if b.last >= offset and b.last < end)
            assert self.log.bytes_between(offset, end) == wanted

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        lowest = max(self.first - 3, 0) if data.draw(st.integers(0, 5)) == 0 else max(self.first, self.end - 6)
        offset = data.draw(st.integers(lowest, self.end + 2))
        self.batches = [batch for batch in self.batches if batch.last < offset]
        end = self.log.truncate_to(offset)
        if offset >= self.end:
            assert end == self.end
        elif self.batches:
            assert end == self.batches[-1].last + 1
        else:
            assert end <= offset
        self.end = end
        self.first = min(self.first, end)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, min(self.first + 5, self.end)))
        self.first = max(self.first, offset)
        assert self.log.delete_records_before(offset) == self.first
        self._forget()

    @rule()
    def retention(self) -> None:
        size = self.log.size_bytes
        bases = list(self.log.bases)
        deleted = self.log.enforce_retention(at(self.clock_ms))
        if 0 < deleted == len(bases):
            bases.append(self.end)  # An empty segment takes the place of the active one.
        assert self.log.bases == bases[deleted:]
        if deleted:
            assert self.log.log_start_offset >= bases[deleted]
            gone = [batch for batch in self.batches if batch.last < bases[deleted]]
            too_old = all(max(batch.times) < START_MS + self.clock_ms - 100 for batch in gone)
            freed = sum(len(batch.data) for batch in gone)
            assert too_old or size - freed >= 2000 or self.first >= bases[deleted] or size > 2000
        elif len(bases) > 1:
            assert size - self.log.segments[0].size_bytes < 2000
        self.first = self.log.log_start_offset
        self._forget()

    @precondition(lambda self: self.end > 60)
    @rule(offset=st.integers(0, 50))
    def restart_at(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset, NOW)
        self.batches = []
        self.first = self.end = offset

    @rule()
    def roll(self) -> None:
        self.log.config = self.config
        if self.log.segments and self.log.segments[-1].size_bytes:
            self.log.roll(at(self.clock_ms))

    @rule()
    def sync(self) -> None:
        self.log.mark_synced(self.log.sync_point())
        assert self.log.sync_point().paths == ()
        assert self.log.appended_since_sync == 0

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.log.close_cleanly()
        high_watermark = self.log.high_watermark
        self.log = opened(self.disk, self.config, now=at(self.clock_ms), clean=clean)
        assert self.log.recovered.cut_bytes == 0
        assert self.log.high_watermark == high_watermark == self.end

    @rule(time=st.integers(-10, 400))
    def look_up_time(self, time: int) -> None:
        wanted = START_MS + time
        found = next((record for record in self._visible() if record.timestamp_ms >= wanted), None)
        assert offset_for_timestamp(self.log, wanted) == found

    @rule()
    def look_up_largest_time(self) -> None:
        best = NOTHING
        for record in self._visible():
            if record.timestamp_ms > best.timestamp_ms:
                best = record
        assert offset_of_max_timestamp(self.log) == best

    @precondition(lambda self: self.first > 0)
    @rule()
    def below_the_start(self) -> None:
        self._is_out_of_range(self.first - 1)

    @rule()
    def beyond_the_end(self) -> None:
        self._is_out_of_range(self.end + 1)

    @rule(epoch=st.integers(0, 30))
    def epoch_end(self, epoch: int) -> None:
        found = self.log.end_offset_for_epoch(epoch)
        if epoch > self.log.latest_epoch:
            assert (found.epoch, found.end_offset) == (-1, -1)
            return
        later = [batch.base for batch in self.batches if batch.epoch > epoch and batch.last >= self.first]
        if later and any(batch.epoch <= epoch and batch.last >= self.first for batch in self.batches):
            assert found.end_offset == max(later[0], self.first)

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.first, self.end)
        assert log.last_stable_offset == log.high_watermark
        log.check_invariants()
        for segment in log.segments:
            assert self.disk.size(segment.path) == segment.size_bytes

    def _visible(self) -> list[FoundOffset]:
        return [
            FoundOffset(record.timestamp_ms, record.offset, batch.epoch)
            for batch in self.batches
            for record in read_records(batch.data)
            if record.offset >= self.first
        ]

    def _forget(self) -> None:
        self.batches = [batch for batch in self.batches if batch.last >= self.first]

    def _is_out_of_range(self, offset: int) -> None:
        with pytest.raises(OffsetOutOfRange) as error:
            self.log.read(offset, 100)
        assert error.value.offset == offset


TestLogAgainstModel = pytest.mark.thorough(LogMachine.TestCase)
