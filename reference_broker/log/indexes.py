"""The indexes of a segment in memory and in Kafka's files: offsets, times, aborted transactions.

An entry of the offset index has 8 bytes: the relative offset of a batch's last record (int32), and the byte position of
the batch (int32). An entry of the time index has 12 bytes: the largest timestamp so far in ms (int64), and a relative
offset (int32). No record up to that offset has a larger timestamp. Offsets are relative to the segment's base offset.

The files are written when the segment is rolled or the log is closed, so that an append touches one file only. They can
be rebuilt from the segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from reference_broker.log.checkpoints import Checkpoint
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.records.batch import checksum

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")


class _Index:
    """Parallel arrays whose values rise strictly, and a file that holds the last two of the arrays, entry by entry. The
    first ``_written`` entries are in the file."""

    __slots__ = ("_arrays", "_entry", "_written", "path")

    def __init__(self, path: str, entry: Struct, *arrays: "array[int]") -> None:
        self.path = path
        self._entry = entry
        self._arrays = arrays
        self._written = 0

    def __len__(self) -> int:
        return len(self._arrays[0])

    def write(self, disk: Disk) -> bool:
        """Append the entries that the file lacks. Return whether there were any."""
        fresh = zip(*(column[self._written :] for column in self._arrays[-2:]), strict=True)
        data = b"".join(self._entry.pack(*pair) for pair in fresh)
        if data:
            disk.append(self.path, [data])
            self._written = len(self)
        return bool(data)

    def clear(self) -> None:
        for column in self._arrays:
            del column[:]
        self._written = 0

    def _load(self, disk: Disk, take: Callable[[int, int], bool]) -> bool:
        """Give each entry of the file to ``take``. Return False, and leave the index empty, if the file is missing
        or malformed, or if ``take`` refused an entry."""
        if not disk.exists(self.path):
            return False
        data = disk.read(self.path, 0, disk.size(self.path))
        if len(data) % self._entry.size:
            return False
        if not all(take(first, second) for first, second in self._entry.iter_unpack(data)):
            self.clear()
            return False
        self._written = len(self)
        return True

    def _cut(self, disk: Disk, keep: int) -> None:
        """Keep the first ``keep`` entries, in memory and in the file."""
        if self._written > keep:
            disk.truncate(self.path, keep * self._entry.size)
            self._written = keep
        for column in self._arrays:
            del column[keep:]


class OffsetIndex(_Index):
    """Maps offsets to byte positions. ``keys[i]`` is a relative offset in the batch at ``positions[i]``: the batch's
    first offset, or its last one if the entry came from a file, since files keep no other. A walk from ``positions[i]``
    finds every offset from ``keys[i]`` on. ``last_offsets[i]`` is the batch's last offset."""

    __slots__ = ("keys", "last_offsets", "positions")

    def __init__(self, path: str) -> None:
        self.keys = array("q")
        self.last_offsets = array("q")
        self.positions = array("q")
        super().__init__(path, OFFSET_ENTRY, self.keys, self.last_offsets, self.positions)

    def add(self, base: int, last: int, position: int) -> None:
        """``base`` and ``last`` are the first and last offset of the batch, relative to the segment's base."""
        assert not self.positions or (position > self.positions[-1] and base > self.last_offsets[-1]), (
            f"{self.path}: an entry for offset {base} at byte {position} follows on one for offset "
            f"{self.last_offsets[-1]} at byte {self.positions[-1]}"
        )
        self.keys.append(base)
        self.last_offsets.append(last)
        self.positions.append(position)

    def floor(self, relative: int) -> int:
        """Return the byte position of a batch from which a walk finds the offset: the nearest one that is known, or
        0."""
        at = bisect_right(self.keys, relative) - 1
        return self.positions[at] if at >= 0 else 0

    def ceiling(self, relative: int, size: int) -> int:
        """Return a byte position at or behind the beginning of the batch that holds the offset: the nearest one that
        is known, or ``size``."""
        at = bisect_right(self.keys, relative)
        return self.positions[at] if at < len(self.positions) else size

    def boundary_at_or_before(self, position: int) -> int:
        """Return the last byte position <= ``position`` at which a batch is known to begin."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def has_entry(self, number: int, position: int) -> bool:
        """Return whether the entry with this number is about the batch at this byte position."""
        return number < len(self.positions) and self.positions[number] == position

    def truncate(self, disk: Disk, size: int) -> None:
        """Forget the batches at byte positions >= ``size``."""
        self._cut(disk, bisect_left(self.positions, size))

    def load(self, disk: Disk, segment_bytes: int) -> bool:
        """Read the file. Return False, and leave the index empty, if it is missing or cannot belong to a segment of
        that size."""

        def take(last: int, position: int) -> bool:
            ascending = not self.positions or (last > self.keys[-1] and position > self.positions[-1])
            if last < 0 or not ascending or not 0 <= position < segment_bytes:
                return False
            self.add(last, last, position)
            return True

        return self._load(disk, take)


class TimeIndex(_Index):
    """Maps timestamps to offsets. No record up to the relative offset ``offsets[i]`` has a timestamp above
    ``timestamps[i]``."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self, path: str) -> None:
        self.timestamps = array("q")
        self.offsets = array("q")
        super().__init__(path, TIME_ENTRY, self.timestamps, self.offsets)

    def add(self, timestamp_ms: int, relative: int) -> None:
        """Add an entry, if its timestamp is larger than that of the last entry."""
        if timestamp_ms < 0 or (self.timestamps and timestamp_ms <= self.timestamps[-1]):
            return
        assert not self.offsets or relative > self.offsets[-1], (
            f"{self.path}: an entry for offset {relative} follows on one for offset {self.offsets[-1]}"
        )
        self.timestamps.append(timestamp_ms)
        self.offsets.append(relative)

    def offset_before(self, timestamp_ms: int) -> int:
        """Return a relative offset before which every record has a smaller timestamp. It is 0 if nothing is known."""
        at = bisect_left(self.timestamps, timestamp_ms) - 1
        return self.offsets[at] if at >= 0 else 0

    def truncate(self, disk: Disk, relative: int) -> None:
        """Forget the entries whose offset is >= ``relative``."""
        self._cut(disk, bisect_left(self.offsets, relative))

    def load(self, disk: Disk) -> bool:
        """Read the file. Return False, and leave the index empty, if it is missing or malformed."""

        def take(timestamp_ms: int, offset: int) -> bool:
            if self.offsets and (timestamp_ms <= self.timestamps[-1] or offset <= self.offsets[-1]):
                return False
            self.timestamps.append(timestamp_ms)
            self.offsets.append(offset)
            return True

        return self._load(disk, take)


TRANSACTION_SUFFIX = ".txnindex"
TRANSACTION_CHECKSUM_SUFFIX = ".txnindex-checksum"
TRANSACTION_ENTRY = Struct(">hqqqq")
TRANSACTION_VERSION = 0
ENTRIES_PER_READ = 120


class Aborted(NamedTuple):
    """An aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """Where the first transaction that was still open began, or one past the marker: no transaction that ended later
    begins before it."""


class TransactionIndex:
    """The aborted transactions whose markers are in one segment (Kafka's TransactionIndex; AbortedTxn.json, version 0).

    The file ``<base>.txnindex`` has an entry of 34 bytes for each of them, in the order of their markers. The format
    has no checksum, so a small text file beside it keeps the number of entries and their CRC-32C. A segment with a
    marker has both files, even if nothing was aborted. So a start detects when one of them is missing or damaged, and
    rebuilds both from the segment.

    The active segment has its entries in memory. For a closed one only a summary remains (``count``, ``lowest_first``,
    ``last_stable``), and a reader finds its entries by a binary search. ``has_markers``: the segment has a marker, so
    the files are due. ``is_known``: the entries are those of the segment.
    """

    __slots__ = ("_entries", "_saved", "count", "has_markers", "is_known", "last_stable", "lowest_first", "path")

    def __init__(self, start: str) -> None:
        self.path = start + TRANSACTION_SUFFIX
        self._entries: list[Aborted] | None = []
        self._saved = False
        self.has_markers = False
        self.is_known = True
        self.count = 0
        self.lowest_first = self.last_stable = -1

    @property
    def checksum_path(self) -> str:
        return self.path.removesuffix(TRANSACTION_SUFFIX) + TRANSACTION_CHECKSUM_SUFFIX

    @property
    def entries(self) -> Sequence[Aborted]:
        """The aborted transactions in memory, none of a closed segment whose index is only on the disk."""
        return self._entries or ()

    def note(self, aborted: Aborted | None) -> None:
        """Note a marker at the end of the segment, with the transaction that it aborted, if it did."""
        self.has_markers = True
        self._saved = False
        if aborted is not None:
            assert self._entries is not None, f"{self.path}: a closed segment gets another marker"
            assert not self._entries or aborted.last_offset > self._entries[-1].last_offset, (
                f"{self.path}: a marker at {aborted.last_offset} follows on one at {self._entries[-1].last_offset}"
            )
            self._entries.append(aborted)
            self._sum_up()

    def _sum_up(self) -> None:
        entries = self._entries or []
        if len(entries) == self.count + 1 and self.count:
            self.lowest_first = min(self.lowest_first, entries[-1].first_offset)
        else:
            self.lowest_first = min((entry.first_offset for entry in entries), default=-1)
        self.count = len(entries)
        self.last_stable = entries[-1].last_stable_offset if entries else -1

    # --- reading ----------------------------------------------------------------------------------------------------

    def between(self, disk: Disk, offset: int, end_offset: int) -> list[Aborted]:
        """Return the transactions that overlap [offset, end_offset). Raise DiskError."""
        if self.count == 0 or self.lowest_first >= end_offset:
            return []
        entries = []
        for entry in self._from(disk, offset):
            if entry.first_offset < end_offset:
                entries.append(entry)
            if entry.last_stable_offset >= end_offset:
                break
        return entries

    def _from(self, disk: Disk, offset: int) -> Iterator[Aborted]:
        """The entries whose markers lie at ``offset`` or beyond."""
        if self._entries is not None:
            at = bisect_left(self._entries, offset, key=attrgetter("last_offset"))
            yield from self._entries[at:]
            return
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            (entry,) = self._read(disk, middle, 1)
            low, high = (middle + 1, high) if entry.last_offset < offset else (low, middle)
        while low < self.count:
            entries = self._read(disk, low, min(ENTRIES_PER_READ, self.count - low))
            yield from entries
            low += len(entries)

    def _read(self, disk: Disk, first: int, count: int) -> list[Aborted]:
        data = disk.read(self.path, first * TRANSACTION_ENTRY.size, count * TRANSACTION_ENTRY.size)
        if len(data) != count * TRANSACTION_ENTRY.size:
            raise DiskError(
                f"{self.path} has lost its entries from number {first + len(data) // TRANSACTION_ENTRY.size} on"
            )
        return [Aborted(*fields) for _, *fields in TRANSACTION_ENTRY.iter_unpack(data)]

    # --- files ------------------------------------------------------------------------------------------------------

    def write(self, disk: Disk) -> tuple[str, ...]:
        """Bring the files up to date. Return the paths written."""
        if not self.has_markers or self._saved or self._entries is None:
            return ()
        data = b"".join(TRANSACTION_ENTRY.pack(TRANSACTION_VERSION, *entry) for entry in self._entries)
        disk.write(self.path, data)
        Checkpoint(disk, self.checksum_path).overwrite(_checked(data))
        self._saved = True
        return self.path, self.checksum_path

    def release(self) -> None:
        """Forget the entries of a closed segment, since they are in the file."""
        if self.is_known and (self._saved or not self.has_markers):
            self._entries = None if self.count else []

    def load(self, disk: Disk, names: Sequence[str]) -> bool:
        """Read the files, given the names in the folder. Return whether they are whole. Otherwise, and if there are
        none, the index is empty, and not known to be that of its segment."""
        self.clear()
        self.is_known = False
        name, checksum_name = (path.rpartition("/")[2] for path in (self.path, self.checksum_path))
        if name not in names or checksum_name not in names:
            return False
        data = disk.read(self.path, 0, disk.size(self.path))
        if (
            Checkpoint(disk, self.checksum_path).read([checksum_name]) != _checked(data)
            or len(data) % TRANSACTION_ENTRY.size
        ):
            return False
        self._entries = [Aborted(*fields) for _, *fields in TRANSACTION_ENTRY.iter_unpack(data)]
        self.has_markers = self._saved = self.is_known = True
        self._sum_up()
        return True

    def settle(self, has_markers: bool, end_offset: int) -> None:
        """Compare what was loaded with a segment that was read: whether it has markers, and where it ends."""
        if not has_markers:
            self.clear()
        elif self.count and self.entries[-1].last_offset >= end_offset:
            self.is_known = False

    def hold(self, disk: Disk) -> None:
        """Take the entries into memory, because the segment becomes the active one. Raise DiskError, also if the
        files were damaged since the start."""
        if self._entries is not None:
            return
        names = [path.rpartition("/")[2] for path in (self.path, self.checksum_path)]
        if not self.load(disk, names):
            raise DiskError(f"{self.path} is damaged, and the next start rebuilds it")

    def truncate(self, disk: Disk, end_offset: int) -> None:
        """Forget the markers from ``end_offset`` on. The files go, and are rewritten with the next ones."""
        self.hold(disk)
        if not self.has_markers:
            return
        self.delete(disk)
        self._saved = False
        self._entries = [entry for entry in self.entries if entry.last_offset < end_offset]
        self.count = 0
        self._sum_up()

    def delete(self, disk: Disk) -> None:
        disk.delete(self.checksum_path)
        disk.delete(self.path)

    def clear(self) -> None:
        """Forget everything, before the segment is read again."""
        self._entries = []
        self.has_markers = self._saved = False
        self.is_known = True
        self.count = 0
        self._sum_up()


def _checked(data: bytes) -> list[str]:
    return [str(len(data) // TRANSACTION_ENTRY.size), f"{checksum(data):08x}"]
