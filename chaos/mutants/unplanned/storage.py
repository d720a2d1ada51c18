"""Mutants of storage that no scenario names: the remote tier, the log cleaner, and the files of logs and of a stop."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.core.clean_shutdown import write_mark
from reference_broker.log.producer_replay import MAX_OFFSET
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.ports.disk import DiskError
from reference_broker.ports.store import Delete
from reference_broker.remote_log.copier import ENDED, Stage
from reference_broker.remote_log.objects import keys_of

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
        partition.log.copied_end_offset = max(known, partition.log.copied_end_offset)


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
    self._is_busy = False
    self.copy_due_segments()


@mutant("reference_broker.remote_log.reading.segment_readings:aborted_in_segments")
def local_markers_not_looked_up(
    original: Function, segments: Any, first: Any, lineage: Any, offset: int, end_offset: int, local_start_offset: int
) -> Generator[Any, Any, Any]:
    """A read from the tier names no aborted transaction whose marker is in a local segment (X-5)."""
    found = yield from original(segments, first, lineage, offset, end_offset, local_start_offset)
    return found._replace(is_complete=True)


@mutant("reference_broker.remote_log.expiring.expirer:SegmentRemoval.remove")
def objects_deleted_before_deletion_is_written(
    original: Function, self: Any, segment: Any, ended: Callable[[str], None]
) -> None:
    """The objects of a segment are deleted while its DELETE_SEGMENT_STARTED is being written, which may be refused
    (P-11)."""
    self.ports.store(Delete(keys_of(segment)), lambda _: None, lambda _: None)
    original(self, segment, ended)


@mutant("reference_broker.remote_log.objects:keys_of")
def last_object_of_segment_not_deleted(original: Function, segment: Any) -> tuple[str, ...]:
    """The deletion of a remote segment leaves its leader epochs in the store (P-11)."""
    keys: tuple[str, ...] = original(segment)
    return keys[:-1]


@mutant("reference_broker.log.retention:tierable")
def first_timestamp_in_remote_metadata(
    original: Function, segments: Any, end_offset: int, from_offset: int
) -> tuple[Any, ...]:
    """The metadata of a remote segment has the timestamp of its first batch as the largest one. Remote retention
    deletes it too early, and lookups by time skip it (P-11)."""
    return tuple(
        each._replace(max_timestamp_ms=segments[segments.index_of(each.base_offset)].first_timestamp_ms)
        for each in original(segments, end_offset, from_offset)
    )


@mutant("reference_broker.remote_log.copier:Copier._advance")
def first_object_stored_before_begin_is_committed(original: Function, self: Any, copy: Any) -> None:
    """The first object of a copy is stored while its COPY_SEGMENT_STARTED is being written. If that is lost, the object
    stays (P-11)."""
    if copy.stage is Stage.BEGINNING and not self._is_closed:
        self._context.ports.store(copy.prepared.objects[0], lambda _: None, lambda _: None)
    original(self, copy)


# --- the files beside a segment ---------------------------------------------------------------------------------------


@mutant("reference_broker.log.segment:Segment.add")
def largest_timestamp_of_first_batch(
    original: Function, self: Any, header: Any, base_offset: int, max_timestamp_ms: int, index_interval_bytes: int
) -> None:
    """A segment's largest timestamp stays that of its first batch. Retention deletes records that are not old enough
    (P-11)."""
    known = self.max_timestamp_ms, self.max_timestamp_offset, self.max_timestamp_position
    is_first = self.size_bytes == 0
    original(self, header, base_offset, max_timestamp_ms, index_interval_bytes)
    if not is_first:
        self.max_timestamp_ms, self.max_timestamp_offset, self.max_timestamp_position = known


@mutant("reference_broker.log.segment:Segment.write_indexes")
def closed_without_last_time_entry(original: Function, self: Any, disk: Any) -> tuple[str, ...]:
    """A segment is closed without the entry of its largest timestamp. A lookup by time in its copy misses records
    (P-11)."""
    written = [each.path for each in (self.offsets, self.times) if each.write(disk)]
    return (*written, *self.aborted.write(disk))


@mutant("reference_broker.log.indexes:OffsetIndex.add")
def index_entry_one_offset_late(original: Function, self: Any, base: int, last: int, position: int) -> None:
    """An entry of the offset index names the offset behind its batch (P-4)."""
    original(self, base, last + 1, position)


@mutant("reference_broker.log.segment:Segment.truncate")
def bytes_since_entry_kept_at_truncation(original: Function, self: Any, disk: Any, size: int, next_offset: int) -> None:
    """A truncation leaves the number of bytes since the last index entry at 0, so that entries are far apart
    (KIP-101)."""
    original(self, disk, size, next_offset)
    self.bytes_since_entry = 0


@mutant("reference_broker.log.leader_epochs:LeaderEpochs.note")
def epoch_begins_one_record_late(original: Function, self: Any, epoch: int, start_offset: int) -> bool:
    """A leader epoch that is not the first begins one record late in the log's cache (KIP-101)."""
    noted: bool = original(self, epoch, start_offset + 1 if self.epochs and epoch > self.epochs[-1] else start_offset)
    return noted


@mutant("reference_broker.log.producer_state:_row")
def marker_time_not_in_snapshot(original: Function, producer_id: int, producer: Any) -> bytes:
    """A producer snapshot has the time of a producer's last batch, and not that of its marker behind it (P-2, P-7)."""
    marks = producer.marks
    row: bytes = original(
        producer_id, producer._replace(last_timestamp_ms=marks[-1].timestamp_ms) if marks else producer
    )
    return row


@mutant("reference_broker.log.log_files:LogFiles.roll")
def roll_snapshot_without_newest_producer(
    original: Function,
    self: Any,
    now: Any,
    base_offset: int,
    log_start_offset: int,
    producers: Any,
    buffers: Sequence[Any] = (),
) -> None:
    """The snapshot of a roll lacks the producer that was seen first last, as if it were taken one batch early (P-2)."""
    newest = next(reversed(producers.by_id), None)
    known = producers.by_id
    if newest is not None:
        producers.by_id = {who: one for who, one in known.items() if who != newest}
    try:
        original(self, now, base_offset, log_start_offset, producers, buffers)
    finally:
        producers.by_id = known


# --- retention --------------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.retention:_is_too_old")
def age_of_first_record_counts(original: Function, segment: Any, retention_ms: int, wall_ms: int) -> bool:
    """Retention deletes a segment when its first record is too old, and not its newest one (P-11)."""
    return retention_ms >= 0 and wall_ms - segment.first_timestamp_ms > retention_ms


@mutant("reference_broker.log.retention:_is_too_old")
def age_of_segments_ignored(original: Function, segment: Any, retention_ms: int, wall_ms: int) -> bool:
    """Retention deletes no segment because of its age (P-11)."""
    return False


@mutant("reference_broker.log.retention:count_expired")
def one_segment_too_many_deleted(
    original: Function, segments: Any, config: Any, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """Retention by size deletes segments until the log is smaller than it may be (P-11)."""
    count: int = original(segments, config, log_start_offset, high_watermark, wall_ms)
    ends = (*segments.bases[1:], -1)
    return count + 1 if 0 < count < len(segments) - 1 and ends[count] <= high_watermark else count


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


@mutant("reference_broker.log.cleaner.cleaning:_end")
def min_compaction_lag_ignored(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner takes segments with records younger than ``min.compaction.lag.ms`` (X-11)."""
    end: int = log.bases[log.segments.index_of(min(log.last_stable_offset, log.bases[-1]))]
    return end


@mutant("reference_broker.log.cleaner.cleaning:Cleanable.is_due")
def dirty_ratio_ignored(original: Function, self: Any, min_dirty_ratio: float) -> bool:
    """The cleaner cleans a log as soon as anything in it is dirty (X-11)."""
    is_dirty: bool = self.dirty_bytes > 0
    return is_dirty


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
