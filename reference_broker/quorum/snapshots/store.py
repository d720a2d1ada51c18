"""The snapshots that this node holds, and the one that it has downloaded in part.

A snapshot gets its name only when it is complete: it is written or fetched under another name, synced, and renamed. It
is held, so that others may rely on it, when that name is durable.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference_broker.ports.disk import Disk
from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.snapshots.file_names import (
    PART_SUFFIX,
    SUFFIX,
    is_stray,
    part_path,
    progress_path,
    read_name,
    snapshot_path,
)
from reference_broker.quorum.snapshots.format import last_contained_timestamp_ms
from reference_broker.quorum.snapshots.readers import SnapshotReaders


@dataclass(slots=True, eq=False)
class SnapshotStore:
    """``partial`` is the download that can be resumed, or None. ``readers`` tracks which replicas download what.
    ``damaged`` holds the snapshots whose bytes were found to be bad, and why. They are not served. ``on_added`` is
    called when a snapshot is held from now on."""

    _disk: Disk
    _ids: list[OffsetAndEpoch] = field(default_factory=list)
    _sizes: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    _superseded_us: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    _timestamps_ms: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    readers: SnapshotReaders = field(default_factory=SnapshotReaders)
    damaged: dict[OffsetAndEpoch, str] = field(default_factory=dict)
    partial: OffsetAndEpoch | None = None
    on_added: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        """Finds the snapshots on disk, and deletes leftovers except the newest download that can be resumed. Raises
        DiskError."""
        self._scan()

    @property
    def ids(self) -> tuple[OffsetAndEpoch, ...]:
        """Oldest first."""
        return tuple(self._ids)

    @property
    def latest(self) -> OffsetAndEpoch | None:
        return self._ids[-1] if self._ids else None

    @property
    def oldest(self) -> OffsetAndEpoch | None:
        return self._ids[0] if self._ids else None

    def holds(self, snapshot: OffsetAndEpoch) -> bool:
        return snapshot in self._sizes

    def path(self, snapshot: OffsetAndEpoch) -> str:
        return snapshot_path(snapshot)

    def size(self, snapshot: OffsetAndEpoch) -> int:
        """The size of a held snapshot, in bytes."""
        return self._sizes[snapshot]

    @property
    def size_bytes(self) -> int:
        """The size of all held snapshots together."""
        return sum(self._sizes.values())

    def timestamp_ms(self, snapshot: OffsetAndEpoch) -> int:
        """When the last record that it contains was written. Raises SnapshotDamaged and DiskError."""
        found = self._timestamps_ms.get(snapshot)
        if found is None:
            found = self._timestamps_ms[snapshot] = last_contained_timestamp_ms(self._disk, self.path(snapshot))
        return found

    def superseded_us(self, snapshot: OffsetAndEpoch, now_us: int) -> int:
        """Since when there is a newer snapshot. This is the time of the first call, which ``cleaner`` makes after each
        new snapshot."""
        return self._superseded_us.setdefault(snapshot, now_us)

    def read(self, snapshot: OffsetAndEpoch, position: int, max_bytes: int) -> bytes:
        """Raises DiskError."""
        return self._disk.read(self.path(snapshot), position, max_bytes)

    def name(self, snapshot: OffsetAndEpoch, written: str) -> str:
        """Renames the file ``written``, which is complete and durable, to this snapshot's name. Returns its path, which
        must be synced before ``add``. Raises DiskError."""
        path = self.path(snapshot)
        self._disk.rename(written, path)
        return path

    def add(self, snapshot: OffsetAndEpoch) -> None:
        """Holds a snapshot from now on: its file and its name are durable. Raises DiskError."""
        size = self._disk.size(self.path(snapshot))
        if snapshot not in self._sizes:
            insort(self._ids, snapshot, key=lambda held: held.age)
        self._sizes[snapshot] = size
        self.damaged.pop(snapshot, None)
        self.on_added()
        if self.partial is not None and self.partial.age <= snapshot.age:
            self.drop_partial()

    def delete(self, snapshot: OffsetAndEpoch) -> None:
        """Deletes a snapshot; one that is not held is no error. Raises DiskError."""
        if snapshot not in self._sizes:
            return
        self._disk.delete(self.path(snapshot))
        self._ids.remove(snapshot)
        del self._sizes[snapshot]
        self._superseded_us.pop(snapshot, None)
        self._timestamps_ms.pop(snapshot, None)
        self.damaged.pop(snapshot, None)
        self.readers.forget(snapshot)

    def drop_partial(self) -> None:
        """Deletes the partial download. Raises DiskError."""
        if self.partial is not None:
            self._disk.delete(part_path(self.partial))
            self._disk.delete(progress_path(self.partial))
            self.partial = None

    def _scan(self) -> None:
        names = self._disk.list(METADATA_DIRECTORY)
        for name in names:
            found = read_name(name, SUFFIX)
            # (0, 0) is the name of Kafka's bootstrap checkpoint, which is no snapshot of the log.
            if found is not None and found.offset > 0:
                insort(self._ids, found, key=lambda held: held.age)
                self._sizes[found] = self._disk.size(self.path(found))
        self.partial = self._resumable(names)
        kept = () if self.partial is None else (part_path(self.partial), progress_path(self.partial))
        for name in names:
            path = f"{METADATA_DIRECTORY}/{name}"
            if is_stray(name) and path not in kept:
                self._disk.delete(path)

    def _resumable(self, names: Sequence[str]) -> OffsetAndEpoch | None:
        found = None
        for name in names:
            snapshot = read_name(name, PART_SUFFIX)
            if snapshot is None or snapshot in self._sizes or not self._disk.exists(progress_path(snapshot)):
                continue
            if found is None or found.age < snapshot.age:
                found = snapshot
        return found
