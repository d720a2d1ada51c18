"""The idempotent producers of a partition, and their snapshots: KIP-98; P-1, P-5, P-6, P-7.

The snapshots are Kafka's files (ProducerStateManager and ProducerSnapshot.json). ``<20-digit offset>.snapshot`` has the
state before that offset. It is written when a segment begins there, at a clean stop, and at the end of a start. A file
whose CRC-32C is wrong is deleted, never loaded. An older one is used instead, or the beginning of the log.

A file with a right CRC can be trusted only because it never describes records that the log has lost. So a truncation
first deletes the snapshots beyond it, durably. The cleaner may remove the marker of a transaction that a snapshot has
open. So a swap deletes all snapshots below its end, too.

Kafka's format keeps only the last batch of each producer. ``producer_replay`` finds the batches before it again.

A roll does not wait for a snapshot of very many producers. It keeps a copy of the state at that moment, and each append
that follows writes a slice of it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception
from typing import NamedTuple

from reference_broker.log.config import LogConfig
from reference_broker.log.durability import Durability
from reference_broker.log.indexes import Aborted
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.slicing import PRODUCERS_PER_SLICE, Sliced, run_to_end
from reference_broker.records.batch import (
    MAX_SEQUENCE,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    InvalidRecords,
    add_sequence,
    checksum,
)
from reference_broker.records.control import ControlType, read_marker
from reference_broker.wire.errors import ErrorCode

REMEMBERED_BATCHES = 5
"""Number of batches remembered of each producer. As in Kafka, a producer has at most five requests in flight, so a
retry is one of its last five batches."""


class BatchMetadata(NamedTuple):
    """One remembered batch. A retry is recognised by its first and last sequence."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerStateEntry(NamedTuple):
    """The state of one producer ID. It is immutable: each batch makes a new one."""

    producer_epoch: int
    batch_metadata: tuple[BatchMetadata, ...] = ()
    """The last five batches of this epoch, oldest first. There are none after a transaction marker that raised the
    epoch."""
    last_timestamp_ms: int = -1
    """The largest timestamp of the last batch, by the producer's clock or the append time."""
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1
    """-1 while no transaction is open."""

    @property
    def last_sequence(self) -> int:
        return self.batch_metadata[-1].last_sequence if self.batch_metadata else NO_SEQUENCE

    def find_duplicate_batch(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the remembered batch of this epoch that ``header`` is a retry of, if it is one."""
        for batch in reversed(self.batch_metadata):
            if batch.first_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
                return batch if header.producer_epoch == self.producer_epoch else None
        return None


@dataclass(slots=True)
class ProducerStateManager:
    """The state of all producers of a log."""

    expiration_ms: int
    reject_unknown: bool
    """The policy of P-5."""
    by_id: dict[int, ProducerStateEntry] = field(default_factory=dict)
    completed: list[tuple[int, int]] = field(default_factory=list)
    """The first offset and the marker's offset of the transactions that have ended, but whose marker the high watermark
    has not passed yet. They hold back the last stable offset."""
    open_transactions: dict[int, int] = field(default_factory=dict)
    """The first offset of each open transaction, by producer ID."""
    completed_from: int = 0
    """Transactions that ended before this offset are not known singly, because the state came from a snapshot."""
    swept_ms: int = 0
    """The time of the last expiry."""

    @staticmethod
    def of(config: LogConfig, wall_ms: int) -> "ProducerStateManager":
        """Make the state of a log without producers."""
        rejects = config.unknown_producer_id_policy != "accept"
        return ProducerStateManager(config.producer_id_expiration_ms, rejects, swept_ms=wall_ms)

    def configure(self, config: LogConfig) -> None:
        self.expiration_ms = config.producer_id_expiration_ms
        self.reject_unknown = config.unknown_producer_id_policy != "accept"

    def check(self, batches: Sequence[BatchHeader]) -> list[BatchMetadata] | None:
        """Validate a client's batches without changing anything.

        Return None if they are to be appended. Return what is remembered of them if all were written before. Raise
        InvalidRecords with one of these errors:

        - INVALID_PRODUCER_EPOCH: the epoch is older than the known one.
        - OUT_OF_ORDER_SEQUENCE_NUMBER: there is a gap, an overlap or a duplicate older than five batches, or a new
          epoch does not start at 0.
        - UNKNOWN_PRODUCER_ID: the producer is unknown, and the policy of P-5 rejects it.
        - INVALID_TXN_STATE: the batch is not transactional, and the producer has an open transaction.
        """
        if len(batches) == 1:
            header = batches[0]
            if header.producer_id < 0:
                return None
            duplicate = self._check_one(self.by_id.get(header.producer_id), header)
            return None if duplicate is None else [duplicate]
        return self._check_many(batches)

    def _check_many(self, batches: Sequence[BatchHeader]) -> list[BatchMetadata] | None:
        staged: dict[int, ProducerStateEntry] = {}
        duplicates = []
        for header in batches:
            entry = staged.get(header.producer_id) or self.by_id.get(header.producer_id)
            duplicate = self._check_one(entry, header) if header.producer_id >= 0 else None
            if duplicate is not None:
                duplicates.append(duplicate)
                continue
            staged[header.producer_id] = _advanced(entry, header, header.base_offset, NO_TIMESTAMP)
        if duplicates and len(duplicates) != len(batches):
            raise _out_of_order(batches[0], "some of the batches were written before, others were not")
        return duplicates or None

    def _check_one(self, producer: ProducerStateEntry | None, header: BatchHeader) -> BatchMetadata | None:
        first, epoch = header.base_sequence, header.producer_epoch
        if producer is None:  # Decision batch-producer
            if first != 0 and self.reject_unknown:  # Decision unknown-producer
                raise InvalidRecords(
                    ErrorCode.unknown_producer_id,
                    f"producer {header.producer_id} is not known here and sent sequence {first}, not 0",
                )
            return None
        if epoch < producer.producer_epoch:  # Decision producer-fenced
            raise InvalidRecords(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {producer.producer_epoch}, but the batch has epoch {epoch}",
            )
        if epoch > producer.producer_epoch:  # Decision producer-epoch
            if first != 0:
                raise _out_of_order(header, f"a new epoch starts at 0, not {first}")
            return None
        duplicate = producer.find_duplicate_batch(header)
        if duplicate is not None:  # Decision batch-sequence
            return duplicate
        expected = _next_sequence(producer.last_sequence)
        if first != expected:  # Decision sequence-order
            raise _out_of_order(header, f"expected sequence {expected}, got {first}")
        if producer.current_txn_first_offset >= 0 and not header.is_transactional:  # Decision plain-batch
            raise InvalidRecords(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} has an open transaction, but the batch is not transactional",
            )
        return None

    def record(self, header: BatchHeader, first_offset: int, timestamp_ms: int) -> None:
        """Note a data batch that was written, replicated, or read from the log. It was validated before."""
        producer_id = header.producer_id
        producer = self.by_id.get(producer_id)
        assert (
            producer is None or not producer.batch_metadata or first_offset > producer.batch_metadata[-1].last_offset
        ), (
            f"producer {producer_id} has a batch at offset {first_offset}, and its batch before that one ends at "
            f"{producer.batch_metadata[-1].last_offset}"
        )
        producer = self.by_id[producer_id] = _advanced(producer, header, first_offset, timestamp_ms)
        if producer.current_txn_first_offset >= 0:
            self.open_transactions.setdefault(producer_id, producer.current_txn_first_offset)

    def record_control(self, header: BatchHeader, offset: int, timestamp_ms: int, batch: Buffer) -> Aborted | None:
        """Note a control batch that was written, replicated, or read from the log. It may hold a transaction marker.
        Return the transaction that it aborts, if any."""
        marker = read_marker(batch, header)
        return None if marker is None else self.record_marker(header, offset, timestamp_ms, *marker)

    def record_marker(
        self, header: BatchHeader, offset: int, timestamp_ms: int, type_: ControlType, coordinator_epoch: int
    ) -> Aborted | None:
        """Note a transaction marker: the transaction is over. If the marker raises the epoch, the next sequence is 0.
        Return the transaction if it was aborted."""
        assert type_ in (ControlType.ABORT, ControlType.COMMIT), f"control type {type_} ends no transaction"
        entry = self.by_id.get(header.producer_id) or ProducerStateEntry(header.producer_epoch)
        self.by_id[header.producer_id] = ProducerStateEntry(
            max(header.producer_epoch, entry.producer_epoch),
            () if header.producer_epoch > entry.producer_epoch else entry.batch_metadata,
            timestamp_ms,
            max(entry.coordinator_epoch, coordinator_epoch),
        )
        first = self.open_transactions.pop(header.producer_id, None)
        if first is None:  # Decision marker
            return None
        self.completed.append((first, offset))
        if type_ != ControlType.ABORT:  # Decision ended-transaction
            return None
        return Aborted(header.producer_id, first, offset, min(self.open_transactions.values(), default=offset + 1))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is open, or whose marker is not below the high
        watermark. Return None if there is none. Return 0 as long as it cannot be known: above the high watermark lie
        markers whose transactions the snapshot of the start does not have."""
        if high_watermark < self.completed_from:
            return 0
        if not self.open_transactions and not self.completed:
            return None
        self.completed = [(first, marker) for first, marker in self.completed if marker >= high_watermark]
        return min((*self.open_transactions.values(), *(first for first, _ in self.completed)), default=None)

    def oldest_open_timestamp_ms(self) -> int:
        """The time of the last batch in the transaction that begins first of those that are open; -1 if none is."""
        if not self.open_transactions:
            return NO_TIMESTAMP
        return self.by_id[min(self.open_transactions, key=self.open_transactions.__getitem__)].last_timestamp_ms

    def keep_completed(self, former: "ProducerStateManager", end_offset: int) -> None:
        """Copy the completed transactions that were known before the log was truncated at ``end_offset``. A snapshot
        does not have them."""
        self.completed = [offsets for offsets in former.completed if offsets[1] < end_offset]
        self.completed_from = min(former.completed_from, end_offset)

    def expire(self, wall_ms: int) -> int:
        """Remove producers that have no open transaction and whose last record is old enough (P-7). Return how
        many."""
        self.swept_ms = wall_ms
        expired = [
            producer_id
            for producer_id, producer in self.by_id.items()
            # Decision producer-expires
            if producer.current_txn_first_offset < 0 and wall_ms - producer.last_timestamp_ms >= self.expiration_ms
        ]
        for producer_id in expired:
            del self.by_id[producer_id]
        return len(expired)

    def forget(self, producer_id: int) -> bool:
        """Remove a producer as if it had expired, and return whether it was known. It stays while its transaction is
        open."""
        producer = self.by_id.get(producer_id)
        if producer is None or producer.current_txn_first_offset >= 0:
            return False
        del self.by_id[producer_id]
        return True

    def restore(self, producers: Iterable[tuple[int, ProducerStateEntry]]) -> None:
        """Add some of the producers of a snapshot."""
        for producer_id, producer in producers:
            self.by_id[producer_id] = producer
            if producer.current_txn_first_offset >= 0:
                self.open_transactions[producer_id] = producer.current_txn_first_offset

    def empty_copy(self) -> "ProducerStateManager":
        """Return a new state with the same settings and without producers."""
        return ProducerStateManager(self.expiration_ms, self.reject_unknown, swept_ms=self.swept_ms)

    def clear(self) -> None:
        self.by_id.clear()
        self.open_transactions.clear()
        self.completed.clear()
        self.completed_from = 0


def _advanced(
    entry: ProducerStateEntry | None, header: BatchHeader, first_offset: int, timestamp_ms: int
) -> ProducerStateEntry:
    epoch, batch_metadata, _, coordinator_epoch, begun = entry or ProducerStateEntry(header.producer_epoch)
    if header.producer_epoch != epoch:
        batch_metadata = ()
    if begun < 0 and header.is_transactional:
        begun = first_offset
    batch_metadata = (*batch_metadata[1 - REMEMBERED_BATCHES :], batch_metadata_of(header, first_offset, timestamp_ms))
    return ProducerStateEntry(header.producer_epoch, batch_metadata, timestamp_ms, coordinator_epoch, begun)


def batch_metadata_of(header: BatchHeader, first_offset: int, timestamp_ms: int) -> BatchMetadata:
    last_offset = first_offset + header.last_offset_delta
    return BatchMetadata(header.base_sequence, header.last_sequence, first_offset, last_offset, timestamp_ms)


def _next_sequence(last: int) -> int:
    return 0 if last in (NO_SEQUENCE, MAX_SEQUENCE) else add_sequence(last, 1)


def _out_of_order(header: BatchHeader, why: str) -> InvalidRecords:
    return InvalidRecords(
        ErrorCode.out_of_order_sequence_number, f"producer {header.producer_id}, epoch {header.producer_epoch}: {why}"
    )


SNAPSHOT_SUFFIX = ".snapshot"
NEW_SUFFIX = ".new"
NAME_DIGITS = 20
SNAPSHOT_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")
_NO_BATCH = BatchMetadata(-1, -1, -1, -1, -1)
_new = tuple.__new__
"""Makes a named tuple of values that are known to be right."""

PIECES_A_WRITE = 20
"""Number of pieces that are written at once: 0.5 MB."""


class SnapshotDamaged(Exception):  # noqa: N818 - says what was found
    """The bytes are no snapshot, or no longer what was written."""


def encode_snapshot(states: ProducerStateManager) -> bytes:
    """Return the file for a state."""
    return b"".join(run_to_end(pieces_of(states.by_id)))


def pieces_of(producers: Mapping[int, ProducerStateEntry]) -> Sliced[list[bytes]]:
    """Return the pieces of the file: its head, and the producers. Yield between two pieces."""
    pieces = [_COUNT.pack(len(producers))]
    crc = checksum(pieces[0])
    remaining = iter(producers.items())
    while entries := list(islice(remaining, PRODUCERS_PER_SLICE)):
        if len(pieces) > 1:
            yield
        pieces.append(b"".join([_row(producer_id, producer) for producer_id, producer in entries]))
        crc = checksum(pieces[-1], crc)
    pieces[0] = _HEAD.pack(SNAPSHOT_VERSION, crc) + pieces[0]
    return pieces


def _row(producer_id: int, producer: ProducerStateEntry) -> bytes:
    epoch, batch_metadata, timestamp_ms, coordinator_epoch, begun = producer
    _, sequence, first, last, _ = batch_metadata[-1] if batch_metadata else _NO_BATCH
    return _PRODUCER.pack(producer_id, epoch, sequence, last, last - first, timestamp_ms, coordinator_epoch, begun)


def decode_snapshot(data: bytes) -> Iterator[tuple[int, ProducerStateEntry]]:
    """Return the producers of a file with their IDs. Raise SnapshotDamaged."""
    try:
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except StructError:
        raise SnapshotDamaged(f"{len(data)} bytes are too few") from None
    if version != SNAPSHOT_VERSION:
        raise SnapshotDamaged(f"its version is {version}")
    if not fits(crc, data):  # Decision producer-snapshot-crc
        raise SnapshotDamaged("its CRC is wrong")
    start = _HEAD.size + _COUNT.size
    if len(data) != start + count * _PRODUCER.size:
        raise SnapshotDamaged(f"{len(data)} bytes cannot hold {count} producers")
    return map(_producer, _PRODUCER.iter_unpack(memoryview(data)[start:]))


def _producer(row: tuple[int, ...]) -> tuple[int, ProducerStateEntry]:
    producer_id, epoch, sequence, last, delta, timestamp_ms, coordinator_epoch, begun = row
    batch_metadata: tuple[BatchMetadata, ...] = ()
    if last >= 0:
        first_sequence = sequence - delta if sequence >= delta else sequence - delta + MAX_SEQUENCE + 1
        batch_metadata = (_new(BatchMetadata, (first_sequence, sequence, last - delta, last, timestamp_ms)),)
    return producer_id, _new(ProducerStateEntry, (epoch, batch_metadata, timestamp_ms, coordinator_epoch, begun))


def restore_in_slices(
    states: ProducerStateManager, producers: Iterator[tuple[int, ProducerStateEntry]]
) -> Sliced[None]:
    """Fill an empty state with the producers of a file, in slices."""
    while entries := list(islice(producers, PRODUCERS_PER_SLICE)):
        if states.by_id:
            yield
        states.restore(entries)


def fits(crc: int, data: bytes) -> bool:
    """Return whether the CRC is that of the file's producers."""
    return crc == checksum(memoryview(data)[_HEAD.size :])


class ProducerSnapshots:
    """The snapshot files of one log. ``offsets`` are those that exist, in order; they may be damaged. ``damaged`` has
    the path of each file that was found damaged, and why. ``unfinished`` is the offset of the snapshot that is being
    written, or None."""

    __slots__ = ("_loaded", "_work", "damaged", "directory", "disk", "durability", "offsets", "unfinished")

    def __init__(self, disk: Disk, directory: str, durability: Durability) -> None:
        self.disk = disk
        self.directory = directory
        self.durability = durability
        self.offsets: list[int] = []
        self.damaged: list[tuple[str, str]] = []
        self.unfinished: int | None = None
        self._work: Sliced[None] | None = None
        self._loaded = -1

    def path(self, offset: int) -> str:
        return f"{self.directory}/{offset:0{NAME_DIGITS}d}{SNAPSHOT_SUFFIX}"

    @property
    def loaded(self) -> str:
        """The path of the file from which the last ``load`` took producers, or nothing."""
        return "" if self._loaded < 0 else self.path(self._loaded)

    def find(self, names: Sequence[str], bases: Sequence[int], log_start_offset: int, end_offset: int) -> None:
        """Look at the names in the folder. As Kafka does, delete the files that are of no use: those beyond the end,
        those that describe only deleted records, and those that belong to no segment, except the newest. Raise
        DiskError.
        """
        for name in names:
            if name.endswith(SNAPSHOT_SUFFIX + NEW_SUFFIX):
                self.disk.delete(f"{self.directory}/{name}")
        self.offsets = sorted(offset for offset in map(offset_of, names) if offset is not None)
        self.delete_beyond(end_offset if bases else -1)
        self.delete_before(log_start_offset + 1)
        base_offsets = set(bases)
        for offset in self.offsets[:-1]:
            if offset not in base_offsets:
                self.delete(offset)

    def newest(self, first_offset: int, end_offset: int) -> tuple[int, Iterator[tuple[int, ProducerStateEntry]]] | None:
        """Read the newest whole snapshot in [first_offset, end_offset]. Delete the damaged ones that it finds before
        that. Return its offset and its producers, which are decoded as they are taken. Raise DiskError."""
        while at := bisect_right(self.offsets, end_offset):
            offset = self.offsets[at - 1]
            if offset < first_offset:
                return None
            path = self.path(offset)
            try:
                return offset, decode_snapshot(self.disk.read(path, 0, self.disk.size(path)))
            except SnapshotDamaged as failure:
                self.damaged.append((path, str(failure)))
                self.delete(offset)
        return None

    def load(self, states: ProducerStateManager, first_offset: int, end_offset: int) -> Sliced[int | None]:
        """Fill an empty state from the newest whole snapshot in [first_offset, end_offset], in slices, and return its
        offset. Return None if there is none. Raise DiskError."""
        self._loaded = -1
        snapshot = self.newest(first_offset, end_offset)
        if snapshot is None:  # Decision producer-snapshot
            return None
        offset, producers = snapshot
        yield from restore_in_slices(states, producers)
        self._loaded = offset if states.by_id else -1
        return offset

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, offset: int, states: ProducerStateManager) -> None:
        """Write the state before ``offset``. A process that is killed leaves a whole file or none. A power loss may
        leave any part of it until it is synced with the log. Raise DiskError."""
        self.begin(offset, states)
        self.finish()

    def begin(self, offset: int, states: ProducerStateManager) -> None:
        """Begin to write the state before ``offset``. That of few producers is written now, and of more a slice with
        each ``go_on``. One that is not finished by now is finished first: each roll has its snapshot (P-2). Raise
        DiskError."""
        with suppress(DiskError):
            self.finish()
        self.unfinished, self._work = offset, self._writing(offset, states.by_id.copy())
        if len(states.by_id) <= PRODUCERS_PER_SLICE:
            self.finish()

    def go_on(self) -> None:
        """Write a slice of what is unfinished. If the disk refuses that, a start reads more batches."""
        with suppress(DiskError):
            self._take_slice()

    def finish(self) -> None:
        """Raise DiskError."""
        while self._work is not None:
            self._take_slice()

    def drop(self) -> None:
        """Leave out what is unfinished. Raise DiskError."""
        if self.unfinished is not None:
            path = self.path(self.unfinished)
            self.unfinished = self._work = None
            self.disk.delete(path + NEW_SUFFIX)

    def _take_slice(self) -> None:
        if self._work is None:
            return
        try:
            next(self._work)
        except StopIteration:
            self.unfinished = self._work = None
        except DiskError:
            self.unfinished = self._work = None
            raise

    def _writing(self, offset: int, producers: Mapping[int, ProducerStateEntry]) -> Sliced[None]:
        pieces = yield from pieces_of(producers)
        path = self.path(offset)
        self.disk.write(path + NEW_SUFFIX, b"".join(pieces[:PIECES_A_WRITE]))
        for at in range(PIECES_A_WRITE, len(pieces), PIECES_A_WRITE):
            yield
            self.disk.append(path + NEW_SUFFIX, pieces[at : at + PIECES_A_WRITE])
        self._place(offset)

    def put(self, offset: int, data: bytes) -> None:
        """Write a snapshot whose bytes are known. Raise DiskError."""
        if self.unfinished == offset:
            self.drop()
        self.disk.write(self.path(offset) + NEW_SUFFIX, data)
        self._place(offset)

    def _place(self, offset: int) -> None:
        path = self.path(offset)
        self.disk.rename(path + NEW_SUFFIX, path)
        self.durability.note_changed(path)
        at = bisect_left(self.offsets, offset)
        if self.offsets[at : at + 1] != [offset]:
            insort(self.offsets, offset)

    def is_whole_and_durable(self, offset: int) -> bool:
        """Return whether a start is sure to find the state before ``offset``. Raise DiskError."""
        is_there = offset in self.offsets and self.path(offset) not in self.durability.dirty
        return is_there and self.newest(offset, offset) is not None

    def is_due(self, offset: int, log_start_offset: int) -> bool:
        """Return whether the state before ``offset`` has no file yet. As in Kafka, that at the log start needs none."""
        return offset > (self.offsets[-1] if self.offsets else log_start_offset)

    # --- deletion ---------------------------------------------------------------------------------------------------

    def delete(self, offset: int) -> None:
        """Delete the snapshot at an offset, if there is one. An unfinished one goes with its segment, the last one."""
        if self.unfinished == offset:
            self.drop()
        at = bisect_left(self.offsets, offset)
        if self.offsets[at : at + 1] == [offset]:
            self.disk.delete(self.path(offset))
            self.durability.note_deleted(self.path(offset))
            self.offsets.remove(offset)

    def delete_beyond(self, offset: int) -> None:
        """Delete the snapshots of what lies beyond a cut, before the cut is made. If there are any, this waits for the
        disk. Otherwise a power loss could bring one back when the log has grown again, with other records. It is rare:
        it needs a cut behind a roll, or one that follows on a start. Raise DiskError."""
        beyond = self.offsets[bisect_right(self.offsets, offset) :]
        for gone in reversed(beyond):
            self.delete(gone)
        if beyond:
            self.disk.make_durable(self.path(beyond[0]))

    def delete_before(self, offset: int) -> None:
        for gone in self.offsets[: bisect_left(self.offsets, offset)]:
            self.delete(gone)


def offset_of(name: str) -> int | None:
    """The offset of a snapshot's file name. None for any other name."""
    stem = name.removesuffix(SNAPSHOT_SUFFIX)
    return int(stem) if stem != name and len(stem) == NAME_DIGITS and stem.isdecimal() else None
