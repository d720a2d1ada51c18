"""Producer snapshots that a segment due for upload lacks (P-8, P-9, P-10, P-13, P-14), compared with a naive replay."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.producer_replay import RecreatedSnapshot
from reference_broker.log.producer_state import decode_snapshot, encode_snapshot
from reference_broker.log.tests.log_world import NOW, START_MS, opened
from reference_broker.log.tests.replay_judge import Batch, first_looked_at, first_needed, kept, replayed
from reference_broker.log.timestamp_lookup import Overtaken
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import RECREATED_BATCHES_PER_SLICE, Sliced, run_to_end
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker

EXPIRATION_MS = 100
CONFIG = LogConfig(
    segment_bytes=1 << 20,
    index_interval_bytes=150,
    retention_ms=-1,
    producer_id_expiration_ms=EXPIRATION_MS,
    remote_storage_enable=True,
)
TRANSACTIONAL = 3
"""Producer IDs from here on send transactions."""


class WatchedDisk(MemoryDisk):
    """Keeps the paths and positions that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def read(self, path: str, position: int, length: int) -> bytes:
        self.seen.append((path, position))
        return super().read(path, position, length)


@dataclass
class WrittenLog:
    """A log, and the naive history of its writes."""

    disk: WatchedDisk = field(default_factory=WatchedDisk)
    history: list[Batch] = field(default_factory=list)
    next: dict[int, tuple[int, int]] = field(default_factory=dict)
    coordinator_epoch: int = 0
    log: UnifiedLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = opened(self.disk, CONFIG)

    def send(self, producer_id: int, time_ms: int, count: int = 1) -> None:
        """``time_ms`` is after the tests' start, or before it."""
        epoch, sequence = self.next.get(producer_id, (0, 0))
        self.next[producer_id] = epoch, sequence + count
        first, is_transactional = self.log.log_end_offset, producer_id >= TRANSACTIONAL
        records = [Record(timestamp_ms=START_MS + time_ms, key=b"k", value=b"v") for _ in range(count)]
        how: dict[str, Any] = {"producer_epoch": epoch, "base_sequence": sequence}
        data = build(records, producer_id=producer_id, is_transactional=is_transactional, **how)
        self._written(data, Batch(producer_id, epoch, sequence, first, first + count - 1, time_ms, is_transactional))

    def end(self, producer_id: int, time_ms: int, *, commit: bool = True, raises: int = 0) -> None:
        """Write a marker. ``raises``: the producer's next transaction has another epoch."""
        epoch, sequence = self.next.get(producer_id, (0, 0))
        self.next[producer_id] = (epoch + 1, 0) if raises else (epoch, sequence)
        first = self.log.log_end_offset
        data = build_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=epoch + raises,
            coordinator_epoch=self.coordinator_epoch,
            timestamp_ms=START_MS + time_ms,
        )
        marker = Batch(producer_id, epoch + raises, -1, first, first, time_ms, True, commit, self.coordinator_epoch)
        self._written(data, marker)
        self.coordinator_epoch += 1

    def _written(self, data: bytes, batch: Batch) -> None:
        self.log.append(NOW, data, 0, origin=BatchOrigin.CLIENT if batch.commit is None else BatchOrigin.BROKER)
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.history.append(batch)

    def roll(self) -> int:
        """Return where the new segment begins."""
        if self.log.segments and self.log.segments[-1].size_bytes:
            self.log.roll(NOW)
        return self.log.log_end_offset

    def lose_snapshots(self, *stay: int) -> None:
        for offset in self.log.segments.snapshots.offsets[:]:
            if offset not in stay:
                self.log.segments.snapshots.delete(offset)

    def recreated(self, offset: int, now_ms: int) -> RecreatedSnapshot:
        self.disk.seen = []
        return run_to_end(self.log.recreate_snapshot(_at(now_ms), offset))

    def judge(self, made: RecreatedSnapshot, offset: int, now_ms: int) -> None:
        """Compare a snapshot with the full replay."""
        found = dict(decode_snapshot(made.snapshot))
        wanted = kept(replayed(self.history, offset), now_ms - EXPIRATION_MS)
        assert found.keys() == wanted.keys()
        for who, known in wanted.items():
            one = found[who]
            assert (one.producer_epoch, one.last_timestamp_ms) == (known.epoch, START_MS + known.timestamp_ms)
            assert one.current_txn_first_offset == known.open_from
            assert one.coordinator_epoch == known.coordinator_epoch, f"of producer {who}"
            if known.own_ms > now_ms - EXPIRATION_MS or known.open_from >= 0:
                last = one.batch_metadata[-1].last_offset if one.batch_metadata else -1
                assert (one.last_sequence, last) == (known.sequence, known.offset)

    def segment_reads(self) -> list[int]:
        """Return the base offsets of the segments that were read."""
        return sorted({int(path[-24:-4]) for path, _ in self.disk.seen if path.endswith(".log")})


def _at(ms: int) -> Now:
    return Now(max(ms, 0) * 1000, START_MS + ms)


def counted(making: Sliced[RecreatedSnapshot]) -> tuple[RecreatedSnapshot, int]:
    """Return the snapshot, and the number of slices of its work."""
    slices = 1
    while True:
        try:
            next(making)
        except StopIteration as stop:
            made: RecreatedSnapshot = stop.value
            return made, slices
        slices += 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from("ssstterrx"),
        st.sampled_from([0, 3, 4]),
        st.sampled_from([0, 0, 0, -60, 60, -1, 1, 99]),
        st.integers(1, 3),
    ),
    min_size=6,
    max_size=24,
)
"""Each step: an action (send, let time pass, end a transaction, roll), the producer, its skew in ms, and an amount."""


@pytest.mark.thorough
@pytest.mark.clause("P-8", "P-9", "P-10", "P-12", "P-13", "P-14")
@settings(max_examples=max(300, settings().max_examples))
@given(
    steps=STEPS,
    spoilt=st.lists(st.sampled_from(["whole", "gone", "torn", "empty", "flipped"]), min_size=12, max_size=12),
    start=st.sampled_from(["none", "clean", "killed"]),
    later_ms=st.sampled_from([0, 1, 25, 49, 50, 51, 75, 99, 100, 101, 150]),
    target=st.integers(0, 11),
)
def test_rebuilt_snapshot_equals_full_replay(
    steps: list[tuple[str, int, int, int]], spoilt: list[str], start: str, later_ms: int, target: int
) -> None:
    """Timestamps are out of order, transactions span segments, snapshots are missing, torn or empty, and records expire
    around the time of the upload."""
    written, clock_ms = WrittenLog(), 0
    for kind, who, skew_ms, count in steps:
        if kind == "s":
            written.send(who, clock_ms + skew_ms, count)
        elif kind == "t":
            clock_ms += 25 * count
        elif kind == "r":
            written.roll()
        elif who >= TRANSACTIONAL:
            written.end(who, clock_ms + skew_ms, commit=kind == "e", raises=count // 3)
    written.roll()
    bases = written.log.bases[1:]
    if not bases:
        return
    offset = bases[target % len(bases)]
    whole = []
    for base, how in zip(bases, spoilt, strict=False):
        if _spoil(written, base, how) and base <= offset:
            whole.append(base)
    if start != "none":
        written.log.close_cleanly()
        written.log = opened(written.disk, CONFIG, clean=start == "clean")
        for base in bases:  # Snapshots that the start has written are not to be read here.
            if base not in whole:
                written.log.segments.snapshots.delete(base)
    now_ms = clock_ms + later_ms
    made = written.recreated(offset, now_ms)
    written.judge(made, offset, now_ms)
    needed = first_needed(written.history, written.log.bases, whole, offset, now_ms - EXPIRATION_MS)
    assert made.from_offset == needed
    begin = written.log.bases[written.log.segments.index_of(needed)]
    places = (written.log.bases, whole, needed, offset)
    first = min(begin, first_looked_at(written.history, *places, now_ms - EXPIRATION_MS))
    assert all(first <= base < offset for base in written.segment_reads())
    assert made.read_bytes <= written.log.bytes_between(first, offset) + written.log.bytes_between(begin, needed)
    assert made.read_bytes > 0 or needed == offset
    assert made.read_bytes == 0 or needed < offset or first < begin


def _spoil(written: WrittenLog, base: int, how: str) -> bool:
    """Return whether the snapshot is whole."""
    snapshots = written.log.segments.snapshots
    path = snapshots.path(base)
    if base not in snapshots.offsets or how == "whole":
        return base in snapshots.offsets
    if how == "gone":
        snapshots.delete(base)
    elif how == "torn":
        written.disk.truncate(path, written.disk.size(path) - 1)
    elif how == "empty":
        written.disk.truncate(path, 0)
    else:
        written.disk.files[path][-1] ^= 1
    return False


@pytest.mark.clause("P-9", "P-10")
@pytest.mark.parametrize(("later_ms", "producer_ids"), [(-1, [0]), (0, []), (1, [])])
def test_producer_is_included_until_it_expires(later_ms: int, producer_ids: list[int]) -> None:
    written = WrittenLog()
    written.send(0, 0)
    offset = written.roll()
    written.lose_snapshots()
    made = written.recreated(offset, EXPIRATION_MS + later_ms)
    is_read = bool(producer_ids)
    assert (made.from_offset == 0, made.read_bytes > 0) == (is_read, is_read)
    assert [producer_id for producer_id, _ in decode_snapshot(made.snapshot)] == producer_ids
    written.judge(made, offset, EXPIRATION_MS + later_ms)


@pytest.mark.clause("P-9")
def test_segments_before_first_unexpired_one_are_not_read() -> None:
    written = WrittenLog()
    for time_ms in (0, 10, 120, 20, 130):  # The fourth one is old, and lies behind a young one: no gaps.
        written.send(0, time_ms)
        offset = written.roll()
    written.lose_snapshots()
    made = written.recreated(offset, 200)
    assert made.from_offset == 2
    assert written.segment_reads() == [2, 3, 4]
    written.judge(made, offset, 200)


@pytest.mark.clause("P-9")
def test_newer_snapshot_avoids_reading_earlier_segments() -> None:
    written = WrittenLog()
    for time_ms in range(4):
        written.send(0, time_ms)
        written.send(1, time_ms)
        offset = written.roll()
    written.lose_snapshots(4)
    made = written.recreated(offset, 50)
    assert (made.from_offset, written.segment_reads()) == (4, [4, 6])
    written.judge(made, offset, 50)


@pytest.mark.clause("P-9")
def test_older_snapshot_is_not_needed() -> None:
    written = WrittenLog()
    for time_ms in (0, 0, 0, 150):
        written.send(0, time_ms)
        offset = written.roll()
    written.lose_snapshots(1)
    made = written.recreated(offset, 200)
    assert (made.from_offset, written.segment_reads()) == (3, [3])


@pytest.mark.clause("P-10", "X-6")
@pytest.mark.parametrize("snapshot", [False, True])
def test_coordinator_epoch_of_earlier_marker_is_found(snapshot: bool) -> None:
    written = WrittenLog(coordinator_epoch=5)
    written.send(4, 0)
    written.end(4, 0)
    marked = written.roll()
    written.send(0, 0)
    written.roll()
    written.send(4, 150)
    written.send(0, 150)
    offset = written.roll()
    written.lose_snapshots(*([marked] if snapshot else []))
    made = written.recreated(offset, 200)
    assert made.from_offset == 3
    assert {who: one.coordinator_epoch for who, one in decode_snapshot(made.snapshot)} == {0: -1, 4: 5}
    assert written.segment_reads() == ([2, 3] if snapshot else [0, 2, 3])
    written.judge(made, offset, 200)


@pytest.mark.clause("P-9", "P-10")
@pytest.mark.parametrize("restart", ["none", "clean", "killed"])
def test_open_transaction_of_any_age_is_found(restart: str) -> None:
    """None of its records is young, and its marker is beyond the snapshot."""
    written = WrittenLog()
    written.send(0, 0)
    written.roll()
    written.send(0, 0)
    written.send(4, 0)
    written.roll()
    written.send(0, 0)
    offset = written.roll()
    written.end(4, 0)
    written.roll()
    if restart != "none":
        written.log.close_cleanly()
        written.log = opened(written.disk, CONFIG, clean=restart == "clean")
    written.lose_snapshots()
    made = written.recreated(offset, 1000)
    assert made.from_offset == 2
    assert {who: one.current_txn_first_offset for who, one in decode_snapshot(made.snapshot)} == {4: 2}
    written.judge(made, offset, 1000)


@pytest.mark.clause("P-10")
def test_producer_with_late_marker_keeps_last_batch() -> None:
    """The marker is young, and the batch is in a segment that is not."""
    written = WrittenLog()
    written.send(4, 0)
    written.roll()
    written.send(4, 0, 2)
    written.roll()
    written.end(4, 150)
    offset = written.roll()
    written.lose_snapshots()
    made = written.recreated(offset, 200)
    assert made.from_offset == 0
    ((_, known),) = decode_snapshot(made.snapshot)
    assert (known.last_sequence, known.current_txn_first_offset) == (2, -1)
    written.judge(made, offset, 200)


@pytest.mark.clause("P-9")
def test_transaction_ended_before_unexpired_records_is_not_read() -> None:
    written = WrittenLog()
    written.send(4, 0)
    written.end(4, 0)
    written.roll()
    written.send(4, 150)
    written.end(4, 150)
    offset = written.roll()
    written.log.close_cleanly()
    written.log = opened(written.disk, CONFIG)
    written.lose_snapshots()
    assert written.recreated(offset, 200).from_offset == 2


def test_replay_starts_at_transaction_within_segment() -> None:
    """The replay begins in the middle of a segment, at the place that its index knows."""
    written = WrittenLog()
    for _ in range(20):
        written.send(0, 0)
    written.send(4, 0)
    offset = written.roll()
    written.lose_snapshots()
    made = written.recreated(offset, 1000)
    assert made.from_offset == 20
    assert made.read_bytes < written.log.bytes_between(0, offset) // 4


@pytest.mark.clause("P-8", "P-13")
def test_rebuilt_snapshot_is_stored_and_loaded_normally() -> None:
    written = WrittenLog()
    written.send(0, 0, 3)
    written.send(4, 0)
    offset = written.roll()
    written.send(1, 0)
    written.lose_snapshots()
    made = written.recreated(offset, 50)
    path = written.log.segments.snapshots.path(offset)
    assert bytes(written.disk.files[path]) == made.snapshot
    again = opened(written.disk, CONFIG, clean=False)
    assert again.recovered.snapshot == path
    assert encode_snapshot(again.producers) == encode_snapshot(written.log.producers)
    assert again.last_stable_offset == 3


@pytest.mark.clause("P-14")
@pytest.mark.parametrize("left", [0, 1, 2])
def test_directory_with_newest_snapshots_only(left: int) -> None:
    """All segments are due, one after the other, as time goes on."""
    written = WrittenLog()
    for number in range(12):
        written.send(number % 3, number * 20)
        written.send(3 + number % 2, number * 20)
        if number % 4 == 3:
            written.end(3 + number % 2, number * 20)
        written.roll()
    bases = written.log.bases[1:]
    written.log.close_cleanly()
    written.log = opened(written.disk, CONFIG)
    written.lose_snapshots(*bases[len(bases) - left :])
    for number, offset in enumerate(bases):
        written.judge(written.recreated(offset, 240 + number), offset, 240 + number)
    assert written.log.segments.snapshots.offsets == bases


def test_snapshot_is_rebuilt_in_slices() -> None:
    written = WrittenLog()
    data = build([Record(timestamp_ms=START_MS, key=b"k", value=b"v")])
    for _ in range(3 * RECREATED_BATCHES_PER_SLICE):
        written.log.append(NOW, data, 0)
    offset = written.roll()
    written.lose_snapshots()
    assert counted(written.log.make_snapshot(NOW, offset))[1] == 4


def test_truncation_during_rebuild_restarts_it() -> None:
    spoils: tuple[Callable[[UnifiedLog], int], ...] = (
        lambda log: log.truncate_to(log.log_end_offset - 1),
        lambda log: log.delete_records_before(log.bases[-1]),
    )
    for spoil in spoils:
        written = WrittenLog()
        data = build([Record(timestamp_ms=START_MS, key=b"k", value=b"v")])
        for _ in range(2 * RECREATED_BATCHES_PER_SLICE):
            written.log.append(NOW, data, 0)
        offset = written.roll()
        written.send(0, 0)
        written.lose_snapshots()
        making = written.log.make_snapshot(NOW, offset)
        next(making)
        spoil(written.log)
        with pytest.raises(Overtaken):
            next(making)


@pytest.mark.clause("P-10")
def test_snapshot_at_local_log_start_covers_tiered_records() -> None:
    written = WrittenLog()
    written.send(4, 0)
    written.send(0, 0)
    first = written.roll()
    written.send(4, 0)
    offset = written.roll()
    written.end(4, 0)
    written.log.mark_synced(written.log.sync_point())
    written.log.copied_end_offset = first
    assert written.log.delete_local(first) == 1
    written.log.mark_synced(written.log.sync_point())
    for clean in (None, True, False):
        if clean is not None:
            written.log = opened(written.disk, CONFIG, clean=clean)
        written.lose_snapshots(first)
        made = written.recreated(offset, 50)
        assert made.from_offset == first
        written.judge(made, offset, 50)
        written.log.mark_synced(written.log.sync_point())
