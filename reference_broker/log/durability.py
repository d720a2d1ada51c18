"""Which bytes of one log a power loss may take.

The log tells the ledger which files changed. A sync point, taken when a sync starts, says what that sync will cover.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class SyncPoint(NamedTuple):
    """It is taken when a sync starts, and given back when the sync has completed. ``paths`` are the files to sync."""

    paths: tuple[str, ...]
    end_offset: int
    change: int


@dataclass(slots=True)
class Durability:
    """``dirty`` has the number of the last change of each path. Every record below ``synced_offset`` is durable."""

    synced_offset: int = 0
    dirty: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    last_cut: int = 0
    """Number of the last change that took records away. A sync that started before it says nothing about records that
    came after it."""

    def changed(self, path: str) -> None:
        self.changes += 1
        self.dirty[path] = self.changes

    def cut(self, path: str, offset: int) -> None:
        """A file lost its records from ``offset`` on."""
        self.changed(path)
        self.last_cut = self.changes
        self.synced_offset = min(self.synced_offset, offset)

    def emptied(self) -> None:
        """Every record is gone, with its file."""
        self.changes += 1
        self.last_cut = self.changes

    def deleted(self, path: str) -> None:
        self.dirty.pop(path, None)

    def point(self, end_offset: int) -> SyncPoint:
        return SyncPoint(tuple(self.dirty), end_offset, self.changes)

    def synced(self, point: SyncPoint) -> tuple[str, ...]:
        """Notes that every byte that was there at the point is durable. Returns the paths that need no more sync."""
        clean = tuple(path for path in point.paths if self.dirty.get(path, point.change + 1) <= point.change)
        for path in clean:
            del self.dirty[path]
        if point.change >= self.last_cut:
            self.synced_offset = max(self.synced_offset, point.end_offset)
        return clean
