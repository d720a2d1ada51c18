"""The snapshots that this node holds, the one that it has downloaded in part, and the deletion of old ones.

A snapshot gets its name only when it is complete: it is written or fetched under another name, synced, and renamed. It
is held, so that others may rely on it, when that name is synced.

Data beyond ``metadata.max.retention.bytes`` or ``.ms`` may be deleted (S-15; KafkaMetadataLog.maybeClean). The newest
snapshot always stays. A superseded one stays for ``crucible.metadata.snapshot.keep.ms``, and for as long again after
each advance of a download of it. The log is cut before the snapshot is deleted, so that the log never starts where no
snapshot reaches.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.ports.node_ports import NodeContext
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.snapshots.format import (
    PART_SUFFIX,
    SUFFIX,
    SnapshotDamaged,
    is_stray,
    last_contained_timestamp_ms,
    part_path,
    progress_path,
    read_name,
    snapshot_path,
)
from reference_broker.quorum.values import OffsetAndEpoch

MAX_REPLICAS = 64
"""The number of replicas that are tracked for one snapshot. Beyond it, the one with the oldest request is dropped."""


@dataclass(slots=True, eq=False)
class SnapshotReaders:
    """Tracks which replicas download which snapshot. A superseded snapshot stays while one of them advances (S-15).

    It has, for each snapshot, the last position that each replica requested, and when one of them last advanced.
    """

    _positions: dict[OffsetAndEpoch, dict[int, int]] = field(default_factory=dict)
    _advanced_us: dict[OffsetAndEpoch, int] = field(default_factory=dict)

    def note_request(self, snapshot: OffsetAndEpoch, replica_id: int, position: int, now_us: int) -> None:
        """Note a request. The first request of a replica counts as an advance. A request for the same bytes again, or
        from the beginning again, does not."""
        positions = self._positions.setdefault(snapshot, {})
        before = positions.pop(replica_id, -1)
        positions[replica_id] = position
        if len(positions) > MAX_REPLICAS:
            del positions[next(iter(positions))]
        if position > before:  # Decision snapshot-download-advances
            self._advanced_us[snapshot] = now_us

    def advanced_us(self, snapshot: OffsetAndEpoch) -> int | None:
        """Return when a replica last advanced, or None if no replica requested the snapshot."""
        return self._advanced_us.get(snapshot)

    def forget(self, snapshot: OffsetAndEpoch) -> None:
        self._positions.pop(snapshot, None)
        self._advanced_us.pop(snapshot, None)


@dataclass(slots=True, eq=False)
class SnapshotStore:
    """The snapshots that this node holds, and the one that it has downloaded in part."""

    _disk: Disk
    _ids: list[OffsetAndEpoch] = field(default_factory=list)
    _sizes: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    _superseded_us: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    _timestamps_ms: dict[OffsetAndEpoch, int] = field(default_factory=dict)
    readers: SnapshotReaders = field(default_factory=SnapshotReaders)
    damaged: dict[OffsetAndEpoch, str] = field(default_factory=dict)
    """The snapshots whose bytes were found to be bad, and why. They are not served."""
    partial: OffsetAndEpoch | None = None
    """The download that can be resumed."""
    on_added: Callable[[], None] = lambda: None
    """Called when a snapshot was added."""

    def __post_init__(self) -> None:
        """Find the snapshots on disk, and delete leftovers except the newest download that can be resumed. Raise
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
        """When the last record that it contains was written. Raise SnapshotDamaged and DiskError."""
        timestamp_ms = self._timestamps_ms.get(snapshot)
        if timestamp_ms is None:
            timestamp_ms = self._timestamps_ms[snapshot] = last_contained_timestamp_ms(self._disk, self.path(snapshot))
        return timestamp_ms

    def superseded_us(self, snapshot: OffsetAndEpoch, now_us: int) -> int:
        """Return since when there is a newer snapshot: the time of the first call, which ``SnapshotCleaner`` makes
        after each new snapshot."""
        return self._superseded_us.setdefault(snapshot, now_us)

    def read(self, snapshot: OffsetAndEpoch, position: int, max_bytes: int) -> bytes:
        """Raise DiskError."""
        return self._disk.read(self.path(snapshot), position, max_bytes)

    def name(self, snapshot: OffsetAndEpoch, written: str) -> str:
        """Rename the file ``written``, which is complete and synced, to this snapshot's name. Returns its path, which
        must be synced before ``add``. Raise DiskError."""
        path = self.path(snapshot)
        self._disk.rename(written, path)
        return path

    def add(self, snapshot: OffsetAndEpoch) -> None:
        """Add a snapshot whose file and name are synced. Raise DiskError."""
        size = self._disk.size(self.path(snapshot))
        if snapshot not in self._sizes:
            insort(self._ids, snapshot, key=lambda each: each.age)
        self._sizes[snapshot] = size
        self.damaged.pop(snapshot, None)
        self.on_added()
        if self.partial is not None and self.partial.age <= snapshot.age:  # Decision partial-snapshot-outdated
            self.drop_partial()

    def delete(self, snapshot: OffsetAndEpoch) -> None:
        """Delete a snapshot; one that is not held is ignored. Raise DiskError."""
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
        """Delete the partial download. Raise DiskError."""
        if self.partial is not None:
            self._disk.delete(part_path(self.partial))
            self._disk.delete(progress_path(self.partial))
            self.partial = None

    def _scan(self) -> None:
        names = self._disk.list(METADATA_DIRECTORY)
        for name in names:
            snapshot = read_name(name, SUFFIX)
            # (0, 0) is the name of Kafka's bootstrap checkpoint, which is no snapshot of the log.
            if snapshot is not None and snapshot.offset > 0:
                insort(self._ids, snapshot, key=lambda each: each.age)
                self._sizes[snapshot] = self._disk.size(self.path(snapshot))
        self.partial = self._resumable(names)
        partial_files = () if self.partial is None else (part_path(self.partial), progress_path(self.partial))
        for name in names:
            path = f"{METADATA_DIRECTORY}/{name}"
            if is_stray(name) and path not in partial_files:
                self._disk.delete(path)

    def _resumable(self, names: Sequence[str]) -> OffsetAndEpoch | None:
        newest = None
        for name in names:
            snapshot = read_name(name, PART_SUFFIX)
            if snapshot is None or snapshot in self._sizes or not self._disk.exists(progress_path(snapshot)):
                continue
            if newest is None or newest.age < snapshot.age:
                newest = snapshot
        return newest


CHECK_US = 60_000_000
"""Kafka's interval between two checks (KafkaMetadataLog)."""
RETRY_US = 1_000_000


@dataclass(slots=True, eq=False)
class SnapshotCleaner:
    """Deletes old snapshots, and the log before the oldest that is kept. It checks after each new snapshot, when a
    snapshot becomes due, and every minute while anything may be deleted."""

    _node: NodeContext
    _config: BrokerConfig
    _store: SnapshotStore
    _log: MetadataLog
    _timer: int | None = None

    def __post_init__(self) -> None:
        """Delete the snapshots before the log's start. A crash leaves one there if it comes after the move of the
        start and before the deletion of the snapshot."""
        for snapshot in self._store.ids[:-1]:
            if snapshot.offset < self._log.start_offset:  # Decision snapshot-before-log-start
                self._delete(snapshot)
        self._set_timer()

    def check(self) -> None:
        """Delete everything that may be deleted now."""
        try:
            while self._step():
                pass
        except (DiskError, SnapshotDamaged) as error:
            self._node.ports.note("snapshot_cleaning_failed", ("why", str(error)))
        self._set_timer()

    # Choosing

    def _step(self) -> bool:
        """Make one deletion. Returns False if nothing may be deleted."""
        store = self._store
        oldest = store.oldest
        if oldest is None:
            return False
        # Decision metadata-log-deleted
        if self._is_over(oldest) and self._log.start_offset < oldest.offset and self._delete_log_before(oldest):
            return True
        for snapshot in store.ids[:-1]:
            # Decision snapshot-deletion-due
            if self._due_us(snapshot) <= self._node.now_us and self._is_over(snapshot) and self._remove(snapshot):
                return True
        return False

    def _is_over(self, snapshot: OffsetAndEpoch) -> bool:
        config, store = self._config, self._store
        most_bytes, most_ms = config.metadata_max_retention_bytes, config.metadata_max_retention_ms
        if 0 <= most_bytes < self._log.log.size_bytes + store.size_bytes:
            return True
        return 0 <= most_ms < self._node.ports.now().wall_ms - store.timestamp_ms(snapshot)

    def _due_us(self, snapshot: OffsetAndEpoch) -> int:
        """Return from when on the snapshot may be deleted. Only a download that advances moves that time."""
        since_us = self._store.superseded_us(snapshot, self._node.now_us)
        advanced_us = self._store.readers.advanced_us(snapshot)
        if advanced_us is not None:  # Decision snapshot-being-read
            since_us = max(since_us, advanced_us)
        return since_us + self._config.crucible_metadata_snapshot_keep_ms * 1000

    # Deleting

    def _remove(self, snapshot: OffsetAndEpoch) -> bool:
        """Delete a snapshot. Returns False if the log cannot start at the next snapshot yet, because this node does
        not know that the next one's records are committed."""
        ids = self._store.ids
        if snapshot == ids[0] and self._log.start_offset < ids[1].offset and not self._delete_log_before(ids[1]):
            return False
        self._delete(snapshot)
        return True

    def _delete(self, snapshot: OffsetAndEpoch) -> None:
        self._store.delete(snapshot)
        self._node.ports.note("snapshot_deleted", ("end_offset", snapshot.offset), ("epoch", snapshot.epoch))

    def _delete_log_before(self, snapshot: OffsetAndEpoch) -> bool:
        if not self._log.delete_before(snapshot):
            return False
        self._node.ports.note("log_deleted_before", ("offset", snapshot.offset))
        return True

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._node.ports.cancel_timer(self._timer)
            self._timer = None
        ids = self._store.ids
        if not ids or (len(ids) == 1 and self._log.start_offset >= ids[0].offset):
            return
        now_us = self._node.now_us
        soonest_us = min((self._due_us(snapshot) for snapshot in ids[:-1]), default=now_us)
        wait_us = soonest_us - now_us
        wait_us = CHECK_US if wait_us <= 0 else min(wait_us, CHECK_US)
        self._timer = self._node.after(max(wait_us, RETRY_US), self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.check()
