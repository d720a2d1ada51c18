"""Makes snapshots of published images. Each node makes its own, after a number of bytes of records or a time.

It writes the whole file, syncs it and renames it. Only then may the log before it be deleted (``cleaner``). So a crash
at any point leaves a whole snapshot or none. If the disk is full, the node runs without the snapshot and tries again
later.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.snapshots.metrics import SnapshotMetrics
from reference_broker.metadata.snapshots.writer import snapshot_id, write_snapshot
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Surroundings
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.snapshots.format import made_path
from reference_broker.quorum.snapshots.store import SnapshotCleaner, SnapshotStore
from reference_broker.quorum.values import OffsetAndEpoch

RETRY_US = 10_000_000
"""The delay between a failure and the next attempt."""


@dataclass(slots=True, eq=False)
class SnapshotGenerator:
    """Makes at most one snapshot at a time, always of the newest image. ``cleaner`` deletes old snapshots.

    ``_pending_bytes`` is the size of the records published since the image of the last snapshot, and ``_last_us`` is
    when that snapshot was begun, loaded or fetched. ``_making`` is the one being made.
    """

    _surroundings: Surroundings
    _config: BrokerConfig
    _store: SnapshotStore
    _log: MetadataLog
    _metrics: SnapshotMetrics
    cleaner: SnapshotCleaner = field(init=False)
    _image: MetadataImage | None = None
    _pending_bytes: int = 0
    _last_us: int = field(init=False)
    _not_before_us: int = 0
    _making: OffsetAndEpoch | None = None
    _timer: int | None = None
    _timer_us: int = 0

    def __post_init__(self) -> None:
        self.cleaner = SnapshotCleaner(self._surroundings, self._config, self._store, self._log)
        self._last_us = self._surroundings.now_us

    def remake(self) -> None:
        """Makes a snapshot soon if the newest one was found to be damaged. The image in memory is whole."""
        self._make_if_due()

    def count_from(self, at_us: int) -> None:
        """The interval to the next snapshot begins at this time of the node's monotonic clock. A run calls it when its
        load begins, perhaps in another thread. A timer that fires earlier looks again at what is due."""
        self._last_us = at_us

    def published(self, image: MetadataImage, record_bytes: int) -> None:
        """Takes a new image, which ends where a batch ends and holds no part of an open transaction. ``record_bytes``
        is the size of the batches since the image before."""
        self._image = image
        self._pending_bytes += record_bytes
        if self._store.holds(snapshot_id(image)):
            self._pending_bytes = 0
            self._last_us = self._surroundings.now_us
            self.cleaner.check()
        else:
            self._make_if_due()

    # When

    def _make_if_due(self) -> None:
        image = self._image
        if self._making is not None or image is None or not self._is_new(snapshot_id(image)):
            return
        due_us = self._due_us()
        if due_us is None:
            return
        if due_us <= self._surroundings.now_us:
            self._start(image)
        else:
            self._wake_at(due_us)

    def _is_new(self, snapshot: OffsetAndEpoch) -> bool:
        latest = self._store.latest
        return latest is None or snapshot.age > latest.age or snapshot in self._store.damaged

    def _due_us(self) -> int | None:
        """When the next snapshot is due, or None if not before more is published."""
        config = self._config
        if self._store.latest in self._store.damaged:
            return self._not_before_us
        if self._pending_bytes >= config.metadata_log_max_record_bytes_between_snapshots:
            return self._not_before_us
        interval_ms = config.metadata_log_max_snapshot_interval_ms
        return max(self._last_us + interval_ms * 1000, self._not_before_us) if interval_ms > 0 else None

    def _wake_at(self, deadline_us: int) -> None:
        """Keeps only the earliest timer. When it fires, the generator checks again what is due."""
        ports = self._surroundings.ports
        if self._timer is not None:
            if self._timer_us <= deadline_us:
                return
            ports.cancel_timer(self._timer)
        self._timer_us = deadline_us
        self._timer = ports.set_timer(deadline_us, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._make_if_due()

    # Making

    def _start(self, image: MetadataImage) -> None:
        snapshot = snapshot_id(image)
        self._making = snapshot
        made_of_bytes, self._pending_bytes = self._pending_bytes, 0
        self._last_us = self._surroundings.now_us
        self._note("snapshot_started", snapshot)
        attempt = _Attempt(snapshot, self._last_us, made_of_bytes, write_snapshot(self._surroundings.disk, image))
        self._schedule(attempt)

    def _schedule(self, attempt: "_Attempt") -> None:
        """Runs the next slice in an event of its own."""
        self._surroundings.after(0, lambda: self._slice(attempt))

    def _slice(self, attempt: "_Attempt") -> None:
        try:
            next(attempt.slices)
        except StopIteration:
            self._written(attempt)
        except DiskError as error:
            self._failed(attempt, error)
        else:
            self._schedule(attempt)

    def _written(self, attempt: "_Attempt") -> None:
        path = made_path(attempt.id)
        size = self._surroundings.disk.size(path)
        self._note("snapshot_written", attempt.id, ("bytes", size))
        self._surroundings.ports.sync((path,), lambda: self._durable(attempt))

    def _durable(self, attempt: "_Attempt") -> None:
        """Renames the snapshot, unless a newer one has come from the leader meanwhile."""
        snapshot = attempt.id
        try:
            if self._is_new(snapshot):
                path = self._store.name(snapshot, made_path(snapshot))
                self._note("snapshot_renamed", snapshot)
                self._surroundings.ports.sync((path,), lambda: self._named(attempt))
            else:
                self._surroundings.disk.delete(made_path(snapshot))
                self._finished()
        except DiskError as error:
            self._failed(attempt, error)

    def _named(self, attempt: "_Attempt") -> None:
        """The snapshot's name is durable, so that the log before it may go."""
        try:
            if self._is_new(attempt.id):
                self._store.add(attempt.id)
                self._metrics.generated(self._surroundings.now_us - attempt.started_us)
            else:
                self._surroundings.disk.delete(self._store.path(attempt.id))
        except DiskError as error:
            self._failed(attempt, error)
            return
        self._finished()

    def _finished(self) -> None:
        self._making = None
        self.cleaner.check()
        self._make_if_due()

    def _failed(self, attempt: "_Attempt", error: DiskError) -> None:
        """Deletes the failed file. The records that it would have held still count towards the next snapshot."""
        self._note("snapshot_failed", attempt.id, ("why", str(error)))
        self._making = None
        self._pending_bytes += attempt.record_bytes
        self._not_before_us = self._surroundings.now_us + RETRY_US
        try:
            self._surroundings.disk.delete(made_path(attempt.id))
        except DiskError as left:
            # The next attempt at this snapshot, or the next start, deletes it.
            self._note("snapshot_failed", attempt.id, ("why", str(left)))
        self._wake_at(self._not_before_us)

    def _note(self, what: str, snapshot: OffsetAndEpoch, *more: tuple[str, int | str]) -> None:
        self._surroundings.ports.note(what, ("end_offset", snapshot.offset), ("epoch", snapshot.epoch), *more)


@dataclass(slots=True, eq=False)
class _Attempt:
    """One snapshot being made. ``record_bytes`` is the size of the records since the snapshot before."""

    id: OffsetAndEpoch
    started_us: int
    record_bytes: int
    slices: Iterator[None]
