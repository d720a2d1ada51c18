"""Reads a log's folder without the broker's code.

Whatever can be derived from the batches of a log must agree with them, or be absent: indexes, producer snapshots,
leader epochs, and the offsets in the checkpoint files. Sources: Kafka's ProducerStateManager (ProducerSnapshot.json,
version 1), OffsetIndex, TimeIndex, TransactionIndex (AbortedTxn.json), LeaderEpochCheckpointFile; KIP-98, KIP-101.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception
from typing import NamedTuple
from zlib import crc32

from crc32c import crc32c

from chaos.checks.log.batches import BatchIdentity, batches_of, last_sequence_of, producing_of, records_in

BASE_DIGITS = 20
_CRC_COVERS_FROM = 21
"""A batch's CRC covers it from its attributes on."""
_INDEX = Struct(">ii")
_TIME_INDEX = Struct(">qi")
_TRANSACTION = Struct(">hqqqq")
_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_CRC_FROM = 6
_SNAPSHOT_ROW = Struct(">qhiqiqiq")
_CONTROL_KEY = Struct(">hh")
_MARKER = Struct(">hi")
_ABORT = 0
_MARKERS = (0, 1)


class StoredBatch(NamedTuple):
    identity: BatchIdentity
    position: int
    """byte of its segment's file at which it begins"""
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredSegment:
    base: int
    batches: Sequence[StoredBatch]
    size: int
    whole: int
    """bytes that whole batches with a right CRC fill"""

    @property
    def next_offset(self) -> int:
        return self.batches[-1].identity.last_offset + 1 if self.batches else self.base


class ProducerRow(NamedTuple):
    """One producer, as a row of Kafka's snapshot file has it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    begun: int
    """first offset of its open transaction, or -1"""


class AbortedRow(NamedTuple):
    """One aborted transaction, as an entry of Kafka's transaction index has it."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


def folder_of(files: Iterable[tuple[str, bytes]], directory: str) -> dict[str, bytes]:
    """Return the files of one folder by their names."""
    return {path[len(directory) + 1 :]: data for path, data in files if path.startswith(directory + "/")}


def segments_of(folder: Mapping[str, bytes]) -> list[StoredSegment]:
    """Read the segments, by base offset."""
    return [
        segment_of(int(name[:BASE_DIGITS]), data)
        for name, data in sorted(folder.items())
        if name[BASE_DIGITS:] == ".log" and name[:BASE_DIGITS].isdecimal()
    ]


def segment_of(base: int, data: bytes) -> StoredSegment:
    batches: list[StoredBatch] = []
    position = 0
    for identity, batch in batches_of(data):
        if crc32c(batch[_CRC_COVERS_FROM:]) != identity.crc:
            break
        batches.append(StoredBatch(identity, position, batch))
        position += len(batch)
    return StoredSegment(base, batches, len(data), position)


def batches_in(segments: Iterable[StoredSegment]) -> list[bytes]:
    return [batch.data for segment in segments for batch in segment.batches]


# --- replay ---------------------------------------------------------------------------------------------------------


@dataclass
class Replay:
    """The state that the batches of a log give, one after the other from its first one."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerRow] = {}
        self.aborted: list[AbortedRow] = []
        self.epochs: list[tuple[int, int]] = []

    def add(self, batch: bytes) -> None:
        identity, _ = next(batches_of(batch))
        if not self.epochs or identity.epoch > self.epochs[-1][0]:
            self.epochs.append((identity.epoch, identity.base_offset))
        producing = producing_of(batch)
        if producing.producer_id < 0:
            return
        marker = _marker_of(batch) if identity.control else None
        if marker is not None:
            self._end(identity, batch, *marker)
        elif not identity.control:
            self._write(identity, batch, producing.is_transactional)

    def _write(self, identity: BatchIdentity, batch: bytes, is_transactional: bool) -> None:
        producer_id, epoch, sequence = last_sequence_of(batch)
        known = self.producers.get(producer_id)
        begun = -1 if known is None else known.begun
        self.producers[producer_id] = ProducerRow(
            producer_id,
            epoch,
            sequence,
            identity.last_offset,
            identity.last_offset - identity.base_offset,
            producing_of(batch).largest_ms,
            -1 if known is None else known.coordinator_epoch,
            identity.base_offset if begun < 0 and is_transactional else begun,
        )

    def _end(self, identity: BatchIdentity, batch: bytes, kind: int, coordinator_epoch: int) -> None:
        producer_id, epoch, _ = last_sequence_of(batch)
        known = self.producers.get(producer_id, ProducerRow(producer_id, epoch, -1, -1, 0, -1, -1, -1))
        last = (-1, -1, 0) if epoch > known.epoch else known[2:5]
        self.producers[producer_id] = ProducerRow(
            producer_id,
            max(epoch, known.epoch),
            *last,
            producing_of(batch).largest_ms,
            max(coordinator_epoch, known.coordinator_epoch),
            -1,
        )
        if known.begun >= 0 and kind == _ABORT:
            offset = identity.base_offset
            still_open = [producer.begun for producer in self.producers.values() if producer.begun >= 0]
            self.aborted.append(AbortedRow(producer_id, known.begun, offset, min(still_open, default=offset + 1)))


def _marker_of(batch: bytes) -> tuple[int, int] | None:
    """Return the kind and the coordinator epoch of a transaction marker."""
    for record in records_in(batch):
        if record.key is not None and record.value is not None:
            kind = _CONTROL_KEY.unpack_from(record.key)[1]
            return (kind, _MARKER.unpack_from(record.value)[1]) if kind in _MARKERS else None
    return None


def replayed(batches: Iterable[bytes]) -> Replay:
    replay = Replay()
    for batch in batches:
        replay.add(batch)
    return replay


# --- side files -----------------------------------------------------------------------------------------------------


def rows_of(folder: Mapping[str, bytes], name: str) -> list[str] | None:
    """Return the rows of a checkpoint file, or None if there is no whole one. A whole ``.new`` file counts first."""
    for each in (name + ".new", name):
        lines = folder.get(each, b"").decode(errors="replace").split("\n")
        if len(lines) >= 3 and lines[0] == "0" and lines[1] == str(len(lines) - 3) and lines[-1] == "":
            return lines[2:-1]
    return None


def offset_in(folder: Mapping[str, bytes], name: str) -> int:
    """Return the offset that a checkpoint file claims, or 0 if it claims none. A second row is the CRC-32 of the
    first, as ``synced-offset-checkpoint`` has it."""
    rows = rows_of(folder, name)
    if rows and name == LOCAL_START:
        rows = rows[:1]  # The others are leader epochs.
    if not rows or (len(rows) == 2 and rows[1] != f"{crc32(rows[0].encode()):08x}"):
        return 0
    last = rows[0].rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


LOCAL_START = "local-log-start-checkpoint"
DURABLE_CLAIMS = ("recovery-point-offset-checkpoint", "synced-offset-checkpoint")


def false_claims(folder: Mapping[str, bytes], start: int) -> Iterator[str]:
    """Yield the checkpoint files that claim records to be durable which the log lacks. ``start`` is where the log may
    begin."""
    end = start
    for segment in segments_of(folder):
        if segment.base <= end:
            end = max(end, segment.next_offset)
    for name in DURABLE_CLAIMS:
        claimed = offset_in(folder, name)
        if claimed > end:
            yield f"{name} says that records up to offset {claimed} are durable, and the log's own batches end at {end}"


def contradictions(
    folder: Mapping[str, bytes], before: Sequence[bytes], history: Iterable[bytes], log_start: int
) -> Iterator[str]:
    """Yield what contradicts the batches of a log that was resumed.

    ``before`` are the batches that were ahead of the first segment once. ``history`` are those of the whole log as they
    were written, from which snapshots of producers come: the cleaner removes records, and keeps what is known of their
    producers.
    """
    segments = segments_of(folder)
    for segment in segments:
        if segment.whole < segment.size:
            yield f"{segment.base:020}.log has {segment.size - segment.whole} bytes behind its last whole batch"
        yield from index_contradictions(folder, segment)
    replay = replayed(before)
    for at, segment in enumerate(segments):
        known = len(replay.aborted)
        for batch in segment.batches:
            replay.add(batch.data)
        yield from _transaction_contradictions(folder, segment, replay.aborted[known:], at == len(segments) - 1)
    yield from _snapshot_contradictions(folder, history)
    yield from _epoch_contradictions(folder, [*before, *batches_in(segments)], log_start)


def index_contradictions(folder: Mapping[str, bytes], segment: StoredSegment) -> Iterator[str]:
    stem = f"{segment.base:020}"
    at = {stored_batch.position: stored_batch.identity for stored_batch in segment.batches}
    data = folder.get(f"{stem}.index", b"")
    if len(data) % _INDEX.size:
        yield f"{stem}.index has {len(data)} bytes, which are no entries"
        return
    for relative, position in _INDEX.iter_unpack(data):
        batch = at.get(position)
        if batch is None or batch.last_offset != segment.base + relative:
            there = "no batch begins" if batch is None else batch.named
            yield f"{stem}.index: an entry for offset {segment.base + relative} names byte {position}, where {there}"
    data = folder.get(f"{stem}.timeindex", b"")
    if len(data) % _TIME_INDEX.size:
        yield f"{stem}.timeindex has {len(data)} bytes, which are no entries"
        return
    for timestamp_ms, relative in _TIME_INDEX.iter_unpack(data):
        up_to = [
            stored_batch
            for stored_batch in segment.batches
            if stored_batch.identity.base_offset <= segment.base + relative
        ]
        largest = max((producing_of(each.data).largest_ms for each in up_to), default=-1)
        if largest != timestamp_ms or segment.base + relative >= segment.next_offset:
            yield (
                f"{stem}.timeindex: {timestamp_ms} is the largest timestamp up to offset {segment.base + relative}, "
                f"but the batches up to there have {largest}, and the segment ends at {segment.next_offset}"
            )


def index_gaps(folder: Mapping[str, bytes], segment: StoredSegment, interval_bytes: int) -> Iterator[str]:
    """Yield what the indexes of a closed segment lack: an entry for each batch before which more than
    ``interval_bytes`` have none, and the largest timestamp with the first batch that has it."""
    stem, last = f"{segment.base:020}", 0
    entries = {position for _, position in _INDEX.iter_unpack(_whole(folder.get(f"{stem}.index", b""), _INDEX))}
    for batch in segment.batches:
        if batch.position in entries:
            last = batch.position
        elif batch.position - last > interval_bytes:
            yield f"{stem}.index has none from byte {last} to {batch.position}; one is due every {interval_bytes}"
            break
    largest = max((producing_of(stored_batch.data).largest_ms for stored_batch in segment.batches), default=-1)
    times = list(_TIME_INDEX.iter_unpack(_whole(folder.get(f"{stem}.timeindex", b""), _TIME_INDEX)))
    first = next(
        (stored_batch for stored_batch in segment.batches if producing_of(stored_batch.data).largest_ms == largest),
        None,
    )
    wanted = (largest, first.identity.last_offset - segment.base) if first is not None else None
    if largest >= 0 and (not times or times[-1] != wanted):
        yield f"{stem}.timeindex ends with {times[-1:]}, and the largest timestamp, with its offset, is {wanted}"


def _whole(data: bytes, entry: Struct) -> bytes:
    return data[: len(data) // entry.size * entry.size]


def _transaction_contradictions(
    folder: Mapping[str, bytes], segment: StoredSegment, expected: Sequence[AbortedRow], is_active: bool
) -> Iterator[str]:
    name = f"{segment.base:020}.txnindex"
    data = folder.get(name)
    if data is None:
        if expected and not is_active:
            yield f"{name} is missing, and its segment has {len(expected)} aborted transactions"
        return
    indexed = transaction_rows(data)
    if indexed is None:
        yield f"{name} has {len(data)} bytes, which are no entries"
        return
    wanted = list(expected)[: len(indexed)] if is_active else list(expected)
    if indexed != wanted:
        yield f"{name} has {indexed}, and the batches give {wanted}"


def transaction_rows(data: bytes) -> list[AbortedRow] | None:
    """Return the entries of a transaction index, or None if its bytes are no entries."""
    try:
        return [AbortedRow(*row[1:]) for row in _TRANSACTION.iter_unpack(data)]
    except StructError:
        return None


def snapshot_rows(data: bytes) -> dict[int, ProducerRow] | None:
    """Return the producers of a snapshot file by ID, or None if it is not whole."""
    try:
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        rows = [ProducerRow(*row) for row in _SNAPSHOT_ROW.iter_unpack(data[_SNAPSHOT_HEAD.size :])]
    except StructError:
        return None
    is_whole = version == 1 and count == len(rows) and crc32c(data[_SNAPSHOT_CRC_FROM:]) == crc
    return {row.producer_id: row for row in rows} if is_whole else None


def differing(stored: Mapping[int, ProducerRow], expected: Mapping[int, ProducerRow]) -> str:
    """Return the producers that differ, for an explanation."""
    only, missing = {*stored.values()} - {*expected.values()}, {*expected.values()} - {*stored.values()}
    return f"{sorted(only) or 'no other producers'}, and the batches give {sorted(missing) or 'none of them'}"


def _snapshot_contradictions(folder: Mapping[str, bytes], history: Iterable[bytes]) -> Iterator[str]:
    replay = Replay()
    states: dict[int, dict[int, ProducerRow]] = {segment.base: {} for segment in segments_of(folder)[:1]}
    for batch in history:
        replay.add(batch)
        states[next(batches_of(batch))[0].last_offset + 1] = dict(replay.producers)
    for name, data in sorted(folder.items()):
        if name[BASE_DIGITS:] != ".snapshot":
            continue
        stored, expected = snapshot_rows(data), states.get(int(name[:BASE_DIGITS]))
        if expected is None:
            yield f"{name} is at an offset at which the log has no batch's end"
        elif stored is not None and stored != expected:
            yield f"{name} has {differing(stored, expected)}"


def _epoch_contradictions(folder: Mapping[str, bytes], data: Iterable[bytes], log_start: int) -> Iterator[str]:
    """A row is an epoch and where it began, at the log start at least. The cleaner may have removed the first batches
    of an epoch, so its row may be as early as the end of the batch before. A log without records may have one row, for
    the epoch that was in force at its start (LeaderEpochFileCache.truncateFromStart keeps it)."""
    rows = rows_of(folder, "leader-epoch-checkpoint")
    if rows is None:
        return
    checkpoint = [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows)]
    batches = [identity for each in data for identity, _ in batches_of(each) if identity.last_offset >= log_start]
    earliest = log_start
    expected: list[tuple[int, int, int]] = []
    for batch in batches:
        if not expected or batch.epoch > expected[-1][0]:
            expected.append((batch.epoch, earliest, max(batch.base_offset, log_start)))
        earliest = batch.last_offset + 1
    agrees = len(checkpoint) == len(expected) and all(
        epoch == known and low <= start <= high
        for (epoch, start), (known, low, high) in zip(checkpoint, expected, strict=True)
    )
    if not agrees and (expected or [start for _, start in checkpoint] != [log_start]):
        given = [(each[0], each[2]) for each in expected]
        yield f"leader-epoch-checkpoint has {checkpoint}, and the batches give {given}"
