"""Snapshots of what a log knows of producers, in Kafka's files (ProducerStateManager and ProducerSnapshot.json).

``<20-digit offset>.snapshot`` holds the state before that offset. It is written when a segment begins there, at a clean
stop, and at the end of a start. A file that its CRC-32C does not fit is deleted, never loaded. An older one takes its
place, or the beginning of the log.

A file with a right CRC can be trusted only because it never describes records that the log has lost. So whoever cuts
the log deletes the snapshots beyond the cut first, durably. The cleaner may remove the marker of a transaction that a
snapshot has open. So a swap deletes all snapshots below its end, too.

Kafka's format keeps only the last batch of each producer. ``replay`` finds the batches before it again.

A roll does not wait for a snapshot of very many producers. It keeps what is known of them at that moment, which nobody
changes, and each append that follows writes a slice of it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception

from reference_broker.log.durability import Durability
from reference_broker.log.producer_state import BatchMark, Producer, ProducerStates
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.records.batch import MAX_SEQUENCE, checksum

SUFFIX = ".snapshot"
NEW_SUFFIX = ".new"
NAME_DIGITS = 20
VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhiqiqiq")
_NO_MARK = BatchMark(-1, -1, -1, -1, -1)
_new = tuple.__new__
"""Makes a named tuple of values that are known to be right."""

PRODUCERS_A_SLICE = 500
"""So many are encoded or decoded in one event. It takes some 0.3 ms."""
PIECES_A_WRITE = 20
"""So many pieces are written at once: 0.5 MB."""


class SnapshotDamaged(Exception):  # noqa: N818 - says what was found
    """The bytes are no snapshot, or no longer what was written."""


def encoded(states: ProducerStates) -> bytes:
    """Returns the file for a state."""
    making = pieces_of(states.by_id)
    while True:
        try:
            next(making)
        except StopIteration as end:
            return b"".join(end.value)


def pieces_of(producers: Mapping[int, Producer]) -> Generator[None, None, list[bytes]]:
    """Returns the pieces of the file: its head, and the producers. Yields between two pieces."""
    pieces = [_COUNT.pack(len(producers))]
    crc = checksum(pieces[0])
    rest = iter(producers.items())
    while some := list(islice(rest, PRODUCERS_A_SLICE)):
        if len(pieces) > 1:
            yield
        pieces.append(b"".join([_row(producer_id, producer) for producer_id, producer in some]))
        crc = checksum(pieces[-1], crc)
    pieces[0] = _HEAD.pack(VERSION, crc) + pieces[0]
    return pieces


def _row(producer_id: int, producer: Producer) -> bytes:
    epoch, marks, timestamp_ms, coordinator_epoch, begun = producer
    _, sequence, first, last, _ = marks[-1] if marks else _NO_MARK
    return _PRODUCER.pack(producer_id, epoch, sequence, last, last - first, timestamp_ms, coordinator_epoch, begun)


def decoded(data: bytes) -> Iterator[tuple[int, Producer]]:
    """Returns the producers of a file with their IDs. Raises SnapshotDamaged."""
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
    return map(_producer, _PRODUCER.iter_unpack(memoryview(data)[start:]))


def _producer(row: tuple[int, ...]) -> tuple[int, Producer]:
    producer_id, epoch, sequence, last, delta, timestamp_ms, coordinator_epoch, begun = row
    marks: tuple[BatchMark, ...] = ()
    if last >= 0:
        first_sequence = sequence - delta if sequence >= delta else sequence - delta + MAX_SEQUENCE + 1
        marks = (_new(BatchMark, (first_sequence, sequence, last - delta, last, timestamp_ms)),)
    return producer_id, _new(Producer, (epoch, marks, timestamp_ms, coordinator_epoch, begun))


def restored(states: ProducerStates, producers: Iterator[tuple[int, Producer]]) -> Generator[None, None, None]:
    """Fills an empty state with the producers of a file, in slices."""
    while some := list(islice(producers, PRODUCERS_A_SLICE)):
        if states.by_id:
            yield
        states.restore(some)


def fits(crc: int, data: bytes) -> bool:
    """Whether the CRC is that of the file's producers."""
    return crc == checksum(memoryview(data)[_HEAD.size :])


class ProducerSnapshots:
    """The snapshot files of one log. ``offsets`` are those that are there, in order; nobody has looked into them yet.
    ``damaged`` has the path of each file that was found damaged, and why. ``unfinished`` is the offset of the snapshot
    that is being written, or None."""

    __slots__ = ("_loaded", "_work", "damaged", "directory", "disk", "durability", "offsets", "unfinished")

    def __init__(self, disk: Disk, directory: str, durability: Durability) -> None:
        self.disk = disk
        self.directory = directory
        self.durability = durability
        self.offsets: list[int] = []
        self.damaged: list[tuple[str, str]] = []
        self.unfinished: int | None = None
        self._work: Generator[None, None, None] | None = None
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

    def newest(self, first_offset: int, end_offset: int) -> tuple[int, Iterator[tuple[int, Producer]]] | None:
        """Reads the newest whole snapshot in [first_offset, end_offset]. Deletes the damaged ones that it finds before
        that. Returns its offset and its producers, which are decoded as they are taken. Raises DiskError."""
        while at := bisect_right(self.offsets, end_offset):
            offset = self.offsets[at - 1]
            if offset < first_offset:
                return None
            path = self.path(offset)
            try:
                return offset, decoded(self.disk.read(path, 0, self.disk.size(path)))
            except SnapshotDamaged as found:
                self.damaged.append((path, str(found)))
                self.delete(offset)
        return None

    def load(self, states: ProducerStates, first_offset: int, end_offset: int) -> Generator[None, None, int | None]:
        """Fills an empty state from the newest whole snapshot in [first_offset, end_offset], in slices, and returns its
        offset. Returns None if there is none. Raises DiskError."""
        self._loaded = -1
        found = self.newest(first_offset, end_offset)
        if found is None:
            return None
        offset, producers = found
        yield from restored(states, producers)
        self._loaded = offset if states.by_id else -1
        return offset

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, offset: int, states: ProducerStates) -> None:
        """Writes the state before ``offset``. A process that is killed leaves a whole file or none. A power loss may
        leave any part of it until it is synced with the log. Raises DiskError."""
        self.begin(offset, states)
        self.finish()

    def begin(self, offset: int, states: ProducerStates) -> None:
        """Begins to write the state before ``offset``. That of few producers is written now, and of more a slice with
        each ``go_on``. One that is not finished by now is finished first: each roll has its snapshot (P-2). Raises
        DiskError."""
        with suppress(DiskError):
            self.finish()
        self.unfinished, self._work = offset, self._writing(offset, states.by_id.copy())
        if len(states.by_id) <= PRODUCERS_A_SLICE:
            self.finish()

    def go_on(self) -> None:
        """Writes a slice of what is unfinished. If the disk refuses that, a start reads more batches."""
        with suppress(DiskError):
            self._take_slice()

    def finish(self) -> None:
        """Raises DiskError."""
        while self._work is not None:
            self._take_slice()

    def drop(self) -> None:
        """Leaves out what is unfinished. Raises DiskError."""
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

    def _writing(self, offset: int, producers: Mapping[int, Producer]) -> Generator[None, None, None]:
        pieces = yield from pieces_of(producers)
        path = self.path(offset)
        self.disk.write(path + NEW_SUFFIX, b"".join(pieces[:PIECES_A_WRITE]))
        for at in range(PIECES_A_WRITE, len(pieces), PIECES_A_WRITE):
            yield
            self.disk.append(path + NEW_SUFFIX, pieces[at : at + PIECES_A_WRITE])
        self._place(offset)

    def put(self, offset: int, data: bytes) -> None:
        """Writes a snapshot whose bytes are known. Raises DiskError."""
        if self.unfinished == offset:
            self.drop()
        self.disk.write(self.path(offset) + NEW_SUFFIX, data)
        self._place(offset)

    def _place(self, offset: int) -> None:
        path = self.path(offset)
        self.disk.rename(path + NEW_SUFFIX, path)
        self.durability.changed(path)
        at = bisect_left(self.offsets, offset)
        if self.offsets[at : at + 1] != [offset]:
            insort(self.offsets, offset)

    def is_whole_and_durable(self, offset: int) -> bool:
        """Whether a start is sure to find the state before ``offset``. Raises DiskError."""
        is_there = offset in self.offsets and self.path(offset) not in self.durability.dirty
        return is_there and self.newest(offset, offset) is not None

    def is_due(self, offset: int, log_start_offset: int) -> bool:
        """Whether the state before ``offset`` has no file yet. As in Kafka, that at the log start needs none."""
        return offset > (self.offsets[-1] if self.offsets else log_start_offset)

    # --- deletion ---------------------------------------------------------------------------------------------------

    def delete(self, offset: int) -> None:
        """Deletes the snapshot at an offset, if there is one. An unfinished one goes with its segment, the last one."""
        if self.unfinished == offset:
            self.drop()
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
