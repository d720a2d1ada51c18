"""Decides which records of a batch the cleaner keeps (Kafka's Cleaner and MemoryRecords.filterTo; KIP-98, KIP-534).

The newest record of each key stays (``OffsetMap``), and a tombstone until its delete horizon. Records of aborted
transactions are removed (``CleanedTransactions``). Some batches stay without records, because producers
(``LastBatches``), leader epochs or offsets need them.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from reference_broker.log.cleaner.record_columns import Columns, columns, extents, shifted
from reference_broker.log.indexes import Aborted
from reference_broker.log.producer_state import ProducerStateManager
from reference_broker.ports.slicing import (
    CLEANED_RECORDS_PER_SLICE,
    INDEXED_OFFSETS_PER_SLICE,
    REBUILT_RECORDS_PER_SLICE,
    Sliced,
)
from reference_broker.records.batch import (
    COMPRESSION_MASK,
    CRC_FROM,
    DELETE_HORIZON,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    InvalidRecords,
    checksum,
    sealed,
)
from reference_broker.records.compression import Compression, compressed_pieces
from reference_broker.records.control import ControlType, read_marker
from reference_broker.records.record import INT64_END, plain_records, wrapped
from reference_broker.wire.errors import ErrorCode

BYTES_PER_KEY = 176
"""The memory that one entry of a dictionary takes: the key (or its digest), the offset, and the slot."""

DIGEST_BYTES = 47
"""The length of a digest. Keys that are shorter are used as they are, since a digest costs as much as all else that is
done for a record. Their length distinguishes them from digests. Kafka's digests have 16 bytes; so long keys are as
safe."""


def short(key: bytes) -> bytes:
    """Return a key's entry in the map: the key itself if it is short, else its digest."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def all_short(keys: list[bytes]) -> list[bytes]:
    """Return the map entries of many keys."""
    return keys if max(map(len, keys), default=0) < DIGEST_BYTES else list(map(short, keys))


class OffsetMap:
    """The newest offset of each key in the dirty part of a log, in bounded memory.

    ``offsets`` maps ``short(key)`` to the key's newest offset. ``latest_offset`` is the last offset that the pass has
    read, or -1 before the first. ``capacity`` is the largest number of keys.
    """

    __slots__ = ("capacity", "latest_offset", "offsets")

    def __init__(self, buffer_bytes: int) -> None:
        """``buffer_bytes`` is ``log.cleaner.dedupe.buffer.size``. There is room for at least one key."""
        self.capacity = max(buffer_bytes // BYTES_PER_KEY, 1)
        self.latest_offset = -1
        self.offsets: dict[bytes, int] = {}

    def put(self, keys: list[bytes], offsets: Sequence[int]) -> bool:
        """Note the offset of each key. Offsets come in ascending order. Return False if the map is full, and note
        the keys before the first one for which there is no room."""
        names = all_short(keys)
        if len(self.offsets) + len(names) > self.capacity:
            return self._put_while_room(names, offsets)
        if names:
            self.offsets.update(zip(names, offsets, strict=True))
            self.latest_offset = offsets[-1]
        return True

    def _put_while_room(self, names: list[bytes], offsets: Sequence[int]) -> bool:
        newest_offsets = self.offsets
        for name, offset in zip(names, offsets, strict=True):
            if len(newest_offsets) >= self.capacity and name not in newest_offsets:
                return False
            newest_offsets[name] = offset
            self.latest_offset = offset
        return True

    @property
    def used_percent(self) -> int:
        return len(self.offsets) * 100 // self.capacity


class Superseded:
    """The batches of the dirty part of which no record is the newest of its key, so that they need not be decoded
    again.

    A pass reads the dirty part twice, and in a log whose keys recur most batches are of that kind. Only the newest
    offset of each key stays, and these offsets are known once all keys are noted. A batch with none of them is removed.
    At most ``most`` batches are noted; the others are decoded again.
    """

    __slots__ = ("_bases", "_has_newest", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._bases = array("q")
        """The base offset of each batch, in ascending order."""
        self._has_newest = bytearray()

    def note(self, header: BatchHeader) -> None:
        """Note the next batch. Each of its records is in the map of newest offsets, or superseded there."""
        if len(self._bases) < self._most:
            self._bases.append(header.base_offset)

    def settle(self, newest: Iterable[int]) -> Sliced[None]:
        """Take the newest offset of each key, in any order, once all batches are noted. An offset that is in no
        noted batch counts for the one before it, which is then decoded for nothing. Yield between two slices."""
        bases, has_newest = self._bases, bytearray(len(self._bases))
        self._has_newest = has_newest
        remaining = iter(newest) if bases else iter(())
        offsets = list(islice(remaining, INDEXED_OFFSETS_PER_SLICE))
        while offsets:
            for offset in offsets:
                has_newest[bisect_right(bases, offset) - 1] = 1
            offsets = list(islice(remaining, INDEXED_OFFSETS_PER_SLICE))
            if offsets:
                yield

    def holds(self, header: BatchHeader) -> bool:
        """Return whether the batch was noted, and no record of it is the newest of its key."""
        at = bisect_left(self._bases, header.base_offset)
        return at < len(self._bases) and self._bases[at] == header.base_offset and not self._has_newest[at]


class _Last(NamedTuple):
    """The last batch of one producer. ``is_control`` says that it is a marker, and that no data batch of its epoch was
    seen before it."""

    producer_epoch: int
    last_offset: int
    is_control: bool


class LastBatches:
    """The batches that must stay so that a start finds the producers' sequences again.

    Kafka keeps the last batch of each producer in the whole log. If that batch is truncated, Kafka finds the producer
    in a snapshot. Here a swap deletes the snapshots below its end (``producer_state``). A new leader or a power loss
    may remove everything at or beyond the end of a pass. So the last batch of each producer below that end stays.

    ``producers`` are those that the log knows now. No batch stays for a producer that the log has removed.
    ``latest_offset`` is the last offset that the pass has read. Each known producer has at most one entry.
    """

    __slots__ = ("_last", "latest_offset", "producers")

    def __init__(self, producers: ProducerStateManager) -> None:
        self.producers = producers
        self.latest_offset = -1
        self._last: dict[int, _Last] = {}

    def note(self, header: BatchHeader) -> None:
        """Note the next batch of the dirty part. A marker counts only if it begins a new epoch."""
        if header.producer_id < 0 or header.producer_id not in self.producers.by_id:
            return
        entry = self._last.get(header.producer_id)
        if header.is_control and entry is not None and header.producer_epoch <= entry.producer_epoch:
            return
        self._last[header.producer_id] = _Last(header.producer_epoch, header.last_offset, header.is_control)

    def must_stay(self, header: BatchHeader) -> bool:
        producer = self.producers.by_id.get(header.producer_id) if header.producer_id >= 0 else None
        if producer is None:
            return False
        last = self._last.get(header.producer_id)
        if header.last_offset > self.latest_offset:  # The pass did not read that far, so the next pass decides.
            return True
        if last is not None:
            return header.last_offset == last.last_offset or (
                last.is_control and not header.is_control and header.producer_epoch == last.producer_epoch
            )
        marks = [mark.last_offset for mark in producer.batch_metadata if mark.last_offset <= self.latest_offset]
        return not marks or header.last_offset == marks[-1]


class CleanedTransactions:
    """The transactions that a pass meets while it walks over the log (Kafka's CleanedTransactionMetadata).

    Records of aborted transactions are removed. A marker is removed once no batch of its transaction remains. The
    caller passes batches in the log's order, and the aborted transactions of each part before its batches.
    """

    __slots__ = ("_known_until", "_ongoing_aborted", "_ongoing_committed", "_still_there", "_waiting")

    def __init__(self) -> None:
        self._known_until = 0
        self._waiting: list[Aborted] = []
        """Aborted transactions that begin further on, the last one first."""
        self._ongoing_aborted: dict[int, tuple[Aborted, bool]] = {}
        """The aborted transactions at this place of the log, by producer ID, and whether a batch of each was seen."""
        self._ongoing_committed: dict[int, None] = {}
        self._still_there: list[Aborted] = []

    def begin(self, aborted: Sequence[Aborted], end_offset: int) -> None:
        """Begin with the next part of the log, up to ``end_offset``. ``aborted`` are the transactions that overlap
        it."""
        new = [entry for entry in aborted if entry.first_offset >= self._known_until] if self._known_until else aborted
        self._waiting = sorted((*self._waiting, *new), key=attrgetter("first_offset"), reverse=True)
        self._known_until = end_offset

    def taken(self) -> list[Aborted]:
        """Return the aborted transactions that have a batch left, and whose marker came since the last call. Readers
        must not get the others, or they would wait for markers that are gone."""
        taken, self._still_there = self._still_there, []
        return taken

    def of_data(self, header: BatchHeader) -> bool:
        """Note a data batch. Return True if its transaction was aborted, so that it is to be removed."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._ongoing_aborted[header.producer_id] = self._ongoing_aborted[header.producer_id][0], True
            return True
        self._ongoing_committed[header.producer_id] = None
        return False

    def of_control(self, header: BatchHeader, batch: memoryview) -> bool:
        """Note a control batch. Return True if no batch of its transaction was seen, so that it may be removed."""
        self._begin_up_to(header.last_offset)
        if header.record_count == 0:
            return True
        marker = read_marker(batch, header)
        if marker is None:
            return False
        if marker[0] is ControlType.ABORT:
            aborted, was_seen = self._ongoing_aborted.pop(header.producer_id, (None, False))
            if aborted is not None and was_seen:
                self._still_there.append(aborted)
            return not was_seen
        seen = header.producer_id in self._ongoing_committed
        self._ongoing_committed.pop(header.producer_id, None)
        return not seen

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            aborted = self._waiting.pop()
            self._ongoing_aborted.setdefault(aborted.producer_id, (aborted, False))


NO_EPOCH_YET = -2


@dataclass(slots=True)
class Retention:
    """Judges the batches of one pass, in the log's order.

    Beyond Kafka, the last batch of each new segment and the first batch of each leader epoch stay, without records if
    necessary. So a segment shows where it ends, and a hole between two segments is always a lost tail. And recovery
    finds the leader epochs in the batches, with their first offsets.
    """

    newest: OffsetMap
    superseded: Superseded
    transactions: CleanedTransactions
    last_batches: LastBatches
    now_ms: int
    """The time at which the pass began."""
    delete_retention_ms: int
    """How long a tombstone stays after its first cleaning."""
    tombstones_below: int = INT64_END
    """Only tombstones below this offset may go (H-2)."""
    tombstones_gone: int = 0
    """One past the last tombstone that has gone because of its age (H-1)."""
    group_end: int = 0
    """One past the last offset of the segments that become one, or -1 while another one may join them."""
    records: int = 0
    """Number of records that were checked."""
    kept: int = 0
    """Number of those that stay."""
    _last_epoch: int = NO_EPOCH_YET

    def keep(self, header: BatchHeader, batch: memoryview) -> Sliced[Buffer | None]:
        """Return what is kept of a batch, or None if nothing is. Raise InvalidRecords (CORRUPT_MESSAGE) if it is
        damaged."""
        must_stay = self._must_stay(header)
        may_go = (self.transactions.of_control if header.is_control else self._of_data)(header, batch)
        horizon_ms = header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None
        if header.record_count == 0:
            return batch if must_stay else None
        is_due = horizon_ms is not None and horizon_ms <= self.now_ms
        if may_go and (is_due or not header.is_control):  # Decision cleaned-batch
            self.records += header.record_count
            return _emptied(header) if must_stay else None
        check_crc(header, batch)
        if self.superseded.holds(header):
            self.records += header.record_count
            return _emptied(header) if must_stay else None
        if header.is_control:
            self.records += header.record_count
            self.kept += header.record_count
            if not may_go or horizon_ms is not None:
                return batch
            plain = yield from plain_records(header, batch)
            if plain is None:
                return batch
            starts = columns(plain, 0, header.record_count)[0].starts
            return (yield from _rebuilt(header, plain, starts, self._horizon_ms))
        return (yield from self._keep_records(header, batch, horizon_ms, must_stay))

    @property
    def _horizon_ms(self) -> int:
        """The delete horizon that a tombstone or marker gets in this pass: it may be removed from this time on."""
        return self.now_ms + self.delete_retention_ms

    def _of_data(self, header: BatchHeader, _: memoryview) -> bool:
        return self.transactions.of_data(header)

    def _must_stay(self, header: BatchHeader) -> bool:
        begins_epoch = header.leader_epoch != self._last_epoch
        self._last_epoch = header.leader_epoch
        if begins_epoch or header.last_offset + 1 == self.group_end:
            return True
        return self.last_batches.must_stay(header)

    def _keep_records(
        self, header: BatchHeader, batch: memoryview, horizon_ms: int | None, must_stay: bool
    ) -> Sliced[Buffer | None]:
        plain = yield from plain_records(header, batch)
        if plain is None:
            self.records += header.record_count
            self.kept += header.record_count
            return batch
        starts: list[int] = []
        position = count = 0
        has_tombstone = False
        tombstones_go = horizon_ms is not None and self.now_ms >= horizon_ms
        while position < len(plain):
            records, position = columns(plain, position, CLEANED_RECORDS_PER_SLICE)
            check_offsets(header, records)
            count += len(records.starts)
            stay = self._newest_of(header.base_offset, records, tombstones_go)
            starts += [records.starts[at] for at in stay]
            has_tombstone = has_tombstone or not set(records.valueless).isdisjoint(stay)
            if count > header.record_count:
                break
            if position < len(plain):
                yield
        check_count(header, count)
        self.records += count
        self.kept += len(starts)
        if not starts:
            return _emptied(header) if must_stay else None
        needs_horizon = horizon_ms is None and has_tombstone
        if len(starts) == count and not needs_horizon:
            return batch
        return (yield from _rebuilt(header, plain, starts, self._horizon_ms if needs_horizon else None))

    def _newest_of(self, base_offset: int, records: Columns, tombstones_go: bool) -> list[int]:
        """Return the indexes of the records that stay. As in Kafka, records without a key are removed. They can only
        come from a time at which the topic was not compacted."""
        latest = self.newest.latest_offset - base_offset
        newest = map(self.newest.offsets.get, all_short(records.keys))
        deltas = records.offset_deltas
        stay = [
            at
            for at, (delta, newest_offset) in enumerate(zip(deltas, newest, strict=True))
            if newest_offset is None or newest_offset <= base_offset + delta or delta > latest
        ]
        if records.keyless:
            gone = {at for at in records.keyless if deltas[at] <= latest}
            stay = [at for at in stay if at not in gone]
        if tombstones_go and records.valueless:
            stay = self._without_tombstones(base_offset, records, stay)
        return stay

    def _without_tombstones(self, base_offset: int, records: Columns, stay: list[int]) -> list[int]:
        """Take those tombstones away that are old enough, from the records that would stay."""
        deltas = records.offset_deltas
        end = min(self.newest.latest_offset + 1, self.tombstones_below) - base_offset
        gone = {at for at in records.valueless if deltas[at] < end}.intersection(stay)
        if gone:  # Decision tombstones
            self.tombstones_gone = max(self.tombstones_gone, base_offset + max(deltas[at] for at in gone) + 1)
        return [at for at in stay if at not in gone]


def check_crc(header: BatchHeader, batch: memoryview) -> None:
    """Check the CRC of a batch, because a damaged batch must not be rewritten with a CRC that is right. Raise
    InvalidRecords (CORRUPT_MESSAGE)."""
    if checksum(batch[CRC_FROM : header.size_bytes]) != header.crc:
        raise InvalidRecords(ErrorCode.corrupt_message, f"the batch at offset {header.base_offset} has a wrong CRC")


def check_count(header: BatchHeader, count: int) -> None:
    """Check that a batch holds as many records as it claims. Raise InvalidRecords (CORRUPT_MESSAGE)."""
    if count != header.record_count:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"a batch holds {count} records, but claims {header.record_count}"
        )


def check_offsets(header: BatchHeader, records: Columns) -> None:
    """Check that all records have offsets inside their batch. A record with an offset beyond it would supersede
    records that come after it. Such records may be in the log, because records are only decoded when they are appended
    if the topic is compacted by then. Raise InvalidRecords (CORRUPT_MESSAGE)."""
    deltas = records.offset_deltas
    if deltas and (min(deltas) < 0 or max(deltas) > header.last_offset_delta):
        raise InvalidRecords(
            ErrorCode.corrupt_message,
            f"the batch at offset {header.base_offset} has records with offsets outside it",
        )


def _rebuilt(header: BatchHeader, plain: bytes, starts: list[int], horizon_ms: int | None) -> Sliced[bytes]:
    """The batch with the records that begin at ``starts`` alone. Offsets, epoch, producer and sequence stay. A horizon
    is in the base timestamp (KIP-534), and the records' timestamps are then relative to it. A large batch takes
    several slices."""
    base_ms, attributes = header.base_timestamp_ms, header.attributes
    if horizon_ms is not None:
        base_ms, attributes = horizon_ms, header.attributes | DELETE_HORIZON
    by = header.base_timestamp_ms - base_ms
    latest_ms = -INT64_END
    pieces: list[bytes] = []
    for first in range(0, len(starts), REBUILT_RECORDS_PER_SLICE):
        if first:
            yield
        records = extents(plain, starts[first : first + REBUILT_RECORDS_PER_SLICE])
        if horizon_ms is None:
            pieces += [plain[record.start : record.end] for record in records]
        else:
            pieces += [shifted(plain, record, record.timestamp_delta + by) for record in records]
        latest_ms = max(latest_ms, *(wrapped(record.timestamp_delta + header.base_timestamp_ms) for record in records))
    body: list[bytes] = []
    for piece in compressed_pieces(Compression(header.compression), b"".join(pieces)):
        if body:
            yield
        body.append(piece)
    new = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=header.max_timestamp_ms if header.is_log_append_time else latest_ms,
        record_count=len(starts),
    )
    return sealed(new, b"".join(body))


def _emptied(header: BatchHeader) -> bytes:
    """Return the batch without its records. Its offsets, epoch, producer and last sequence stay known."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    return sealed(header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0), b"")
