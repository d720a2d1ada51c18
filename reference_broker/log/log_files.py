"""The files of one log: writing, rolling, deleting, syncing (Kafka's LocalLog).

``LogFiles`` writes batches, rolls segments, deletes old ones, and knows what a sync must cover. The offsets of the log
and its producers belong to ``UnifiedLog``, which passes their values.
"""

from collections.abc import Sequence
from contextlib import suppress

from reference_broker.log.appending import LogAppend
from reference_broker.log.checkpoints import EpochStart, write_partition_metadata
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.producer_replay import MAX_OFFSET
from reference_broker.log.producer_state import SNAPSHOT_SUFFIX, ProducerStateManager
from reference_broker.log.recovery import Recovered
from reference_broker.log.retention import TierableSegment, count_before
from reference_broker.log.segment import MAX_RELATIVE_OFFSET, Segment
from reference_broker.ports.disk import DiskError, UndoFailed
from reference_broker.ports.node_ports import Now
from reference_broker.records.batch import Buffer


class LogFiles:
    """The segments of one log with their indexes and snapshots of producers, its leader epochs, and its checkpoint
    files. After a change that fails (DiskError) the segments still describe the files."""

    __slots__ = (
        "_config",
        "_max_segment_ms",
        "_stamps_append_time",
        "checkpoints",
        "directory",
        "disk",
        "durability",
        "epochs",
        "is_log_start_unwritten",
        "segments",
    )

    _config: LogConfig

    def __init__(self, recovered: Recovered) -> None:
        self.segments = segments = recovered.segments
        self.disk = segments.disk
        self.directory = segments.directory
        self.durability = segments.durability
        self.epochs = recovered.epochs
        self.checkpoints = recovered.checkpoints
        self.is_log_start_unwritten = False
        """Whether the disk refused the checkpoint file of the log start in a truncation. The next append writes it.
        With the old file, a start would take records for lost, or new ones for deleted."""

    def configure(self, config: LogConfig) -> None:
        self._config = config
        self._max_segment_ms = config.max_segment_ms
        self._stamps_append_time = config.is_log_append_time

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(
        self,
        now: Now,
        append: LogAppend,
        log_end_offset: int,
        log_start_offset: int,
        topic_id: bytes,
        producers: ProducerStateManager,
    ) -> bool:
        """Make one disk append. If a new segment is due, it is started first. Return whether it was.

        A truncation is made durable first. Otherwise a power loss could bring back the end of one segment and keep new
        batches in the next one. Those batches would hide that the end diverges from the leader's log. Followers sync a
        truncation before they fetch on, so this rarely waits. A sync that fails ends the node: a second one would
        succeed without the bytes.
        """
        epochs, durability = self.epochs, self.durability
        if self.is_log_start_unwritten:
            self.write_log_start(log_start_offset)
        if durability.unsettled_cut:
            self._make_durable(durability.unsettled_cut)
            durability.unsettled_cut = ""
        is_new_epoch = append.leader_epoch > epochs.latest
        if is_new_epoch or not epochs.saved:
            epochs.assign(append.leader_epoch, append.offsets[0])
        try:
            return self._write_batches(now, append, log_end_offset, log_start_offset, topic_id, producers)
        except DiskError:
            if is_new_epoch:
                # KIP-101: it would be in force for the next batches, which another leader may send, of an older epoch.
                epochs.drop(append.offsets[0])
            raise

    def _write_batches(
        self,
        now: Now,
        append: LogAppend,
        log_end_offset: int,
        log_start_offset: int,
        topic_id: bytes,
        producers: ProducerStateManager,
    ) -> bool:
        segments = self.segments
        if not segments.items and topic_id:
            self.durability.note_changed(write_partition_metadata(self.disk, self.directory, topic_id))
        if append.last_offset - log_end_offset > MAX_RELATIVE_OFFSET:
            self._prepare_gap(now, log_end_offset)
            self.roll(now, append.offsets[0], log_start_offset, producers, append.buffers)
            return True
        if not segments.items:
            segments.create(log_end_offset, now.wall_ms, append.buffers)
            return False
        active = segments.items[-1]
        timestamp_ms = now.wall_ms if self._stamps_append_time else append.batches[0][1].max_timestamp_ms
        rolls = active.must_roll_for(
            append.size_bytes, append.last_offset, self._config.segment_bytes, self._config.segment_index_bytes
        ) or active.is_due(self._due_ms(active), now.wall_ms, timestamp_ms)
        if rolls:
            self.roll(now, log_end_offset, log_start_offset, producers)
        segments.append(append.buffers)
        return rolls

    def _prepare_gap(self, now: Now, log_end_offset: int) -> None:
        """Prepare a gap between two segments, since no segment can contain it. The records before it are made durable
        first. Otherwise a start would take the gap for records that a power loss took away."""
        if not self.segments.items:
            self.segments.create(log_end_offset, now.wall_ms)
        self._make_durable(self.segments.items[-1].path)

    def _make_durable(self, path: str) -> None:
        try:
            self.disk.make_durable(path)
        except DiskError as failure:
            raise UndoFailed(*failure.args) from failure

    # --- rolling ----------------------------------------------------------------------------------------------------

    def is_roll_due(self, now: Now) -> bool:
        """Return whether the active segment is older than ``segment.ms`` or ``max.compaction.lag.ms``."""
        active = self.segments.items[-1] if self.segments.items else None
        return active is not None and active.is_due(self._due_ms(active), now.wall_ms)

    def _due_ms(self, segment: Segment) -> int:
        jitter_ms = self._config.roll_jitter_ms(segment.path) if self._config.segment_jitter_ms else 0
        return self._max_segment_ms - jitter_ms

    def roll(
        self,
        now: Now,
        base_offset: int,
        log_start_offset: int,
        producers: ProducerStateManager,
        buffers: Sequence[Buffer] = (),
    ) -> None:
        """Write the indexes of the active segment and start one at ``base_offset``, which is the log end offset.
        Behind a wide gap it is a later one, and the new file begins with ``buffers``: a segment that begins beyond the
        log's end is never empty.

        A snapshot of the producers is written, too. That of many producers is written slice by slice by the next
        appends. If the disk fails, a start reads more batches.
        """
        segments, checkpoints = self.segments, self.checkpoints
        point = segments.durable_before()
        # Decision recovery-point
        if point > max(checkpoints.recovery_point, segments.bases[0]) and checkpoints.is_start_durable:
            self.durability.note_changed(checkpoints.raise_recovery_point(point))
        segments.write_indexes(segments[-1])
        segments.create(base_offset, now.wall_ms, buffers, min(producers.open_transactions.values(), default=-1))
        segments[-2].aborted.release()
        if segments.snapshots.is_due(segments.bases[-1], log_start_offset):  # Decision roll-snapshot
            with suppress(DiskError):
                segments.snapshots.begin(segments.bases[-1], producers)

    def snapshot_if_due(self, offset: int, log_start_offset: int, producers: ProducerStateManager) -> None:
        segments = self.segments
        if segments and segments.snapshots.is_due(offset, log_start_offset):
            segments.snapshots.write(offset, producers)

    # --- truncating -------------------------------------------------------------------------------------------------

    def lower_checkpoints(self, offset: int) -> int:
        """Write to the checkpoint files, before a truncation, that the records from ``offset`` on are not durable.
        Return the base offset of the first segment that it touches.

        A batch that contains the offset is removed as a whole, so its whole segment counts as touched. Only the synced
        offset is exact: it is often in the active segment, and most truncations leave it as it is.
        """
        segments, checkpoints = self.segments, self.checkpoints
        first_touched = segments.bases[segments.index_of(offset)]
        checkpoints.lower_recovery_point(first_touched)
        is_touched = checkpoints.synced > first_touched
        checkpoints.lower_synced(segments.end_before(offset) if is_touched else checkpoints.synced)
        return first_touched

    def begin_behind_remote(
        self, now: Now, offset: int, log_start_offset: int, epochs: Sequence[EpochStart], snapshot: bytes
    ) -> None:
        """Write the files of an emptied log that goes on at ``offset``, and wait for the disk."""
        segments = self.segments
        segments.snapshots.put(offset, snapshot)
        segment = segments.create(offset, now.wall_ms)
        self.durability.note_emptied(segment.path)
        self.epochs.put_before(MAX_OFFSET, epochs)
        self.epochs.truncate_from_start(log_start_offset)
        self.epochs.save()
        self.checkpoints.put_log_start(log_start_offset)
        for path in (self.epochs.checkpoint.path, segments.snapshots.path(offset), segment.path):
            self.disk.make_durable(path)
        self.checkpoints.local.finish(offset, epochs)

    # --- deleting the oldest segments -------------------------------------------------------------------------------

    def write_log_start(self, offset: int) -> None:
        """Write the log start offset to its checkpoint file. It is durable after the next sync."""
        self.durability.note_changed(self.checkpoints.prepare_log_start(offset))
        self.is_log_start_unwritten = False

    def write_local_start(self, offset: int) -> None:
        """Write the offset at which local records begin, with the leader epochs before it. It is durable after the next
        sync."""
        self.durability.note_changed(self.checkpoints.local.prepare(offset, self.epochs.before(offset)))

    def count_deletable(self, end_offset: int) -> int:
        """Return how many of the oldest segments end at or before ``end_offset`` and may be deleted although records
        before them remain in the remote tier: a whole and durable snapshot has the producer state behind them, which
        a start could not read from them any more."""
        segments = self.segments
        count = count_before(segments, end_offset)
        # Decision deletable-snapshot
        while count and not segments.snapshots.is_whole_and_durable(segments.bases[count]):
            count -= 1
        return count

    def retire(self, count: int) -> None:
        """Remove the oldest segments from the log. Their files are deleted once the log's new start is durable. If
        they were deleted before, a power loss could bring some of them back, with holes between them."""
        for _ in range(count):
            self.segments.retire_first()
        self._delete_retired()

    def _delete_retired(self) -> None:
        """If the disk fails, the files are deleted after the next sync, or at the next start."""
        with suppress(DiskError):
            self.segments.delete_retired(self.checkpoints.durable_start)

    @property
    def has_retired(self) -> bool:
        """Whether files wait for the next sync, to be deleted after it."""
        return bool(self.segments.retired)

    # --- copies -----------------------------------------------------------------------------------------------------

    def write_index_files(self, segment: TierableSegment) -> None:
        """Write the missing index files of a closed segment, even if they have no entries: its copy needs them. Raise
        DiskError."""
        segments = self.segments
        segments.write_indexes(segments[segments.index_of(segment.base_offset)])
        for path in (segment.offset_index_path, segment.time_index_path):
            if not self.disk.exists(path):
                self.disk.write(path, b"")
                self.durability.note_changed(path)

    # --- syncs ------------------------------------------------------------------------------------------------------

    @property
    def cuts(self) -> int:
        """A number that changes whenever the log loses records at its end."""
        return self.durability.last_cut

    @property
    def recovery_point(self) -> int:
        """The recovery point: segments that end at or before it need no full scan after a crash."""
        return self.checkpoints.recovery_point

    @property
    def durable_end(self) -> int:
        """The offset below which a start takes nothing for a torn end. It is read from files, which may lag behind the
        syncs."""
        return self.checkpoints.durable_end

    def awaits_sync(self) -> bool:
        """Return whether something waits for the next sync: files to be deleted after it, or a segment that a roll has
        closed, which is neither deleted locally nor behind the recovery point before it is durable (Kafka syncs after
        each roll)."""
        durability, items = self.durability, self.segments.items
        if not durability.dirty or not items:
            return self.has_retired
        is_closed_dirty = durability.synced_offset < items[-1].base_offset
        return self.has_retired or is_closed_dirty or any(path.endswith(SNAPSHOT_SUFFIX) for path in durability.dirty)

    def mark_synced(self, point: SyncPoint) -> None:
        """Note that all bytes appended before ``point`` was taken are durable."""
        self.checkpoints.settle(self.durability.note_synced(point))
        if self.segments.retired:
            self._delete_retired()

    def note_synced(self) -> None:
        """Write the synced offset to its checkpoint file. A start takes a bad batch below it for damage, not for a
        torn end. The file need not be synced itself: an older offset is as true.

        A log that was restarted at a later offset waits until its new start is durable. With the old start, the file
        would claim the records between them.
        """
        synced, checkpoints = self.durability.synced_offset, self.checkpoints
        if synced <= checkpoints.durable_end or self.durability.unsettled_cut or self.is_log_start_unwritten:
            return
        oldest = (*self.segments.retired[:1], *self.segments.items[:1])
        has_old_start = any(segment.base_offset <= checkpoints.durable_start for segment in oldest)
        if has_old_start or checkpoints.is_start_durable:
            checkpoints.note_synced(synced)

    @property
    def synced_note(self) -> str:
        """The file that ``note_synced`` writes."""
        return self.checkpoints.synced_path

    def close_cleanly(self, log_end_offset: int, log_start_offset: int, producers: ProducerStateManager) -> None:
        """Write the index files and a snapshot of the producers, so that a clean start need not scan. Everything is
        synced afterwards.

        Called again when all is synced, it moves the recovery point to the log's end, which needs one more sync. So
        even if the next start dies before it has read the log, no later start takes durable records for a torn end.
        """
        segments, checkpoints = self.segments, self.checkpoints
        if self.is_log_start_unwritten:
            self.write_log_start(log_start_offset)
        for segment in segments:
            segments.write_indexes(segment)
        segments.snapshots.finish()
        self.snapshot_if_due(log_end_offset, log_start_offset, producers)
        is_synced = not self.durability.dirty and self.durability.synced_offset == log_end_offset
        if segments and is_synced and log_end_offset > checkpoints.recovery_point:  # Decision clean-close
            self.durability.note_changed(checkpoints.raise_recovery_point(log_end_offset))
