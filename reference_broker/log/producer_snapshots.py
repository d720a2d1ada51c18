"""Snapshots of what a log knows of producers, in Kafka's files (ProducerStateManager and ProducerSnapshot.json).

``<20-digit offset>.snapshot`` holds the state before that offset. It is written when a segment begins there, at a clean
stop, and at the end of a start. A file that its CRC-32C does not fit is deleted, never loaded. An older one takes its
place, or the beginning of the log.

A file with a right CRC can be trusted only because it never describes records that the log has lost. So whoever cuts
the log deletes the snapshots beyond the cut first, durably. The cleaner may remove the marker of a transaction that a
snapshot has open. So a swap deletes all snapshots below its end, too.

Kafka's format keeps only the last batch of each producer. ``replay`` finds the batches before it again.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception

from reference_broker.log.durability import Durability
from reference_broker.log.producer_state import BatchMark, Producer, ProducerStates
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import MAX_SEQUENCE, checksum

SUFFIX = ".snapshot"
NEW_SUFFIX = ".new"
NAME_DIGITS = 20
VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")


class SnapshotDamaged(Exception):  # noqa: N818 - says what was found
    """The bytes are no snapshot, or no longer what was written."""


def encoded(states: ProducerStates) -> bytes:
    """Returns the file for a state."""
    rows = [_COUNT.pack(len(states.by_id))]
    pack = _PRODUCER.pack
    for producer_id, producer in states.by_id.items():
        _, sequence, first, last, _ = producer.marks[-1] if producer.marks else (-1, -1, -1, -1, -1)
        rows.append(
            pack(
                producer_id,
                producer.producer_epoch,
                sequence,
                last,
                last - first,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.current_txn_first_offset,
            )
        )
    body = b"".join(rows)
    return _HEAD.pack(VERSION, checksum(body)) + body


def decoded(data: bytes) -> Iterator[tuple[int, Producer]]:
    """Yields the producers of a file with their IDs. Raises SnapshotDamaged before it yields any."""
    try:
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except StructError:
        raise SnapshotDamaged(f"{len(data)} bytes are too few") from None
    if version != VERSION:
        raise SnapshotDamaged(f"its version is {version}")
    if not fits(crc, data):
        raise SnapshotDamaged("its CRC is wrong")
    start = _HEAD.size + _COUNT.size
    if len(data) != start + count * _PRODUCER.size:
        raise SnapshotDamaged(f"{len(data)} bytes cannot hold {count} producers")
    for producer_id, epoch, sequence, last, delta, timestamp_ms, coordinator, txn in _PRODUCER.iter_unpack(
        memoryview(data)[start:]
    ):
        marks: tuple[BatchMark, ...] = ()
        if last >= 0:
            first_sequence = sequence - delta if sequence >= delta else sequence - delta + MAX_SEQUENCE + 1
            marks = (BatchMark(first_sequence, sequence, last - delta, last, timestamp_ms),)
        yield producer_id, Producer(epoch, marks, timestamp_ms, coordinator, txn)


def fits(crc: int, data: bytes) -> bool:
    """Whether the CRC is that of the file's producers."""
    return crc == checksum(memoryview(data)[_HEAD.size :])


class ProducerSnapshots:
    """The snapshot files of one log. ``offsets`` are those that are there, in order; nobody has looked into them yet.
    ``damaged`` has the path of each file that was found damaged, and why."""

    __slots__ = ("_loaded", "damaged", "directory", "disk", "durability", "offsets")

    def __init__(self, disk: Disk, directory: str, durability: Durability) -> None:
        self.disk = disk
        self.directory = directory
        self.durability = durability
        self.offsets: list[int] = []
        self.damaged: list[tuple[str, str]] = []
        self._loaded = -1

    def path(self, offset: int) -> str:
        return f"{self.directory}/{offset:0{NAME_DIGITS}d}{SUFFIX}"

    @property
    def loaded(self) -> str:
        """The path of the file from which the last ``load`` took producers, or nothing."""
        return "" if self._loaded < 0 else self.path(self._loaded)

    def find(self, names: Sequence[str], bases: Sequence[int], log_start_offset: int, end_offset: int) -> None:
        """Looks at the names in the folder. As Kafka does, deletes the files that are of no use: those beyond the end,
        those that describe only deleted records, and those that belong to no segment, except the newest. Raises
        DiskError.
        """
        for name in names:
            if name.endswith(SUFFIX + NEW_SUFFIX):
                self.disk.delete(f"{self.directory}/{name}")
        self.offsets = sorted(offset for offset in map(offset_of, names) if offset is not None)
        self.delete_beyond(end_offset if bases else -1)
        self.delete_before(log_start_offset + 1)
        known = set(bases)
        for offset in self.offsets[:-1]:
            if offset not in known:
                self.delete(offset)

    def newest(self, first_offset: int, end_offset: int) -> tuple[int, dict[int, Producer]] | None:
        """Reads the newest whole snapshot in [first_offset, end_offset]. Deletes the damaged ones that it finds before
        that. Raises DiskError."""
        while at := bisect_right(self.offsets, end_offset):
            offset = self.offsets[at - 1]
            if offset < first_offset:
                return None
            path = self.path(offset)
            try:
                return offset, dict(decoded(self.disk.read(path, 0, self.disk.size(path))))
            except SnapshotDamaged as found:
                self.damaged.append((path, str(found)))
                self.delete(offset)
        return None

    def load(self, states: ProducerStates, first_offset: int, end_offset: int) -> int | None:
        """Fills an empty state from the newest whole snapshot in [first_offset, end_offset], and returns its offset.
        Returns None if there is none. Raises DiskError."""
        self._loaded = -1
        found = self.newest(first_offset, end_offset)
        if found is None:
            return None
        offset, producers = found
        states.by_id.update(producers)
        begun = sorted(
            (producer.current_txn_first_offset, producer_id)
            for producer_id, producer in producers.items()
            if producer.current_txn_first_offset >= 0
        )
        states.open_transactions.update((producer_id, first) for first, producer_id in begun)
        self._loaded = offset if producers else -1
        return offset

    def write(self, offset: int, states: ProducerStates) -> None:
        """Writes the state before ``offset``. A process that is killed leaves a whole file or none. A power loss may
        leave any part of it until it is synced with the log. Raises DiskError."""
        path = self.path(offset)
        self.disk.write(path + NEW_SUFFIX, encoded(states))
        self.disk.rename(path + NEW_SUFFIX, path)
        self.durability.changed(path)
        at = bisect_left(self.offsets, offset)
        if self.offsets[at : at + 1] != [offset]:
            insort(self.offsets, offset)

    def is_due(self, offset: int, log_start_offset: int) -> bool:
        """Whether the state before ``offset`` has no file yet. As in Kafka, that at the log start needs none."""
        return offset > (self.offsets[-1] if self.offsets else log_start_offset)

    def delete(self, offset: int) -> None:
        """Deletes the snapshot at an offset, if there is one."""
        at = bisect_left(self.offsets, offset)
        if self.offsets[at : at + 1] == [offset]:
            self.disk.delete(self.path(offset))
            self.durability.deleted(self.path(offset))
            self.offsets.remove(offset)

    def delete_beyond(self, offset: int) -> None:
        """Deletes the snapshots of what lies beyond a cut, before the cut is made. If there are any, this waits for the
        disk. Otherwise a power loss could bring one back when the log has grown again, with other records. It is rare:
        it needs a cut behind a roll, or one that follows on a start. Raises DiskError."""
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
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == NAME_DIGITS and stem.isdecimal() else None
