"""The aborted transactions whose markers one segment holds (Kafka's TransactionIndex; AbortedTxn.json, version 0).

The file ``<base>.txnindex`` has an entry of 34 bytes for each of them, in the order of their markers. The format has no
checksum, so a small text file beside it keeps the number of entries and their CRC-32C. A segment with a marker has both
files, even if nothing was aborted. So a start finds out when one of them is missing or damaged, and makes both anew
from the segment.

Like the other indexes, they are written when the segment is rolled or the log is closed. The active segment has its
entries in memory. For a closed one only a summary stays there, and a reader finds its entries by a binary search.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.records.batch import checksum

SUFFIX = ".txnindex"
CHECKSUM_SUFFIX = ".txnindex-checksum"
ENTRY = Struct(">hqqqq")
VERSION = 0
ENTRIES_PER_READ = 120


class Aborted(NamedTuple):
    """An aborted transaction. ``last_offset`` is that of its marker. ``last_stable_offset`` is where the first
    transaction that was still open began, or one past the marker: no transaction that ended later begins before it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """``has_markers``: the segment holds a marker, so the files are due. ``is_known``: the entries are those of the
    segment. ``count``, ``lowest_first`` and ``last_stable`` sum them up."""

    __slots__ = ("_entries", "_saved", "count", "has_markers", "is_known", "last_stable", "lowest_first", "path")

    def __init__(self, start: str) -> None:
        self.path = start + SUFFIX
        self._entries: list[Aborted] | None = []
        self._saved = False
        self.has_markers = False
        self.is_known = True
        self.count = 0
        self.lowest_first = self.last_stable = -1

    @property
    def checksum_path(self) -> str:
        return self.path.removesuffix(SUFFIX) + CHECKSUM_SUFFIX

    @property
    def entries(self) -> Sequence[Aborted]:
        """Those in memory."""
        return self._entries or ()

    def note(self, aborted: Aborted | None) -> None:
        """Notes a marker at the end of the segment, with the transaction that it aborted, if it did."""
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
        """Returns the transactions that overlap [offset, end_offset). Raises DiskError."""
        if self.count == 0 or self.lowest_first >= end_offset:
            return []
        found = []
        for entry in self._from(disk, offset):
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                break
        return found

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
            some = self._read(disk, low, min(ENTRIES_PER_READ, self.count - low))
            yield from some
            low += len(some)

    def _read(self, disk: Disk, first: int, count: int) -> list[Aborted]:
        data = disk.read(self.path, first * ENTRY.size, count * ENTRY.size)
        if len(data) != count * ENTRY.size:
            raise DiskError(f"{self.path} has lost its entries from number {first + len(data) // ENTRY.size} on")
        return [Aborted(*fields) for _, *fields in ENTRY.iter_unpack(data)]

    # --- files ------------------------------------------------------------------------------------------------------

    def write(self, disk: Disk) -> tuple[str, ...]:
        """Brings the files up to date. Returns the paths written."""
        if not self.has_markers or self._saved or self._entries is None:
            return ()
        data = b"".join(ENTRY.pack(VERSION, *entry) for entry in self._entries)
        disk.write(self.path, data)
        Checkpoint(disk, self.checksum_path).overwrite(_checked(data))
        self._saved = True
        return self.path, self.checksum_path

    def release(self) -> None:
        """Forgets the entries of a closed segment, since they are in the file."""
        if self.is_known and (self._saved or not self.has_markers):
            self._entries = None if self.count else []

    def load(self, disk: Disk, names: Sequence[str]) -> bool:
        """Reads the files, given the names in the folder. Returns whether they are whole. Otherwise, and if there are
        none, the index is empty, and not known to be that of its segment."""
        self.clear()
        self.is_known = False
        name, checksum_name = (path.rpartition("/")[2] for path in (self.path, self.checksum_path))
        if name not in names or checksum_name not in names:
            return False
        data = disk.read(self.path, 0, disk.size(self.path))
        if Checkpoint(disk, self.checksum_path).read([checksum_name]) != _checked(data) or len(data) % ENTRY.size:
            return False
        self._entries = [Aborted(*fields) for _, *fields in ENTRY.iter_unpack(data)]
        self.has_markers = self._saved = self.is_known = True
        self._sum_up()
        return True

    def settle(self, has_markers: bool, end_offset: int) -> None:
        """Compares what was loaded with a segment that was read: whether it has markers, and where it ends."""
        if not has_markers:
            self.clear()
        elif self.count and self.entries[-1].last_offset >= end_offset:
            self.is_known = False

    def hold(self, disk: Disk) -> None:
        """Takes the entries into memory, because the segment becomes the active one. Raises DiskError, also if the
        files were damaged since the start."""
        if self._entries is not None:
            return
        names = [path.rpartition("/")[2] for path in (self.path, self.checksum_path)]
        if not self.load(disk, names):
            raise DiskError(f"{self.path} is damaged, and the next start makes it anew")

    def truncate(self, disk: Disk, end_offset: int) -> None:
        """Forgets the markers from ``end_offset`` on. The files go, and are written anew with the next ones."""
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
        """Forgets everything, before the segment is read anew."""
        self._entries = []
        self.has_markers = self._saved = False
        self.is_known = True
        self.count = 0
        self._sum_up()


def _checked(data: bytes) -> list[str]:
    return [str(len(data) // ENTRY.size), f"{checksum(data):08x}"]
