"""The segments of one log, and the files that belong to them.

``Segments`` is the list, oldest first. Every change of the list goes through it, so that the list, its base offsets,
the files and the ``Durability`` always agree. After a change that fails (DiskError) the list still describes the files.

A cleaned segment replaces the segments that it was made from in a swap, which a start finishes after a crash. After a
crash at any operation the log has either the old segments or the new one, never a part of both.

1. The cleaner writes and syncs ``<base>.log.cleaned``. A start deletes such a file.
2. The file is renamed to ``<base>.log.swap``. From here on the swap counts, and a start finishes it. The snapshots of
   producers below its end are gone by then, since they may have transactions open whose markers were removed.
3. The index files of the old segments are deleted, and their log files except the first.
4. The new file is renamed to the name of the first one.

The names are durable after step 2 and after step 3. Otherwise a power loss could keep deletions without the new file,
or the new file beside old segments that it contains already. The caller waits for these syncs.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from reference_broker.log.durability import Durability
from reference_broker.log.indexes import Aborted
from reference_broker.log.producer_state import ProducerSnapshots, offset_of
from reference_broker.log.segment import NAME_DIGITS, Segment, headers, new_segment
from reference_broker.ports.disk import Buffer, Disk, DiskError, UndoFailed
from reference_broker.ports.slicing import REPLAYED_BATCHES_PER_SLICE, Sliced
from reference_broker.records.batch import InvalidRecords


class Segments(Sequence[Segment]):
    """``items`` are the segments. The last one is active: appends go to it. ``bases`` are their base offsets, for
    binary searches."""

    __slots__ = ("bases", "directory", "disk", "durability", "is_offline", "items", "retired", "snapshots")

    def __init__(self, disk: Disk, directory: str, durability: Durability) -> None:
        self.disk = disk
        self.directory = directory
        self.durability = durability
        self.snapshots = ProducerSnapshots(disk, directory, durability)
        self.items: list[Segment] = []
        self.bases: list[int] = []
        self.is_offline = False
        """True once a failed append could not be undone. Unknown bytes are at the end of the active file, so the log is
        neither read nor written until a restart has checked them. The node ends because of it."""
        self.retired: list[Segment] = []
        """Oldest segments that are no longer in the log. Their files stay until no start after a power loss can need
        them."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    @overload
    def __getitem__(self, at: int) -> Segment: ...
    @overload
    def __getitem__(self, at: slice) -> list[Segment]: ...
    def __getitem__(self, at: int | slice) -> Segment | list[Segment]:
        return self.items[at]

    # --- what can be seen -------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.items)

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that contains ``offset``, or of the one before the hole that does."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def durable_before(self) -> int:
        """Return the base offset of the first segment with unsynced bytes, or of the active one if there are none."""
        dirty = self.durability.dirty
        for segment in self.items:
            if any(path in dirty for path in segment.paths):
                return segment.base_offset
        return self.bases[-1]

    def aborted_between(self, offset: int, end_offset: int) -> list[Aborted]:
        """Return the aborted transactions that overlap [offset, end_offset), in the order of their markers. Those of
        closed segments come from their index files. Raise DiskError."""
        aborted: list[Aborted] = []
        for segment in self.items[self.index_of(offset) :]:
            index = segment.aborted
            if index.count:
                aborted += index.between(self.disk, offset, end_offset)
                if index.last_stable >= end_offset:
                    break
        return aborted

    # --- growing ----------------------------------------------------------------------------------------------------

    def create(self, base_offset: int, created_ms: int, buffers: Sequence[Buffer] = (), open_from: int = -1) -> Segment:
        """Start a new active segment, whose file begins with ``buffers``. Without buffers the file is made too,
        because its name keeps the log end offset."""
        segment = new_segment(self.directory, base_offset, created_ms)
        segment.open_from = open_from
        self._append(segment.path, buffers)
        self.add(segment)
        self.durability.note_changed(segment.path)
        return segment

    def add(self, segment: Segment) -> None:
        """Make a segment whose file exists the active one."""
        if self.items:
            last = self.items[-1]
            assert segment.base_offset >= max(last.base_offset + 1, last.next_offset), (
                f"segment {segment.base_offset} overlaps the one before it, {last.base_offset} to {last.next_offset}"
            )
        self.items.append(segment)
        self.bases.append(segment.base_offset)

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write at the end of the active segment's file."""
        path = self.items[-1].path
        self._append(path, buffers)
        self.durability.note_changed(path)

    def _append(self, path: str, buffers: Sequence[Buffer]) -> None:
        if self.is_offline:
            self.check_online()
        try:
            self.disk.append(path, buffers)
        except UndoFailed:
            self.is_offline = True
            raise

    def check_online(self) -> None:
        """Raise DiskError if the log is offline."""
        if self.is_offline:
            raise DiskError(f"{self.directory} is offline: a failed append could not be undone; restart the node")

    def write_indexes(self, segment: Segment) -> None:
        """Bring the index files of a segment up to date."""
        for path in segment.write_indexes(self.disk):
            self.durability.note_changed(path)

    # --- shrinking --------------------------------------------------------------------------------------------------

    def retire_first(self) -> None:
        self.retired.append(self.items[0])
        del self.items[0], self.bases[0]

    def delete_retired(self, before: int) -> None:
        """Delete the files of retired segments that end at or before an offset."""
        while self.retired and self.retired[0].next_offset <= before:  # Decision retired-segment
            self._delete_files(self.retired[0])
            del self.retired[0]

    def drop_all(self) -> None:
        """Delete all files, the newest last."""
        while self.retired or self.items:
            if not self.retired:
                self.retire_first()
            self._delete_files(self.retired[0])
            del self.retired[0]

    def cut_from(self, offset: int) -> None:
        """Remove every batch that reaches ``offset`` or beyond, the last segments first. The first segment stays,
        perhaps empty."""
        while len(self.items) > 1 and self.bases[-1] >= offset:
            self._drop_last()
        self._cut_active(offset)

    def _drop_last(self) -> None:
        self.items[-2].aborted.hold(self.disk)
        segment = self.items[-1]
        self._delete_files(segment)
        self.items.pop()
        self.bases.pop()
        self.durability.cut(self.items[-1].path, segment.base_offset)

    def _cut_active(self, offset: int) -> None:
        segment = self.items[-1]
        if offset >= segment.next_offset:
            return
        size, next_offset = self._place_of_cut(segment, offset)
        self.durability.cut(segment.path, next_offset)
        segment.truncate(self.disk, size, next_offset)

    def end_before(self, offset: int) -> int:
        """Return the end of the log that a start would find if all batches that reach ``offset`` or beyond were gone.
        The cleaner may have left a hole before that offset."""
        at = self.index_of(offset)
        if at > 0 and offset == self.bases[at]:
            at -= 1
        return self._place_of_cut(self.items[at], offset)[1]

    def _place_of_cut(self, segment: Segment, offset: int) -> tuple[int, int]:
        """The size of the segment before the first batch that reaches ``offset``, and the offset after the batch that
        ends there."""
        size = segment.position_of(self.disk, offset)
        next_offset = segment.base_offset
        start = segment.offsets.boundary_at_or_before(max(size - 1, 0))
        for _, header in headers(self.disk, segment.path, start, size):
            next_offset = header.last_offset + 1
        return size, next_offset

    def _delete_files(self, segment: Segment) -> None:
        self.snapshots.delete(segment.base_offset)
        segment.delete(self.disk)
        for path in segment.paths:
            self.durability.note_deleted(path)

    # --- cleaning ---------------------------------------------------------------------------------------------------

    def swap(self, sources: Sequence[Segment], cleaned: Segment) -> None:
        """Replace ``sources``, which are neighbours in this list, by ``cleaned``. The file of ``cleaned`` is synced,
        and its indexes have no files yet.

        After a DiskError only a restart can mend the log, so the node must end.
        """
        at = self.index_of(cleaned.base_offset)
        stop = at + len(sources)
        assert self.items[at:stop] == list(sources), (
            f"{self.directory}: the segments to replace, from offset {cleaned.base_offset} on, are not in the log"
        )
        assert (cleaned.base_offset, cleaned.next_offset) == (sources[0].base_offset, sources[-1].next_offset), (
            f"{self.directory}: a cleaned segment of offsets {cleaned.base_offset} to {cleaned.next_offset} cannot "
            f"replace segments of offsets {sources[0].base_offset} to {sources[-1].next_offset}"
        )
        self.snapshots.delete_before(cleaned.next_offset)
        cleaned.path = swap_files(self.disk, sources, cleaned)
        for source in sources:
            for gone in source.paths:
                self.durability.note_deleted(gone)
        cleaned.open_from = sources[0].open_from
        self.items[at:stop] = [cleaned]
        self.bases[at:stop] = [cleaned.base_offset]


CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LOG_SUFFIX = ".log"


def cleaned_segment(directory: str, first: Segment) -> Segment:
    """Make an empty segment in memory, with the name that its file has while it is written."""
    segment = new_segment(directory, first.base_offset, first.created_ms)
    segment.path += CLEANED_SUFFIX
    return segment


def swap_files(disk: Disk, sources: Sequence[Segment], cleaned: Segment) -> str:
    """Replace the files of ``sources`` by the file of ``cleaned``. Return the file's new path.

    After a DiskError only a restart can mend the log, so the node must end.
    """
    path = sources[0].path
    disk.rename(cleaned.path, path + SWAP_SUFFIX)
    disk.make_durable(path + SWAP_SUFFIX)
    for source in reversed(sources[1:]):
        source.delete(disk)
    sources[0].delete_indexes(disk)
    disk.make_durable(path + SWAP_SUFFIX)
    disk.rename(path + SWAP_SUFFIX, path)
    return path


def needs_recovery(names: Sequence[str]) -> bool:
    return any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names)


def finish_swaps(disk: Disk, directory: str, names: Sequence[str]) -> Sliced[list[str]]:
    """Delete files that were not finished, and finish swaps that count already. A start runs it before it reads any
    segment. Return the names of the files in the folder afterwards."""
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.delete(f"{directory}/{name}")
    for name in names:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):  # Decision unfinished-swap
            yield from _carry_through(disk, directory, int(name[:NAME_DIGITS]), names)
    return list(disk.list(directory))


def _carry_through(disk: Disk, directory: str, base: int, names: Sequence[str]) -> Sliced[None]:
    first = new_segment(directory, base, 0)
    disk.make_durable(first.path + SWAP_SUFFIX)
    end = yield from _end_offset(disk, first.path + SWAP_SUFFIX, base)
    later = (int(name[:NAME_DIGITS]) for name in names if name.endswith(LOG_SUFFIX))
    for covered in sorted((other for other in later if base < other < end), reverse=True):
        new_segment(directory, covered, 0).delete(disk)
    for name in names:
        snapshot = offset_of(name)
        if snapshot is not None and snapshot < end:
            disk.delete(f"{directory}/{name}")
    first.delete_indexes(disk)
    disk.make_durable(first.path + SWAP_SUFFIX)
    disk.rename(first.path + SWAP_SUFFIX, first.path)


def _end_offset(disk: Disk, path: str, base: int) -> Sliced[int]:
    """Return one past the last offset of a swap file. The segments below it are those that the file replaces, because
    the cleaner keeps the last batch of a group of segments.

    Damage is ignored here. It is found, and truncated, when the segment is opened.
    """
    end = base
    try:
        for number, (_, header) in enumerate(headers(disk, path, 0, disk.size(path)), 1):
            end = header.last_offset + 1
            if number % REPLAYED_BATCHES_PER_SLICE == 0:
                yield
    except InvalidRecords:
        return end
    return end
