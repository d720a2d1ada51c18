"""What takes records away from a log, or moves where it begins: truncation, deletion, retention, the cleaner's swaps.

A change that fails (DiskError) leaves the log as it was, unless a method says otherwise.
"""

from collections.abc import Generator, Sequence
from contextlib import suppress

from reference_broker.log import removal
from reference_broker.log.config import LogConfig
from reference_broker.log.local_start import EpochStart
from reference_broker.log.log_view import LogView
from reference_broker.log.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from reference_broker.log.producer_state import ProducerStates
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.log.recreating import Recreated
from reference_broker.log.replay import MAX_OFFSET, replayed, run_to_end
from reference_broker.log.segment import Segment
from reference_broker.log.tierable import TierableSegment
from reference_broker.ports.disk import Buffer, DiskError, UndoFailed
from reference_broker.ports.now import Now


class ShrinkingLog(LogView):
    """A log that can lose records at its end and at its start. ``PartitionLog`` extends it by appends."""

    __slots__ = ("_config",)

    _config: LogConfig

    def roll(self, now: Now, base_offset: int | None = None, buffers: Sequence[Buffer] = ()) -> None:
        """Writes the indexes of the active segment and starts an empty one. The name of its file keeps the log end
        offset. Behind a wide gap it keeps a ``base_offset``, and its file begins with ``buffers``: a segment that
        begins beyond the log's end is never empty.

        A snapshot of the producers goes with it. The appends that follow write that of many producers, slice by slice.
        If the disk refuses that, a start reads more batches.
        """
        segments = self.segments
        point = segments.durable_before()
        if point > max(self._checkpoints.recovery_point, segments.bases[0]) and self._checkpoints.is_start_durable:
            self.durability.changed(self._checkpoints.raise_recovery_point(point))
        segments.write_indexes(segments[-1])
        base = self.log_end_offset if base_offset is None else base_offset
        segments.create(base, now.wall_ms, buffers, min(self.producers.open_transactions.values(), default=-1))
        segments[-2].aborted.release()
        if segments.snapshots.is_due(segments.bases[-1], self.log_start_offset):
            with suppress(DiskError):
                segments.snapshots.begin(segments.bases[-1], self.producers)

    def _snapshot_if_due(self, offset: int) -> None:
        segments = self.segments
        if segments and segments.snapshots.is_due(offset, self.log_start_offset):
            segments.snapshots.write(offset, self.producers)

    # --- the end, and the start -------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Removes every batch that reaches ``offset`` or beyond. After an unclean election these may lie below the high
        watermark, which then moves down too. Returns the new log end offset. It is lower than ``offset`` if ``offset``
        lies inside a batch.

        If the disk fails half-way, the log ends where it was cut so far, and its state in memory agrees with that.
        """
        segments, known = self.segments, self.producers
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if not segments or offset < segments.bases[0]:
            if self.local_log_start_offset > self.log_start_offset:  # Its leader says where it begins in the tier.
                offset = min(offset, self.log_start_offset)
            self._start_anew(offset, segments[0].created_ms if segments else 0)
            return offset
        end = segments.end_before(offset)
        self.producers = run_to_end(replayed(segments, known, offset)) if known.by_id else known.emptied()
        self.producers.keep_completed(known, end)
        try:
            segments.snapshots.delete_beyond(end)
            self._forget_durability_from(offset)
            segments.cut_from(offset)
        except DiskError:
            if segments[-1].next_offset > offset:
                self.producers = known  # They may know of batches that are gone. The cut is tried again.
            raise
        finally:
            self.log_end_offset = segments[-1].next_offset
            self.high_watermark = min(self.high_watermark, self.log_end_offset)
            self.copied_end_offset = min(self.copied_end_offset, self.log_end_offset)
            self.epochs.drop(self.log_end_offset)
        if self.log_start_offset > self.log_end_offset:
            self._move_log_start(self.log_end_offset)
        self.local_log_start_offset = min(self.local_log_start_offset, self.log_end_offset)
        self.epochs.save()
        return self.log_end_offset

    def _forget_durability_from(self, offset: int) -> None:
        """Writes to the checkpoint files, before a cut, that the records from ``offset`` on are neither durable nor
        clean.

        A batch that holds the offset is removed as a whole, so its whole segment counts as touched. Only the note of
        what was synced is exact: it often lies in the active segment, and most cuts leave it as it is.
        """
        first_touched = self.bases[self.segments.index_of(offset)]
        self._checkpoints.lower_recovery_point(first_touched)
        if self._checkpoints.synced > first_touched:
            self._checkpoints.lower_synced(self.segments.end_before(offset))
        if first_touched < self.cleaned_offset:
            self.note_cleaned(first_touched)

    def truncate_fully_and_start_at(self, offset: int, now: Now) -> None:
        """Empties the log. The next record gets ``offset``. A replica that starts from a snapshot needs that."""
        self._start_anew(offset, now.wall_ms)

    def _start_anew(self, offset: int, created_ms: int) -> None:
        local = self._checkpoints.local
        if not local.is_there:
            self._start_again(offset, created_ms)
            return
        try:
            local.begin()
            self._start_again(offset, created_ms)
            local.forget()
        except DiskError as failure:
            raise UndoFailed(*failure.args) from failure

    def _start_again(self, offset: int, created_ms: int) -> None:
        self._empty()
        self.epochs.clear()
        self.producers.clear()
        self.durability.emptied(self.segments.create(offset, created_ms).path)
        self._begin_at(offset)
        self._move_log_start(offset)

    def start_from_remote(
        self,
        now: Now,
        offset: int,
        log_start_offset: int,
        epochs: Sequence[EpochStart],
        snapshot: bytes,
        producers: ProducerStates,
    ) -> None:
        """Empties the log, which goes on at ``offset``: the records from ``log_start_offset`` up to there are in the
        remote tier (P-11). ``epochs`` are the leader epochs that began before ``offset``. ``snapshot`` is Kafka's
        file of the producers at ``offset``, with open transactions, and ``producers`` is what it tells.

        Waits for the disk. A start finds the log whole or empty, never a part of it. If the disk fails half-way, only a
        restart can mend the log (UndoFailed).
        """
        assert log_start_offset <= offset, f"a log that starts at {log_start_offset} cannot go on at {offset}"
        local = self._checkpoints.local
        known = [(epoch, start) for epoch, start in epochs if start < offset]
        try:
            local.begin()
            self._empty()
            self.segments.snapshots.put(offset, snapshot)
            segment = self.segments.create(offset, now.wall_ms)
            self.durability.emptied(segment.path)
            self.epochs.put_before(MAX_OFFSET, known)
            self.epochs.truncate_from_start(log_start_offset)
            self.epochs.save()
            self._checkpoints.put_log_start(log_start_offset)
            for path in (self.epochs.checkpoint.path, self.segments.snapshots.path(offset), segment.path):
                self.disk.make_durable(path)
            local.finish(offset, known)
        except DiskError as failure:
            raise UndoFailed(*failure.args) from failure
        self.producers = self.producers.emptied()
        self.producers.by_id, self.producers.open_transactions = producers.by_id, producers.open_transactions
        self._begin_at(offset)
        self.log_start_offset = log_start_offset

    def _begin_at(self, offset: int) -> None:
        self.local_log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.durability.synced_offset = offset
        self.copied_end_offset = 0

    def _empty(self) -> None:
        self._checkpoints.lower_recovery_point(0)
        self._checkpoints.lower_synced(0)
        if self.cleaned_offset > 0:
            self.note_cleaned(0)
        self.segments.snapshots.delete_beyond(-1)
        try:
            self.segments.drop_all()
        finally:
            if self.segments:
                self.local_log_start_offset = max(self.local_log_start_offset, self.bases[0])
                if not self._checkpoints.local.is_there:
                    self.log_start_offset = self.local_log_start_offset

    def delete_records_before(self, offset: int) -> int:
        """Moves the log start offset to ``offset``, writes it to its checkpoint file, and deletes the segments that lie
        wholly before it. Returns the log start offset. Raises OffsetOutOfRange beyond the high watermark."""
        if offset > self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        if offset > self.log_start_offset:
            self._move_log_start(offset)
            self._forget_before(offset)
            self._drop_oldest(removal.count_before(self.segments, offset))
        return self.log_start_offset

    def enforce_retention(self, now: Now) -> int:
        """Deletes old segments by ``retention.ms`` and ``retention.bytes``, and returns how many. Records at or above
        the high watermark stay. The active segment is rolled first if it is to go with all others."""
        count = removal.count_expired(
            self.segments, self._config, self.log_start_offset, self.high_watermark, now.wall_ms
        )
        if 0 < count == len(self.segments):
            self.roll(now)
        if not self._config.is_copied:
            self._drop_oldest(count)
            return count
        unreachable = removal.count_before(self.segments, self.log_start_offset)
        self._drop_oldest(unreachable)
        return unreachable + self.delete_local(self.bases[count - unreachable]) if count > unreachable else unreachable

    def delete_local(self, end_offset: int) -> int:
        """Deletes the segments that lie wholly below ``end_offset``, and returns how many. Their records are in the
        remote tier, where the log still begins.

        A segment stays if its copy is not listed, if it is not durable here, or if no whole and durable snapshot of the
        producers tells what it told of them: a start could not read that any more.
        """
        segments = self.segments
        safe = min(end_offset, self.copied_end_offset, self.high_watermark, self.synced_offset)
        count = removal.count_before(segments, safe)
        while count and not segments.snapshots.is_whole_and_durable(segments.bases[count]):
            count -= 1
        if count == 0:
            return 0
        first = segments.bases[count]
        self.durability.changed(self._checkpoints.local.prepare(first, self.epochs.before(first)))
        self.local_log_start_offset = first
        self._retire(count)
        return count

    def _drop_oldest(self, count: int) -> None:
        """The files go when the new log start is durable. If they went before, a power loss could bring some of them
        back, with holes between them."""
        if count == 0:
            return
        first = max(self.log_start_offset, self.bases[count])
        if first > self.log_start_offset:
            self._move_log_start(first)
            self._forget_before(first)
        self._retire(count)

    def _retire(self, count: int) -> None:
        for _ in range(count):
            self.segments.retire_first()
        self._delete_retired()

    @property
    def has_retired(self) -> bool:
        """Whether files wait for the next sync, to be deleted after it."""
        return bool(self.segments.retired)

    def awaits_sync(self) -> bool:
        """Whether something waits for the next sync: files to be deleted after it, or what a roll has closed, which is
        neither deleted locally nor behind the recovery point before it is durable (Kafka syncs after each roll)."""
        durability, items = self.durability, self.segments.items
        if not durability.dirty or not items:
            return self.has_retired
        is_closed_dirty = durability.synced_offset < items[-1].base_offset
        return self.has_retired or is_closed_dirty or any(path.endswith(SNAPSHOT_SUFFIX) for path in durability.dirty)

    def _delete_retired(self) -> None:
        """If the disk fails, the files are deleted after the next sync, or at the next start."""
        with suppress(DiskError):
            self.segments.delete_retired(self._checkpoints.durable_start)

    def _move_log_start(self, offset: int) -> None:
        self.durability.changed(self._checkpoints.prepare_log_start(offset))
        self.log_start_offset = offset
        self.local_log_start_offset = max(self.local_log_start_offset, offset)

    def _forget_before(self, offset: int) -> None:
        self.epochs.truncate_from_start(offset)

    # --- copies -----------------------------------------------------------------------------------------------------

    def recreate_snapshot(self, now: Now, offset: int) -> Generator[None, None, Recreated]:
        """Makes the snapshot of producers at ``offset``, and keeps it as this log's (P-8, P-13). In slices. Raises
        Overtaken and DiskError."""
        made = yield from self.recreated(now, offset)
        self.segments.snapshots.put(offset, made.snapshot)
        return made

    def write_index_files(self, segment: TierableSegment) -> None:
        """Writes the index files of a closed segment that are not there, even if they have no entries: a copy has
        them, too. Raises DiskError."""
        segments = self.segments
        segments.write_indexes(segments[segments.index_of(segment.base_offset)])
        for path in (segment.offset_index_path, segment.time_index_path):
            if not self.disk.exists(path):
                self.disk.write(path, b"")
                self.durability.changed(path)

    # --- cleaning ---------------------------------------------------------------------------------------------------

    @property
    def cuts(self) -> int:
        """A number that changes whenever the log loses records at its end."""
        return self.durability.last_cut

    def swap(self, sources: Sequence[Segment], cleaned: Segment) -> None:
        """Replaces ``sources``, which are neighbours in this log, by ``cleaned``, whose file is synced.

        After a DiskError only a restart can mend the log, so the node must end.
        """
        self.segments.swap(sources, cleaned)

    def note_cleaned(self, offset: int) -> None:
        """Notes that the log is clean up to ``offset``. A pass of the cleaner got so far, or records from ``offset`` on
        are about to be removed."""
        self._checkpoints.write_cleaned(offset)
        self.cleaned_offset = offset
