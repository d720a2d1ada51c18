"""The offset index and the time index of a segment, in memory and as files in Kafka's format.

An entry of the offset index has 8 bytes: the relative offset of a batch's last record (int32), and the byte position of
the batch (int32). An entry of the time index has 12 bytes: the largest timestamp so far in ms (int64), and a relative
offset (int32). No record up to that offset has a larger timestamp. Offsets are relative to the segment's base offset.

The files are written when the segment is rolled or the log is closed, so that an append touches one file only. They can
be made anew from the segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from struct import Struct

from reference_broker.ports.disk import Disk

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
        """Appends the entries that the file lacks. Returns whether there were any."""
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
        """Gives each entry of the file to ``take``. Returns False, and leaves the index empty, if the file is missing
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
        """Keeps the first ``keep`` entries, in memory and in the file."""
        if self._written > keep:
            disk.truncate(self.path, keep * self._entry.size)
            self._written = keep
        for each in self._arrays:
            del each[keep:]


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
        """Returns the byte position of a batch from which a walk finds the offset: the nearest one that is known, or
        0."""
        at = bisect_right(self.keys, relative) - 1
        return self.positions[at] if at >= 0 else 0

    def ceiling(self, relative: int, size: int) -> int:
        """Return a byte position at or behind the beginning of the batch that holds the offset: the nearest one that
        is known, or ``size``."""
        at = bisect_right(self.keys, relative)
        return self.positions[at] if at < len(self.positions) else size

    def boundary_at_or_before(self, position: int) -> int:
        """Returns the last byte position <= ``position`` at which a batch is known to begin."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def has_entry(self, number: int, position: int) -> bool:
        """Whether the entry with this number is about the batch at this byte position."""
        return number < len(self.positions) and self.positions[number] == position

    def truncate(self, disk: Disk, size: int) -> None:
        """Forgets the batches at byte positions >= ``size``."""
        self._cut(disk, bisect_left(self.positions, size))

    def load(self, disk: Disk, segment_bytes: int) -> bool:
        """Reads the file. Returns False, and leaves the index empty, if it is missing or cannot belong to a segment of
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
        """Adds an entry, if its timestamp is larger than that of the last entry."""
        if timestamp_ms < 0 or (self.timestamps and timestamp_ms <= self.timestamps[-1]):
            return
        assert not self.offsets or relative > self.offsets[-1], (
            f"{self.path}: an entry for offset {relative} follows on one for offset {self.offsets[-1]}"
        )
        self.timestamps.append(timestamp_ms)
        self.offsets.append(relative)

    def offset_before(self, timestamp_ms: int) -> int:
        """Returns a relative offset before which every record has a smaller timestamp. It is 0 if nothing is known."""
        at = bisect_left(self.timestamps, timestamp_ms) - 1
        return self.offsets[at] if at >= 0 else 0

    def truncate(self, disk: Disk, relative: int) -> None:
        """Forgets the entries whose offset is >= ``relative``."""
        self._cut(disk, bisect_left(self.offsets, relative))

    def load(self, disk: Disk) -> bool:
        """Reads the file. Returns False, and leaves the index empty, if it is missing or malformed."""

        def take(timestamp_ms: int, offset: int) -> bool:
            if self.offsets and (timestamp_ms <= self.timestamps[-1] or offset <= self.offsets[-1]):
                return False
            self.timestamps.append(timestamp_ms)
            self.offsets.append(offset)
            return True

        return self._load(disk, take)
