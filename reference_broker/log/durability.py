"""The files of one log whose bytes a power loss may lose.

The log reports to ``Durability`` which files changed. When a sync starts, the log takes a sync point, which describes
what that sync will cover.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class SyncPoint(NamedTuple):
    """The changes that one sync covers. The point is taken when the sync starts, and given back when the sync has
    completed."""

    paths: tuple[str, ...]
    """The files to sync."""
    end_offset: int
    """The log end offset at the start."""
    change: int
    """The number of the last change before it."""


@dataclass(slots=True)
class Durability:
    """The durable files and records of a log. Changes are numbered."""

    synced_offset: int = 0
    """Every record below it is durable."""
    dirty: dict[str, int] = field(default_factory=dict)
    """The files with bytes that may not be durable, each with the number of its last change."""
    changes: int = 0
    """The number of the last change."""
    unsettled_cut: str = ""
    """A file in the log's folder, if a cut may not be durable. A sync of the file settles the cut."""
    last_cut: int = 0
    """The number of the last change that took records away. A sync that started before that change says nothing about
    records that were appended after it."""

    def note_changed(self, path: str) -> None:
        self.changes += 1
        self.dirty[path] = self.changes

    def cut(self, path: str, offset: int) -> None:
        """Note that a file lost its records from ``offset`` on."""
        self.note_changed(path)
        self.last_cut = self.changes
        self.unsettled_cut = path
        self.synced_offset = min(self.synced_offset, offset)

    def note_emptied(self, path: str) -> None:
        """Note that every record is gone, with its file. The file at ``path`` is the new beginning of the log."""
        self.changes += 1
        self.last_cut = self.changes
        self.unsettled_cut = path

    def note_deleted(self, path: str) -> None:
        self.dirty.pop(path, None)

    def point(self, end_offset: int) -> SyncPoint:
        return SyncPoint(tuple(self.dirty), end_offset, self.changes)

    def note_synced(self, point: SyncPoint) -> tuple[str, ...]:
        """Note that every byte that existed at ``point`` is durable. Return the paths that need no further sync."""
        clean = tuple(path for path in point.paths if self.dirty.get(path, point.change + 1) <= point.change)
        for path in clean:
            del self.dirty[path]
        if point.change >= self.last_cut:  # Decision sync-after-cut
            self.synced_offset = max(self.synced_offset, point.end_offset)
            self.unsettled_cut = ""
        return clean
