"""Mutants of storage that no scenario names: the remote tier, the log cleaner, and the files of logs and of a stop."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.core.clean_shutdown import write_mark
from reference_broker.log.producer_replay import MAX_OFFSET
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.ports.disk import DiskError
from reference_broker.remote_log.copier import ENDED, CopierActivity

SHUTDOWN = "reference_broker.core.clean_shutdown"


# --- the remote tier --------------------------------------------------------------------------------------------------


@mutant("reference_broker.remote_log.manager:RemoteLogManager.leads")
def copied_end_kept_at_takeover(original: Function, self: Any, partition: Any) -> None:
    """A new leader relies on the copied end that it found as a follower, although the former leader may have removed
    segments since, and deletes local records (P-11)."""
    replica = self._replicas.get((partition.topic_id, partition.index))
    was_led = replica is not None and replica.led is not None
    known = partition.log.copied_end_offset
    original(self, partition)
    if not was_led:
        partition.log.note_copied(max(known, partition.log.copied_end_offset))


@mutant("reference_broker.remote_log.copier:_whole_snapshot")
def snapshot_of_the_segments_begin_uploaded(original: Function, log: Any, offset: int) -> bytes | None:
    """A segment is uploaded with the producer snapshot at its first offset, and not with the one behind it (P-8,
    P-10)."""
    at = log.segments.index_of(offset)
    before: bytes | None = original(log, log.bases[at - 1]) if at > 0 else None
    return before or original(log, offset)


@mutant("reference_broker.remote_log.expiring.expirer:Expirer._start_log_at")
def remote_segments_deleted_before_log_start_is_durable(original: Function, self: Any, start: int) -> None:
    """Remote segments are deleted as soon as the log start has moved. A power loss brings the old log start back, and
    its records are nowhere (P-11)."""
    log = self._partition.log
    if start <= log.log_start_offset:
        self._next()
        return
    try:
        log.delete_records_before(start)
    except (DiskError, OffsetOutOfRange) as failure:
        self._end(str(failure))
        return
    self._partition.changed()
    self._next()


@mutant("reference_broker.remote_log.copier:Copier._advance")
def resigned_copy_keeps_its_slot(original: Function, self: Any, copy: Any) -> None:
    """A copy that ends because the leader epoch has changed does not give its slot back. After as many changes as there
    are slots, this node copies nothing any more (P-11)."""
    is_over = self._is_closed or self._partition.leader_epoch != copy.leader_epoch
    if copy.stage in ENDED or not is_over:
        original(self, copy)
        return
    self.copy = None
    self._activity = CopierActivity.IDLE
    self.copy_due_segments()


@mutant("reference_broker.remote_log.reading.segment_readings:aborted_in_segments")
def local_markers_not_looked_up(
    original: Function, segments: Any, first: Any, lineage: Any, offset: int, end_offset: int, local_start_offset: int
) -> Generator[Any, Any, Any]:
    """A read from the tier names no aborted transaction whose marker is in a local segment (X-5)."""
    found = yield from original(segments, first, lineage, offset, end_offset, local_start_offset)
    return found._replace(is_complete=True)


# --- the log cleaner --------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.cleaner.cleaning:Cleaning._make_durable")
def cleaned_for_unsynced_records(original: Function, self: Any) -> Generator[Any, None, None]:
    """The cleaner removes durable records for newer ones of their keys that are not synced. A power loss takes those,
    too (E-7)."""
    yield from ()


@mutant("reference_broker.log.cleaner.retention:LastBatches.must_stay")
def last_batch_of_producer_cleaned(original: Function, self: Any, header: Any) -> bool:
    """The cleaner removes the last batch of a producer as any other one. A log that is truncated to its cleaned part
    has forgotten the producer (P-4, P-6)."""
    return False


@mutant("reference_broker.log.cleaner.retention:Retention._keep_records")
def tombstones_go_at_second_cleaning(
    original: Function, self: Any, header: Any, batch: memoryview, horizon_ms: int | None, must_stay: bool
) -> Generator[None, None, Any]:
    """A tombstone goes in the pass after the first one that met it, whatever ``delete.retention.ms`` is. A slow reader
    misses the deletion (H-1)."""
    retention_ms, self.delete_retention_ms = self.delete_retention_ms, 0
    try:
        return (yield from original(self, header, batch, horizon_ms, must_stay))
    finally:
        self.delete_retention_ms = retention_ms


# --- the files of logs and of a stop ----------------------------------------------------------------------------------


@mutant("reference_broker.log.segments:Segments.durable_before")
def recovery_point_beyond_unsynced_segments(original: Function, self: Any) -> int:
    """A roll moves the recovery point to the active segment, although closed segments are not synced. After a power
    loss a start trusts them (E-7)."""
    base: int = self.bases[-1]
    return base


@mutant("reference_broker.log.producer_state:ProducerSnapshots.find")
def snapshot_beyond_the_end_loaded(
    original: Function, self: Any, names: Sequence[str], bases: Sequence[int], log_start_offset: int, end_offset: int
) -> None:
    """A start loads a producer snapshot that describes records which a power loss took, and takes their retries for
    written (P-4, P-6)."""
    original(self, names, bases, log_start_offset, MAX_OFFSET if bases else end_offset)


@mutant("reference_broker.log.checkpoints:OffsetCheckpoints.lower_synced")
def synced_offset_survives_truncation(original: Function, self: Any, offset: int) -> None:
    """A truncation does not lower the synced offset in its file. A start takes a log that ends before it for damaged
    (KIP-101)."""


@mutant(f"{SHUTDOWN}:sync_and_mark")
def clean_stop_marked_before_sync(
    original: Function,
    ports: Any,
    disk: Any,
    logs: Callable[[], Iterable[Any]],
    broker_epoch: int,
    done: Callable[[], None],
) -> None:
    """A stop is marked as clean although the logs are not synced. After a power loss the broker counts as one that has
    lost nothing (P-3, E-4)."""
    if any(log.is_offline for log in logs()):
        done()
        return
    for log in logs():
        log.close_cleanly()
    ports.sync((write_mark(disk, broker_epoch),), done)


@mutant(f"{SHUTDOWN}:remove_mark")
def mark_of_clean_stop_kept(original: Function, ports: Any, disk: Any, done: Callable[[], None]) -> None:
    """A start leaves the mark of the clean stop before it. If this process is killed, the next start trusts the logs as
    they are (P-4, T-5)."""
    done()
