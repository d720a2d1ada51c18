"""Deletes old snapshots and the log before the oldest that is kept (S-15; KafkaMetadataLog.maybeClean).

Data beyond ``metadata.max.retention.bytes`` or ``.ms`` may be deleted. The newest snapshot always stays. A superseded
one stays for ``crucible.metadata.snapshot.keep.ms``, and for as long again after each advance of a download of it. The
log is cut before the snapshot is deleted, so that the log never starts where no snapshot reaches.
"""

from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Surroundings
from reference_broker.quorum.metadata_log import MetadataLog
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.snapshots.format import SnapshotDamaged
from reference_broker.quorum.snapshots.store import SnapshotStore

CHECK_US = 60_000_000
"""Kafka's interval between two checks (KafkaMetadataLog)."""
RETRY_US = 1_000_000


@dataclass(slots=True, eq=False)
class SnapshotCleaner:
    """Checks after each new snapshot, when a snapshot becomes due, and every minute while anything may be deleted."""

    _surroundings: Surroundings
    _config: BrokerConfig
    _store: SnapshotStore
    _log: MetadataLog
    _timer: int | None = None

    def __post_init__(self) -> None:
        """Deletes the snapshots before the log's start. A crash leaves one there if it comes after the move of the
        start and before the deletion of the snapshot."""
        for snapshot in self._store.ids[:-1]:
            if snapshot.offset < self._log.start_offset:
                self._delete(snapshot)
        self._look_again()

    def check(self) -> None:
        """Deletes everything that may be deleted now."""
        try:
            while self._step():
                pass
        except (DiskError, SnapshotDamaged) as error:
            self._surroundings.ports.note("snapshot_cleaning_failed", ("why", str(error)))
        self._look_again()

    # What may go

    def _step(self) -> bool:
        """Makes one deletion. Returns False if nothing may be deleted."""
        store = self._store
        oldest = store.oldest
        if oldest is None:
            return False
        if self._is_over(oldest) and self._log.start_offset < oldest.offset and self._delete_log_before(oldest):
            return True
        for snapshot in store.ids[:-1]:
            if (
                self._due_us(snapshot) <= self._surroundings.now_us
                and self._is_over(snapshot)
                and self._remove(snapshot)
            ):
                return True
        return False

    def _is_over(self, snapshot: OffsetAndEpoch) -> bool:
        config, store = self._config, self._store
        most_bytes, most_ms = config.metadata_max_retention_bytes, config.metadata_max_retention_ms
        if 0 <= most_bytes < self._log.log.size_bytes + store.size_bytes:
            return True
        return 0 <= most_ms < self._surroundings.ports.now().wall_ms - store.timestamp_ms(snapshot)

    def _due_us(self, snapshot: OffsetAndEpoch) -> int:
        """The time from which on the snapshot may be deleted. Only a download that advances moves that time."""
        since_us = self._store.superseded_us(snapshot, self._surroundings.now_us)
        advanced_us = self._store.readers.advanced_us(snapshot)
        if advanced_us is not None:
            since_us = max(since_us, advanced_us)
        return since_us + self._config.crucible_metadata_snapshot_keep_ms * 1000

    # Deleting

    def _remove(self, snapshot: OffsetAndEpoch) -> bool:
        """Deletes a snapshot. Returns False if the log cannot start at the next snapshot yet, because this node does
        not know that the next one's records are committed."""
        ids = self._store.ids
        if snapshot == ids[0] and self._log.start_offset < ids[1].offset and not self._delete_log_before(ids[1]):
            return False
        self._delete(snapshot)
        return True

    def _delete(self, snapshot: OffsetAndEpoch) -> None:
        self._store.delete(snapshot)
        self._surroundings.ports.note("snapshot_deleted", ("end_offset", snapshot.offset), ("epoch", snapshot.epoch))

    def _delete_log_before(self, snapshot: OffsetAndEpoch) -> bool:
        if not self._log.delete_before(snapshot):
            return False
        self._surroundings.ports.note("log_deleted_before", ("offset", snapshot.offset))
        return True

    def _look_again(self) -> None:
        if self._timer is not None:
            self._surroundings.ports.cancel_timer(self._timer)
            self._timer = None
        ids = self._store.ids
        if not ids or (len(ids) == 1 and self._log.start_offset >= ids[0].offset):
            return
        now_us = self._surroundings.now_us
        soonest_us = min((self._due_us(snapshot) for snapshot in ids[:-1]), default=now_us)
        wait_us = soonest_us - now_us
        wait_us = CHECK_US if wait_us <= 0 else min(wait_us, CHECK_US)
        self._timer = self._surroundings.after(max(wait_us, RETRY_US), self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.check()
