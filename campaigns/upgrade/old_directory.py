"""A log directory as a broker before 2.8 leaves it: made by hand.

The broker's log has no part in it: batches come from the record builder, and all other files from ``kafka_files``.
Timestamps lie between some hours ago and now. Producers come and go. Some write in transactions. One of these is open
at the time before which producers are expired, and one is never ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from campaigns.upgrade import kafka_files
from campaigns.upgrade.full_replay import ReplayedSegment, replayed
from campaigns.upgrade.kafka_files import file_name, placed
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build

TOPIC = "events"
BROKER_ID = 0
CLUSTER_ID = "b2xkLWNsdXN0ZXItMi03LQ"
HOUR_MS = 3_600_000
INDEX_INTERVAL_BYTES = 4096
LEADER_EPOCH = 0
FIRST_PRODUCER = 1000
LIVING = 6
"""Number of producers that write at any time, in a random order."""
LONG, ENDLESS = 1, 2
"""Producers of the transaction that is open where producers begin to be expired, and of one that is never ended."""
LONG_OPEN = 5 / 4, 3 / 4
"""When that transaction begins and ends, before the end of the log, in times of the expiration."""
EVERY_TRANSACTIONAL, COMMITTED = 5, 0.8
"""Each fifth producer is transactional and ends a transaction after each of its batches. The second value is the share
of its transactions that commit."""


@dataclass(frozen=True, slots=True)
class WantedLog:
    """The log that is to be made."""

    size_bytes: int = 24 << 20
    segment_bytes: int = 1 << 20
    batch_bytes: int = 8 << 10
    hours: float = 96.0
    expiration_hours: float = 24.0
    producers_per_hour: float = 4.0
    """New ones that come in each hour."""
    snapshots: int = 2
    """Number of the newest segments that have one at their base offset, as the log's end has."""
    seed: int = 1


@dataclass(slots=True)
class _Segment:
    base_offset: int
    data: bytearray = field(default_factory=bytearray)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    newest: tuple[int, int] = (-1, -1)
    """The largest timestamp, and the offset of the first batch that has it."""
    since_entry: int = 0

    def add(self, batch: bytes, offset: int, timestamp_ms: int) -> None:
        """``offset`` is that of the batch's one record."""
        if timestamp_ms > self.newest[0]:
            self.newest = timestamp_ms, offset
        if self.since_entry > INDEX_INTERVAL_BYTES:
            self.offsets.append((offset - self.base_offset, len(self.data)))
            self._add_time()
            self.since_entry = 0
        self.since_entry += len(batch)
        self.data += batch

    def _add_time(self) -> None:
        if not self.times or self.newest[0] > self.times[-1][0]:
            self.times.append((self.newest[0], self.newest[1] - self.base_offset))

    def write(self, folder: Path) -> None:
        self._add_time()
        (folder / file_name(self.base_offset, ".log")).write_bytes(self.data)
        (folder / file_name(self.base_offset, ".index")).write_bytes(kafka_files.offset_index(self.offsets))
        (folder / file_name(self.base_offset, ".timeindex")).write_bytes(kafka_files.time_index(self.times))


def make(root: Path, wanted: WantedLog, now_ms: int) -> None:
    """Write the directory. ``now_ms`` is the time of its last record."""
    folder = root / f"{TOPIC}-0"
    folder.mkdir(parents=True)
    end = _write_segments(folder, wanted, now_ms)
    _write_snapshots(folder, replayed(folder), wanted.snapshots)
    (folder / "leader-epoch-checkpoint").write_text(kafka_files.checkpoint([f"{LEADER_EPOCH} 0"]))
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (root / name).write_text(kafka_files.checkpoint([f"{TOPIC} 0 {end}"]))
    (root / "log-start-offset-checkpoint").write_text(kafka_files.checkpoint([]))
    (root / "meta.properties").write_text(f"#\nbroker.id={BROKER_ID}\nversion=0\ncluster.id={CLUSTER_ID}\n")
    (root / ".kafka_cleanshutdown").touch()


def _write_segments(folder: Path, wanted: WantedLog, now_ms: int) -> int:
    """Return the log's end offset."""
    segment, offset = _Segment(0), 0
    for batch, timestamp_ms in _batches(wanted, now_ms):
        if segment.data and len(segment.data) + len(batch) > wanted.segment_bytes:
            segment.write(folder)
            segment = _Segment(offset)
        segment.add(placed(batch, offset, LEADER_EPOCH), offset, timestamp_ms)
        offset += 1
    segment.write(folder)
    return offset


def _write_snapshots(folder: Path, replay: list[ReplayedSegment], snapshots: int) -> None:
    places = replay[-1 - snapshots :] if snapshots else []
    for place in places:
        data = kafka_files.snapshot_file(one.row for one in place.known.values())
        (folder / file_name(place.next_offset, ".snapshot")).write_bytes(data)


def _batches(wanted: WantedLog, now_ms: int) -> Iterator[tuple[bytes, int]]:
    """Batches of one record each, with their timestamps."""
    random, count = Random(wanted.seed), max(wanted.size_bytes // wanted.batch_bytes, 1)
    step_ms = wanted.hours * HOUR_MS / count
    sequences: dict[int, int] = {}

    def sent(who: int, at_ms: int, is_transactional: bool) -> bytes:
        sequence = sequences.get(who, 0)
        sequences[who] = sequence + 1
        value = random.randbytes(32) * (wanted.batch_bytes // 32)
        record = Record(timestamp_ms=at_ms, key=who.to_bytes(8, "big"), value=value)
        return build(
            [record], producer_id=who, producer_epoch=0, base_sequence=sequence, is_transactional=is_transactional
        )

    def ended(who: int, at_ms: int, commit: bool) -> bytes:
        return build_marker(commit=commit, producer_id=who, producer_epoch=0, coordinator_epoch=0, timestamp_ms=at_ms)

    opened, closed = (
        count - int(count * min(share * wanted.expiration_hours / wanted.hours, 1.0)) for share in LONG_OPEN
    )
    for number in range(count):
        at_ms = now_ms - int((count - 1 - number) * step_ms)
        newest = FIRST_PRODUCER + LIVING + int(number * step_ms / HOUR_MS * wanted.producers_per_hour)
        who = newest - random.randrange(LIVING)
        is_transactional = who % EVERY_TRANSACTIONAL == 0
        yield sent(who, at_ms, is_transactional), at_ms
        if is_transactional:
            yield ended(who, at_ms, random.random() < COMMITTED), at_ms
        if number == opened:
            yield sent(LONG, at_ms, True), at_ms
        if number == closed:
            yield ended(LONG, at_ms, True), at_ms
        if number == count - 2:
            yield sent(ENDLESS, at_ms, True), at_ms
