"""Makes snapshots of what is published, on every node for itself: after so many bytes of records, or so much time.

Order: the whole file, its sync, its rename; only then may the log before it go (``cleaner``). A crash at any point
leaves a snapshot or none. When the disk is full the node goes on without and tries again later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.snapshots.metrics import SnapshotMetrics
from reference_broker.metadata.snapshots.writer import snapshot_id, write_snapshot
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Surroundings
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.snapshots.cleaner import SnapshotCleaner
from reference_broker.quorum.snapshots.file_names import made_path
from reference_broker.quorum.snapshots.store import SnapshotStore

RETRY_US = 10_000_000
"""After a failure, before the next attempt."""


class SnapshotGenerator:
    """At most one is being made at a time; always of the newest image of then. ``cleaner``: deletes old ones.

    ``_pending_bytes``: of records published since the image of the last snapshot. ``_last_us``: when that was begun, or
    loaded, or fetched. ``_making``: the one on its way.
    """

    __slots__ = (
        "_config",
        "_image",
        "_last_us",
        "_log",
        "_making",
        "_metrics",
        "_not_before_us",
        "_pending_bytes",
        "_store",
        "_surroundings",
        "_timer",
        "_timer_us",
        "cleaner",
    )

    def __init__(
        self, surroundings: Surroundings, config: BrokerConfig, store: SnapshotStore, log: MetadataLog, metrics: Metrics
    ) -> None:
        self._surroundings = surroundings
        self._config = config
        self._store = store
        self._log = log
        self._metrics = SnapshotMetrics(surroundings.ports, store, metrics)
        self.cleaner = SnapshotCleaner(surroundings, config, store, log)
        self._image: MetadataImage | None = None
        self._pending_bytes = 0
        self._last_us = surroundings.ports.now().mono_us
        self._not_before_us = 0
        self._making: OffsetAndEpoch | None = None
        self._timer: int | None = None
        self._timer_us = 0

    def published(self, image: MetadataImage, record_bytes: int) -> None:
        """``image`` ends where a batch ends and holds no part of a transaction; ``record_bytes``: of the batches that
        it has beyond the one before."""
        self._image = image
        self._pending_bytes += record_bytes
        if self._store.holds(snapshot_id(image)):
            self._pending_bytes = 0
            self._last_us = self._now_us()
            self._metrics.show_size()
            self.cleaner.check()
        else:
            self._make_if_due()

    def _now_us(self) -> int:
        return self._surroundings.ports.now().mono_us

    # When

    def _make_if_due(self) -> None:
        image = self._image
        if self._making is not None or image is None or not self._is_new(snapshot_id(image)):
            return
        due_us = self._due_us()
        if due_us is None:
            return
        if due_us <= self._now_us():
            self._start(image)
        else:
            self._wake_at(due_us)

    def _is_new(self, snapshot: OffsetAndEpoch) -> bool:
        latest = self._store.latest
        return latest is None or (snapshot.epoch, snapshot.offset) > (latest.epoch, latest.offset)

    def _due_us(self) -> int | None:
        """None: not before more is published."""
        config = self._config
        if self._pending_bytes >= config.metadata_log_max_record_bytes_between_snapshots:
            return self._not_before_us
        interval_ms = config.metadata_log_max_snapshot_interval_ms
        return max(self._last_us + interval_ms * 1000, self._not_before_us) if interval_ms > 0 else None

    def _wake_at(self, deadline_us: int) -> None:
        """One timer is enough, the earliest: it looks anew when it fires."""
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
        self._last_us = self._now_us()
        self._note("snapshot_started", snapshot)
        attempt = _Attempt(snapshot, self._last_us, made_of_bytes, write_snapshot(self._surroundings.disk, image))
        self._schedule(attempt)

    def _schedule(self, attempt: "_Attempt") -> None:
        """Each slice is an event of its own."""
        ports = self._surroundings.ports
        ports.set_timer(ports.now().mono_us, lambda: self._slice(attempt))

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
        """Unless one that is newer came from the leader meanwhile."""
        snapshot = attempt.id
        try:
            if not self._is_new(snapshot):
                self._surroundings.disk.delete(made_path(snapshot))
            else:
                self._store.add(snapshot, made_path(snapshot))
                self._note("snapshot_renamed", snapshot)
                self._metrics.generated(self._now_us() - attempt.started_us)
        except DiskError as error:
            self._failed(attempt, error)
            return
        self._making = None
        self.cleaner.check()
        self._make_if_due()

    def _failed(self, attempt: "_Attempt", error: DiskError) -> None:
        """Nothing of it stays, and what it would have held still waits for a snapshot."""
        self._note("snapshot_failed", attempt.id, ("why", str(error)))
        self._making = None
        self._pending_bytes += attempt.record_bytes
        self._not_before_us = self._now_us() + RETRY_US
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
    """One snapshot being made. ``record_bytes``: what made it due."""

    id: OffsetAndEpoch
    started_us: int
    record_bytes: int
    slices: Iterator[None]
