"""Offset and time index of a segment: in memory, and as files in Kafka's format.

An entry of the offset index has 8 bytes: int32 relative offset of a batch's last record, int32 byte position of the
batch. An entry of the time index has 12 bytes: int64 largest timestamp so far (ms), int32 relative offset; every record
up to that offset has a timestamp <= it.

Files are written when the segment is rolled or the log is closed, so that an append touches one file only. They can be
made anew from the segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from struct import Struct

from reference_broker.ports.disk import Disk

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")


class _Index:
    """Parallel arrays that rise strictly, and a file that holds the last two of them, entry by entry. ``_written``
    entries are in the file."""

    __slots__ = ("_arrays", "_entry", "_written", "path")

    def __init__(self, path: str, entry: Struct, *arrays: "array[int]") -> None:
        self.path = path
        self._entry = entry
        self._arrays = arrays
        self._written = 0

    def __len__(self) -> int:
        return len(self._arrays[0])

    def write(self, disk: Disk) -> bool:
        """Appends the entries that the file lacks; True if there were any."""
        fresh = zip(*(each[self._written :] for each in self._arrays[-2:]), strict=True)
        data = b"".join(self._entry.pack(*pair) for pair in fresh)
        if data:
            disk.append(self.path, [data])
            self._written = len(self)
        return bool(data)

    def clear(self) -> None:
        for each in self._arrays:
            del each[:]
        self._written = 0

    def _load(self, disk: Disk, take: Callable[[int, int], bool]) -> bool:
        """Gives each entry of the file to ``take``. False (and empty) if the file is missing or malformed, or if an
        entry was not taken."""
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
        """Keeps that many entries."""
        if self._written > keep:
            disk.truncate(self.path, keep * self._entry.size)
            self._written = keep
        for each in self._arrays:
            del each[keep:]


class OffsetIndex(_Index):
    """``keys[i]`` is a relative offset in the batch at ``positions[i]``. It is the batch's first offset, or its last
    for an entry from a file, which knows no other. An offset at or after it is found by a walk from there."""

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
        """Byte position of a batch at or before the one that holds the offset."""
        at = bisect_right(self.keys, relative) - 1
        return self.positions[at] if at >= 0 else 0

    def boundary_at_or_before(self, position: int) -> int:
        """The last byte position <= ``position`` that is known to start a batch."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def has_entry(self, number: int, position: int) -> bool:
        """Whether the entry with this number is about the batch at this byte position."""
        return number < len(self.positions) and self.positions[number] == position

    def truncate(self, disk: Disk, size: int) -> None:
        """Forgets batches at byte positions >= ``size``."""
        self._cut(disk, bisect_left(self.positions, size))

    def load(self, disk: Disk, segment_bytes: int) -> bool:
        """Reads the file; False (and empty) if it is missing or cannot belong to a segment of that size."""

        def take(last: int, position: int) -> bool:
            ascending = not self.positions or (last > self.keys[-1] and position > self.positions[-1])
            if last < 0 or not ascending or not 0 <= position < segment_bytes:
                return False
            self.add(last, last, position)
            return True

        return self._load(disk, take)


class TimeIndex(_Index):
    """``offsets[i]`` is the relative offset up to which no record has a timestamp above ``timestamps[i]``."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self, path: str) -> None:
        self.timestamps = array("q")
        self.offsets = array("q")
        super().__init__(path, TIME_ENTRY, self.timestamps, self.offsets)

    def add(self, timestamp_ms: int, relative: int) -> None:
        """Ignored unless it raises the largest timestamp."""
        if timestamp_ms < 0 or (self.timestamps and timestamp_ms <= self.timestamps[-1]):
            return
        assert not self.offsets or relative > self.offsets[-1], (
            f"{self.path}: an entry for offset {relative} follows on one for offset {self.offsets[-1]}"
        )
        self.timestamps.append(timestamp_ms)
        self.offsets.append(relative)

    def offset_before(self, timestamp_ms: int) -> int:
        """A relative offset such that every record before it has a smaller timestamp (0 if nothing is known)."""
        at = bisect_left(self.timestamps, timestamp_ms) - 1
        return self.offsets[at] if at >= 0 else 0

    def truncate(self, disk: Disk, relative: int) -> None:
        """Forgets entries whose offset is >= ``relative``."""
        self._cut(disk, bisect_left(self.offsets, relative))

    def load(self, disk: Disk) -> bool:
        """Reads the file; False (and empty) if it is missing or malformed."""

        def take(timestamp_ms: int, offset: int) -> bool:
            if self.offsets and (timestamp_ms <= self.timestamps[-1] or offset <= self.offsets[-1]):
                return False
            self.timestamps.append(timestamp_ms)
            self.offsets.append(offset)
            return True

        return self._load(disk, take)
