"""Retention and other periodic work over all partitions: a few of them in each event, so that requests are served in
between."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reference_broker.apis.broker import Broker
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import later
from reference_broker.ports.slicing import HOUSEKEPT_PARTITIONS_PER_SLICE, Sliced, run_slices
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import nobody_waits, sync_led_then, sync_then


@dataclass(slots=True)
class Housekeeping:
    """The periodic work of a broker. Each piece repeats after its interval."""

    broker: Broker
    other_logs: Callable[[], Iterable[UnifiedLog]]
    """Returns the logs of replicas that are not led here. The leader's log start deletes their records."""

    def start(self) -> None:
        """Start retention, age-based rolls, the forgetting of idle producers and the notes of what is synced, each
        at its interval."""
        config = self.broker.config
        self._every(config.log_retention_check_interval_ms, self._retention)
        self._every(config.producer_id_expiration_check_interval_ms, self._forget_producers)
        self._every(config.log_flush_offset_checkpoint_interval_ms, self._checkpoint_synced)

    def _every(self, interval_ms: int, work: Callable[[], Sliced[None]]) -> None:
        def again() -> None:
            run_slices(self.broker.ports, work(), lambda: self._every(interval_ms, work))

        later(self.broker.ports, interval_ms * 1000, again)

    def _retention(self) -> Sliced[None]:
        broker = self.broker
        for number, partition in enumerate(list(broker.partitions.by_name.values()), 1):
            if not partition.is_removed:
                self._retain(partition)
            if number % HOUSEKEPT_PARTITIONS_PER_SLICE == 0:
                yield
        for number, log in enumerate(list(self.other_logs()), 1):
            if log.config.is_remote_copy_enabled:
                self._shorten(log)
            if log.files.awaits_sync():
                sync_then(broker.ports, [log], nobody_waits)
            if number % HOUSEKEPT_PARTITIONS_PER_SLICE == 0:
                yield

    def _retain(self, partition: Partition) -> None:
        """Apply retention to a partition. If the disk fails here (because it is full, say), the next round retries."""
        log, now = partition.log, self.broker.now
        start = log.local_log_start_offset
        for work in (log.enforce_retention, log.roll_if_due):
            try:
                work(now)
            except DiskError as failure:
                where = ("partition", f"{partition.topic}-{partition.index}")
                self.broker.ports.note("retention_failed", where, ("reason", str(failure)))
        if log.files.awaits_sync():  # Files go when the new log start is durable, or what is in the tier instead.
            sync_led_then(self.broker.ports, [partition], nobody_waits)
        if log.local_log_start_offset != start:
            partition.changed()

    def _shorten(self, log: UnifiedLog) -> None:
        """Delete what is in the remote tier from a follower's log. The log start offset comes from its leader."""
        try:
            log.enforce_retention(self.broker.now)
        except DiskError as failure:
            self.broker.ports.note("retention_failed", ("partition", log.directory), ("reason", str(failure)))

    def _forget_producers(self) -> Sliced[None]:
        logs = [partition.log for partition in self.broker.partitions.by_name.values()]
        logs.extend(self.other_logs())
        for number, log in enumerate(logs, 1):
            log.expire_producers(self.broker.now)
            if number % HOUSEKEPT_PARTITIONS_PER_SLICE == 0:
                yield

    def _checkpoint_synced(self) -> Sliced[None]:
        """Checkpoint what is synced. Each slice lists the logs again: the directory of a deleted one may belong to
        another topic. If logs were deleted meanwhile, others are skipped until the next round. The metadata log notes
        each sync by itself, so here its note only becomes durable."""
        broker = self.broker
        paths = [broker.quorum_node.log.log.files.synced_note]
        done = 0
        while due := self._logs()[done : done + HOUSEKEPT_PARTITIONS_PER_SLICE]:
            for log in due:
                synced_end = log.files.durable_end
                log.files.note_synced()
                if log.files.durable_end != synced_end:
                    paths.append(log.files.synced_note)
            done += len(due)
            yield
        broker.ports.sync(tuple(paths), nobody_waits)

    def _logs(self) -> list[UnifiedLog]:
        led = [partition.log for partition in self.broker.partitions.by_name.values() if not partition.is_removed]
        return [*led, *self.other_logs()]
