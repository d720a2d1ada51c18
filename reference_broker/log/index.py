"""Offset and time index of a segment: in memory, and as files in Kafka's format.

An entry of the offset index has 8 bytes: int32 relative offset of a batch's last record, int32 byte position of the
batch. An entry of the time index has 12 bytes: int64 largest timestamp so far (ms), int32 relative offset; every record
up to that offset has a timestamp <= it.

Files are written when the segment is rolled or the log is closed, so that an append touches one file only. They can be
made anew from the segment.
"""

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from reference_broker.ports.disk import Disk

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")


class OffsetIndex:
    """``keys[i]``: a relative offset in the batch at ``positions[i]``: its first, or its last for an entry from a file,
    which knows no other. An offset at or after it is found by a walk from there. All three arrays rise strictly."""

    __slots__ = ("_written", "keys", "last_offsets", "path", "positions")

    def __init__(self, path: str) -> None:
        self.path = path
        self.keys = array("q")
        self.last_offsets = array("q")
        self.positions = array("q")
        self._written = 0

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, base: int, last: int, position: int) -> None:
        """``base`` / ``last``: first and last offset of the batch, relative to the segment's base."""
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

    def truncate(self, disk: Disk, size: int) -> None:
        """Forgets batches at byte positions >= ``size``."""
        keep = bisect_left(self.positions, size)
        if self._written > keep:
            disk.truncate(self.path, keep * OFFSET_ENTRY.size)
            self._written = keep
        del self.keys[keep:], self.last_offsets[keep:], self.positions[keep:]

    def write(self, disk: Disk) -> bool:
        """Appends the entries that the file lacks; True if there were any."""
        fresh = zip(self.last_offsets[self._written :], self.positions[self._written :], strict=True)
        data = b"".join(OFFSET_ENTRY.pack(last, position) for last, position in fresh)
        if data:
            disk.append(self.path, [data])
            self._written = len(self.positions)
        return bool(data)

    def load(self, disk: Disk, segment_bytes: int) -> bool:
        """Reads the file; False (and empty) if it is missing or cannot belong to a segment of that size."""
        if not disk.exists(self.path):
            return False
        data = disk.read(self.path, 0, disk.size(self.path))
        if len(data) % OFFSET_ENTRY.size:
            return False
        for last, position in OFFSET_ENTRY.iter_unpack(data):
            ascending = not self.positions or (last > self.keys[-1] and position > self.positions[-1])
            if last < 0 or not ascending or not 0 <= position < segment_bytes:
                self.clear()
                return False
            self.add(last, last, position)
        self._written = len(self.positions)
        return True

    def clear(self) -> None:
        del self.keys[:], self.last_offsets[:], self.positions[:]
        self._written = 0


class TimeIndex:
    """Both arrays rise strictly."""

    __slots__ = ("_written", "offsets", "path", "timestamps")

    def __init__(self, path: str) -> None:
        self.path = path
        self.timestamps = array("q")
        self.offsets = array("q")
        self._written = 0

    def __len__(self) -> int:
        return len(self.offsets)

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
        keep = bisect_left(self.offsets, relative)
        if self._written > keep:
            disk.truncate(self.path, keep * TIME_ENTRY.size)
            self._written = keep
        del self.timestamps[keep:], self.offsets[keep:]

    def write(self, disk: Disk) -> bool:
        fresh = zip(self.timestamps[self._written :], self.offsets[self._written :], strict=True)
        data = b"".join(TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in fresh)
        if data:
            disk.append(self.path, [data])
            self._written = len(self.offsets)
        return bool(data)

    def load(self, disk: Disk) -> bool:
        """Reads the file; False (and empty) if it is missing or malformed."""
        if not disk.exists(self.path):
            return False
        data = disk.read(self.path, 0, disk.size(self.path))
        if len(data) % TIME_ENTRY.size:
            return False
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            if self.offsets and (timestamp <= self.timestamps[-1] or offset <= self.offsets[-1]):
                self.clear()
                return False
            self.timestamps.append(timestamp)
            self.offsets.append(offset)
        self._written = len(self.offsets)
        return True

    def clear(self) -> None:
        del self.timestamps[:], self.offsets[:]
        self._written = 0
