"""Decides what of each batch stays (Kafka's Cleaner and MemoryRecords.filterTo; KIP-98, KIP-534).

The newest record of each key stays, and a tombstone until its delete horizon. Some batches stay without records,
because producers, leader epochs or offsets need them.
"""

from collections.abc import Generator
from dataclasses import dataclass

from reference_broker.log.cleaner.last_batches import LastBatches
from reference_broker.log.cleaner.offset_map import OffsetMap, all_short
from reference_broker.log.cleaner.record_columns import Columns, columns, extents, shifted
from reference_broker.log.cleaner.superseded import Superseded
from reference_broker.log.cleaner.transactions import CleanedTransactions
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
from reference_broker.records.reader import plain_records
from reference_broker.records.varint import INT64_END, wrapped
from reference_broker.wire.errors import ErrorCode

RECORDS_PER_SLICE = 3000
"""How many records one slice reads. That takes 1 to 2 ms."""

REBUILT_PER_SLICE = 1000
"""How many records one slice puts into a new batch. That takes about 2 ms."""

NO_EPOCH_YET = -2


@dataclass(slots=True)
class Retention:
    """Judges the batches of one pass, in the log's order.

    ``now_ms`` is the time at which the pass began. A tombstone stays for ``delete_retention_ms`` after its first
    cleaning. ``group_end`` is one past the last offset of the segments that become one, or -1 while another one may
    join them. ``records`` counts the records that were judged, and ``kept`` those of them that stay. Only tombstones
    below ``tombstones_below`` may go (H-2). ``tombstones_gone`` is one past the last one that has gone because of its
    age (H-1).

    Beyond Kafka, the last batch of each new segment and the first batch of each leader epoch stay, without records if
    necessary. So a segment shows where it ends, and a hole between two segments is always a lost tail. And recovery
    finds the leader epochs in the batches, with their first offsets.
    """

    newest: OffsetMap
    superseded: Superseded
    transactions: CleanedTransactions
    last_batches: LastBatches
    now_ms: int
    delete_retention_ms: int
    tombstones_below: int = INT64_END
    tombstones_gone: int = 0
    group_end: int = 0
    records: int = 0
    kept: int = 0
    _last_epoch: int = NO_EPOCH_YET

    def keep(self, header: BatchHeader, batch: memoryview) -> Generator[None, None, Buffer | None]:
        """Returns what stays of a batch, or None if nothing does. Yields about every RECORDS_PER_SLICE records. Raises
        InvalidRecords (CORRUPT_MESSAGE) if the batch is damaged."""
        must_stay = self._must_stay(header)
        may_go = (self.transactions.of_control if header.is_control else self._of_data)(header, batch)
        horizon_ms = header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None
        if header.record_count == 0:
            return batch if must_stay else None
        is_due = horizon_ms is not None and horizon_ms <= self.now_ms
        if may_go and (is_due or not header.is_control):
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
    ) -> Generator[None, None, Buffer | None]:
        plain = yield from plain_records(header, batch)
        if plain is None:
            self.records += header.record_count
            self.kept += header.record_count
            return batch
        kept: list[int] = []
        position = count = 0
        has_tombstone = False
        tombstones_go = horizon_ms is not None and self.now_ms >= horizon_ms
        while position < len(plain):
            found, position = columns(plain, position, RECORDS_PER_SLICE)
            check_offsets(header, found)
            count += len(found.starts)
            stay = self._newest_of(header.base_offset, found, tombstones_go)
            kept += [found.starts[at] for at in stay]
            has_tombstone = has_tombstone or not set(found.valueless).isdisjoint(stay)
            if count > header.record_count:
                break
            if position < len(plain):
                yield
        check_count(header, count)
        self.records += count
        self.kept += len(kept)
        if not kept:
            return _emptied(header) if must_stay else None
        needs_horizon = horizon_ms is None and has_tombstone
        if len(kept) == count and not needs_horizon:
            return batch
        return (yield from _rebuilt(header, plain, kept, self._horizon_ms if needs_horizon else None))

    def _newest_of(self, base_offset: int, found: Columns, tombstones_go: bool) -> list[int]:
        """Returns the indexes of the records that stay. As in Kafka, records without a key are removed. They can only
        come from a time at which the topic was not compacted."""
        latest = self.newest.latest_offset - base_offset
        newest = map(self.newest.offsets.get, all_short(found.keys))
        deltas = found.offset_deltas
        stay = [
            at
            for at, (delta, known) in enumerate(zip(deltas, newest, strict=True))
            if known is None or known <= base_offset + delta or delta > latest
        ]
        if found.keyless:
            gone = {at for at in found.keyless if deltas[at] <= latest}
            stay = [at for at in stay if at not in gone]
        if tombstones_go and found.valueless:
            stay = self._without_tombstones(base_offset, found, stay)
        return stay

    def _without_tombstones(self, base_offset: int, found: Columns, stay: list[int]) -> list[int]:
        """Takes those tombstones away that are old enough, from the records that would stay."""
        deltas = found.offset_deltas
        end = min(self.newest.latest_offset + 1, self.tombstones_below) - base_offset
        gone = {at for at in found.valueless if deltas[at] < end}.intersection(stay)
        if gone:
            self.tombstones_gone = max(self.tombstones_gone, base_offset + max(deltas[at] for at in gone) + 1)
        return [at for at in stay if at not in gone]


def check_crc(header: BatchHeader, batch: memoryview) -> None:
    """Checks the CRC of a batch, because a damaged batch must not be rewritten with a CRC that is right. Raises
    InvalidRecords (CORRUPT_MESSAGE)."""
    if checksum(batch[CRC_FROM : header.size_bytes]) != header.crc:
        raise InvalidRecords(ErrorCode.corrupt_message, f"the batch at offset {header.base_offset} has a wrong CRC")


def check_count(header: BatchHeader, count: int) -> None:
    """Checks that a batch holds as many records as it claims. Raises InvalidRecords (CORRUPT_MESSAGE)."""
    if count != header.record_count:
        raise InvalidRecords(
            ErrorCode.corrupt_message, f"a batch holds {count} records, but claims {header.record_count}"
        )


def check_offsets(header: BatchHeader, found: Columns) -> None:
    """Checks that all records have offsets inside their batch. A record with an offset beyond it would supersede
    records that come after it. Such records may be in the log, because records are only decoded when they are appended
    if the topic is compacted by then. Raises InvalidRecords (CORRUPT_MESSAGE)."""
    deltas = found.offset_deltas
    if deltas and (min(deltas) < 0 or max(deltas) > header.last_offset_delta):
        raise InvalidRecords(
            ErrorCode.corrupt_message,
            f"the batch at offset {header.base_offset} has records with offsets outside it",
        )


def _rebuilt(
    header: BatchHeader, plain: bytes, starts: list[int], horizon_ms: int | None
) -> Generator[None, None, bytes]:
    """The batch with the records that begin at ``starts`` alone. Offsets, epoch, producer and sequence stay. A horizon
    stands in the base timestamp (KIP-534), and the records then count their timestamps from it. A large batch takes
    several slices."""
    base_ms, attributes = header.base_timestamp_ms, header.attributes
    if horizon_ms is not None:
        base_ms, attributes = horizon_ms, header.attributes | DELETE_HORIZON
    by = header.base_timestamp_ms - base_ms
    latest_ms = -INT64_END
    pieces: list[bytes] = []
    for first in range(0, len(starts), REBUILT_PER_SLICE):
        if first:
            yield
        some = extents(plain, starts[first : first + REBUILT_PER_SLICE])
        if horizon_ms is None:
            pieces += [plain[record.start : record.end] for record in some]
        else:
            pieces += [shifted(plain, record, record.timestamp_delta + by) for record in some]
        latest_ms = max(latest_ms, *(wrapped(record.timestamp_delta + header.base_timestamp_ms) for record in some))
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
    """Returns the batch without its records. Its offsets, epoch, producer and last sequence stay known."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    return sealed(header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0), b"")
