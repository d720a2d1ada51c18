"""One partition's log as its users see it: records are appended, read, truncated and deleted by their offsets.

The log owns its state, and nobody else changes it. The functions that work on parts of it live in other files. They get
values and return values (see README.md). A change that fails (DiskError) leaves the log as it was, unless a method says
otherwise.
"""

from collections.abc import Generator

from reference_broker.log.appending import (
    Appended,
    Origin,
    RecordsRefused,
    Run,
    UnexpectedOffset,
    judged,
    later_epoch,
    looked_into,
    marks_of_retry,
    next_run,
    numbered,
    undamaged,
    with_codec_at_once,
)
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.lookup import FoundOffset
from reference_broker.log.partition_metadata import write_partition_metadata
from reference_broker.log.producer_snapshots import encoded
from reference_broker.log.quarantine import FILE_NAME as QUARANTINE_FILE
from reference_broker.log.quarantine import LogDamaged, set_aside
from reference_broker.log.reading import MovedToRemote, OffsetOutOfRange
from reference_broker.log.recovery import Recovered, Recovery
from reference_broker.log.segment import MAX_RELATIVE_OFFSET, Segment
from reference_broker.log.shrinking_log import ShrinkingLog
from reference_broker.log.verification import Guard, Verification
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.now import Now
from reference_broker.records.batch import Buffer, validate
from reference_broker.records.repacking import CODECS
from reference_broker.records.rules import Rules

__all__ = [
    "Appended",
    "FoundOffset",
    "MovedToRemote",
    "OffsetOutOfRange",
    "Origin",
    "PartitionLog",
    "RecordsRefused",
    "UnexpectedOffset",
    "open_log",
    "open_undamaged_log",
    "run_to_end",
]


MAX_LEADER_EPOCH = 2**31 - 1


class PartitionLog(ShrinkingLog):
    """A log that is appended to. ``ShrinkingLog`` has the methods that take records away, and ``LogView`` the state and
    the methods that read it. ``open_log`` opens one."""

    __slots__ = ("_max_segment_ms", "_rules", "_stamps_append_time", "looks_into_records", "verification")

    def __init__(self, config: LogConfig, recovered: Recovered) -> None:
        super().__init__(recovered)
        self.verification = Verification()
        self.config = config

    @classmethod
    def of(cls, config: LogConfig, recovered: Recovered, now: Now) -> "PartitionLog":
        """Builds the log from what was recovered, and repairs on the disk what a crash left behind. Raises
        DiskError."""
        log = cls(config, recovered)
        begin = recovered.local_start_offset
        if begin > log.log_end_offset and begin > recovered.log_start_offset:
            none, known = log.producers.emptied(), log.epochs.before(begin)
            log.start_from_remote(now, begin, recovered.log_start_offset, known, encoded(none), none)
        elif begin > log.log_end_offset:
            log.truncate_fully_and_start_at(begin, now)
        log._snapshot_if_due(log.log_end_offset)
        log.epochs.drop(log.log_end_offset)
        log.epochs.truncate_from_start(log.log_start_offset)
        log.epochs.save()
        log.producers.expire(now.wall_ms)
        return log

    @property
    def config(self) -> LogConfig:
        """The settings of the log. New settings are in force from the next append on."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._max_segment_ms = config.max_segment_ms
        self._stamps_append_time = config.is_log_append_time
        codec = CODECS.get(config.compression_type)
        self.looks_into_records = config.is_compacted or codec is not None
        """Clients' records are decompressed before they are appended."""
        self._rules = Rules(
            max_message_bytes=config.max_message_bytes,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            create_time=not config.is_log_append_time,
            keys_needed=config.is_compacted,
            codec=codec,
            level=config.compression_level,
        )
        self.producers.configure(config)
        self.verification.is_demanded = config.transaction_verification_enable

    # --- append -----------------------------------------------------------------------------------------------------

    def look_into(self, now: Now, records: Buffer) -> Generator[None, None, bytes | memoryview]:
        """Judges a client's batches with all their records, in slices. Returns them as they are to be appended, with
        the topic's codec. Raises RecordsRefused."""
        return looked_into(memoryview(records), self._rules, self._config, now.wall_ms)

    def append(
        self,
        now: Now,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: Origin = Origin.CLIENT,
        is_looked_into: bool = False,
        guard: Guard | None = None,
    ) -> Appended:
        """As the leader: judges, numbers and writes one or more batches, all or nothing. ``is_looked_into`` says that
        ``look_into`` has judged their records. ``guard`` is that of the first batch of a transaction here, whose
        coordinator knows the partition (``Verification.begin``).

        Raises RecordsRefused and DiskError. In both cases nothing is written.
        """
        view = memoryview(records)
        batches = judged(view, self._rules, self._config, now.wall_ms, origin, is_looked_into)
        if origin is Origin.CLIENT:
            if now.wall_ms - self.producers.swept_ms >= self._config.producer_id_expiration_check_interval_ms:
                self.expire_producers(now)
            has_producer = len(batches) > 1 or batches[0][1].producer_id >= 0
            marks = marks_of_retry(self.producers, batches, self.verification, guard) if has_producer else None
            if marks is not None:
                time_ms = marks[-1].timestamp_ms if self._stamps_append_time else -1
                first, last = marks[0].first_offset, marks[-1].last_offset
                return Appended(first, last, time_ms, self.log_start_offset, duplicate=True)
            if self.looks_into_records and self._rules.codec is not None:
                view = with_codec_at_once(view, batches, self._rules, self._config)
                batches = validate(view)
        first_offset, time_ms = self.log_end_offset, now.wall_ms if self._stamps_append_time else -1
        run = numbered(view, batches, first_offset, leader_epoch, time_ms)
        rolled = self._write(now, run)
        return Appended(first_offset, run.last_offset, time_ms, self.log_start_offset, rolled=rolled)

    def append_replicated(self, now: Now, records: Buffer, leader_epoch: int = MAX_LEADER_EPOCH) -> int:
        """Appends as a follower: writes a leader's batches at their own offsets and epochs. Returns the new log end
        offset. ``leader_epoch`` is that of the leader, and no batch can be of a later one (KAFKA-18723).

        Raises RecordsRefused (damaged batches, or a later epoch), UnexpectedOffset (a batch below the log end offset)
        and DiskError. The batches before the one that fails stay.
        """
        view = memoryview(records)
        batches = undamaged(view)
        while batches:
            active_bytes = self.segments.items[-1].size_bytes if self.segments.items else 0
            run = next_run(view, batches, self.log_end_offset, active_bytes, self._config.segment_bytes)
            if run.leader_epoch > leader_epoch:
                raise later_epoch(run, leader_epoch)
            try:
                self._write(now, run)
            except DiskError:
                self.epochs.drop(self.log_end_offset + 1)  # The epoch of these batches, if there is a gap before them.
                raise
            batches = batches[len(run.batches) :]
        return self.log_end_offset

    def _write(self, now: Now, run: Run) -> bool:
        """Makes one disk append. If a new segment is due, it is started first. Returns whether it was.

        Nothing that counts changes before the disk append, and nothing can fail after it. A cut is made durable first.
        Otherwise a power loss could bring back the end of one segment and keep new batches in the next one. Those
        batches would hide that the end diverges from the leader's log. Followers sync a cut before they fetch on, so
        nothing waits here as a rule. A sync that fails ends the node: a second one would succeed without the bytes.
        """
        if self.durability.unsettled_cut:
            self._make_durable(self.durability.unsettled_cut)
            self.durability.unsettled_cut = ""
        if run.leader_epoch > self.epochs.latest or not self.epochs.saved:
            self.epochs.assign(run.leader_epoch, run.offsets[0])
        segments, rolled = self.segments, False
        if not segments.items and self.topic_id:
            self.durability.changed(write_partition_metadata(self.disk, self.directory, self.topic_id))
        if run.last_offset - self.log_end_offset > MAX_RELATIVE_OFFSET:
            self._prepare_gap(now)
            self.roll(now, run.offsets[0], run.buffers)
            rolled = True
        elif segments.items:
            rolled = self._must_roll_for(run, now)
            if rolled:
                self.roll(now)
            segments.append(run.buffers)
        else:
            segments.create(self.log_end_offset, now.wall_ms, run.buffers)
        self._take_note(segments.items[-1], run)
        if segments.snapshots.unfinished is not None:
            segments.snapshots.go_on()
        return rolled

    def _prepare_gap(self, now: Now) -> None:
        """A gap that no segment can hold is left between two. What comes before it is made durable first. So a start
        need not take the gap for records that a power loss took away."""
        if not self.segments.items:
            self.segments.create(self.log_end_offset, now.wall_ms)
        self._make_durable(self.segments.items[-1].path)

    def _make_durable(self, path: str) -> None:
        try:
            self.disk.make_durable(path)
        except DiskError as failure:
            raise UndoFailed(*failure.args) from failure

    def _must_roll_for(self, run: Run, now: Now) -> bool:
        config, active = self._config, self.segments.items[-1]
        timestamp_ms = now.wall_ms if self._stamps_append_time else run.batches[0][1].max_timestamp_ms
        return active.must_roll_for(
            run.size_bytes, run.last_offset, config.segment_bytes, config.segment_index_bytes
        ) or active.is_due(self._due_ms(active), now.wall_ms, timestamp_ms)

    def _take_note(self, segment: Segment, run: Run) -> None:
        """Brings the index, the producers and the log end offset up to date, after the bytes are written."""
        interval, time_ms = self._config.index_interval_bytes, run.log_append_time_ms
        for (position, header), offset in zip(run.batches, run.offsets, strict=True):
            timestamp_ms = header.max_timestamp_ms if time_ms < 0 else time_ms
            segment.add(header, offset, timestamp_ms, interval)
            if header.producer_id >= 0:
                if self.verification.guards and header.is_transactional:
                    self.verification.written(header)
                if header.is_control:
                    batch = run.view[position : position + header.size_bytes]
                    segment.aborted.note(self.producers.record_control(header, offset, timestamp_ms, batch))
                else:
                    self.producers.record(header, offset, timestamp_ms)
        assert segment.next_offset > self.log_end_offset, (
            f"{self.directory}: an append moved the log end from {self.log_end_offset} to {segment.next_offset}"
        )
        self.log_end_offset = segment.next_offset

    def expire_producers(self, now: Now) -> int:
        """Forgets idle producers (P-7) and returns how many. The node calls it every
        ``producer.id.expiration.check.interval.ms``. Appends do the same."""
        self.verification.expire(now.wall_ms, self.producers.expiration_ms)
        return self.producers.expire(now.wall_ms)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Notes a new leader's epoch at the log end offset. The leader calls it before it appends, so that an epoch
        without records counts too.

        Only memory changes. The file is written with the first record of the epoch. A restart forgets an epoch without
        records anyway, and after a failover thousands of logs note an epoch at once.
        """
        self.epochs.assume(epoch, self.log_end_offset)

    def release(self, committed: int) -> bool:
        """Ends a quarantine if the log holds everything again, up to a leader's high watermark and to where it ended
        before. True if it does. Raises DiskError."""
        quarantine = self.quarantine
        if quarantine is None or self.log_end_offset < max(committed, quarantine.until):
            return False
        self.end_quarantine()
        return True

    def end_quarantine(self) -> None:
        """Ends a quarantine, because nobody relies any more on what the log held before its damage. This waits for
        the disk: the replica may be elected from now on, and its log must not be in quarantine again after a power
        loss. Raises DiskError."""
        path = f"{self.directory}/{QUARANTINE_FILE}"
        self.disk.delete(path)
        self.disk.make_durable(path)
        self.quarantine = None

    def forget_empty_epochs(self) -> None:
        """Forgets an epoch that this node noted as the leader and wrote nothing in. A follower calls it, because its
        new leader's log does not have that epoch."""
        self.epochs.drop(self.log_end_offset)

    # --- rolling ----------------------------------------------------------------------------------------------------

    def roll_if_due(self, now: Now) -> bool:
        """Starts a new segment if the active one is older than ``segment.ms`` or ``max.compaction.lag.ms``."""
        active = self.segments.items[-1] if self.segments.items else None
        if active is None or not active.is_due(self._due_ms(active), now.wall_ms):
            return False
        self.roll(now)
        return True

    def _due_ms(self, segment: Segment) -> int:
        jitter_ms = self._config.roll_jitter_ms(segment.path) if self._config.segment_jitter_ms else 0
        return self._max_segment_ms - jitter_ms

    # --- offsets that move ------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Moves the high watermark to ``offset``, but never back and never beyond the log end offset. Returns whether
        it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    # --- durability -------------------------------------------------------------------------------------------------

    def sync_point(self) -> SyncPoint:
        """Takes a sync point. The caller takes it when it asks for a sync of its ``paths``, and gives it to
        ``mark_synced`` when the sync has completed."""
        return self.durability.point(self.log_end_offset)

    def mark_synced(self, point: SyncPoint) -> None:
        """Notes that all bytes appended before ``point`` was taken are durable."""
        clean = self.durability.synced(point)
        assert self.durability.synced_offset <= self.log_end_offset, (
            f"{self.directory}: a sync up to offset {point.end_offset} covers more than the log, which ends at "
            f"{self.log_end_offset}"
        )
        self._checkpoints.settle(clean)
        if self.segments.retired:
            self._delete_retired()

    def note_synced(self) -> None:
        """Writes down how far the log is durable. A start takes damage below that for damage, not for a torn end. The
        note is true whether or not it is synced itself.

        A log that began anew waits until its new start is durable. With the old one, the note would say that the
        records between them were there.
        """
        synced, checkpoints = self.synced_offset, self._checkpoints
        if synced <= checkpoints.durable_end or self.durability.unsettled_cut:
            return
        oldest = (*self.segments.retired[:1], *self.segments.items[:1])
        has_old_start = any(segment.base_offset <= checkpoints.durable_start for segment in oldest)
        if has_old_start or checkpoints.is_start_durable:
            checkpoints.note_synced(synced)

    @property
    def synced_note(self) -> str:
        """The file that ``note_synced`` writes."""
        return self._checkpoints.synced_path

    def close_cleanly(self) -> None:
        """Writes the index files and a snapshot of the producers, so that a clean start need not scan. Sync the
        ``sync_point()`` afterwards.

        Called again when all is synced, it moves the recovery point to the log's end, which needs one more sync. So
        even if the next start dies before it has read the log, nobody takes durable records for a torn end.
        """
        for segment in self.segments:
            self.segments.write_indexes(segment)
        end = self.log_end_offset
        self.segments.snapshots.finish()
        self._snapshot_if_due(end)
        if self.segments and not self.durability.dirty and self.synced_offset == end > self._checkpoints.recovery_point:
            self.durability.changed(self._checkpoints.raise_recovery_point(end))


def open_log(
    disk: Disk, directory: str, config: LogConfig, now: Now, clean: bool
) -> Generator[None, None, PartitionLog]:
    """Opens a partition's log in slices: it yields about every 256 KiB of scanning, and returns the log.

    ``clean``: the node was shut down cleanly, so bytes and index files are trusted. Otherwise segments from the
    recovery point on are read whole, the log is cut at the first bad batch, and indexes are made anew. The high
    watermark starts at the log start offset. Damage of what was durable is kept aside, and the log is in quarantine.
    Raises DiskError.
    """
    while True:  # Each damage takes at least its segment away, so this ends.
        recovery = Recovery(disk, directory, config, now, clean)
        try:
            recovered = yield from recovery.run()
        except LogDamaged as found:
            set_aside(disk, directory, found.damage, recovery.checkpoints.durable_end)
        else:
            return PartitionLog.of(config, recovered, now)


def open_undamaged_log(
    disk: Disk, directory: str, config: LogConfig, now: Now, clean: bool
) -> Generator[None, None, PartitionLog]:
    """Does what ``open_log`` does, but raises LogDamaged and leaves the files for whoever mends them."""
    recovered = yield from Recovery(disk, directory, config, now, clean).run()
    return PartitionLog.of(config, recovered, now)


def run_to_end(opening: Generator[None, None, PartitionLog]) -> PartitionLog:
    """Opens a log in one go."""
    while True:
        try:
            next(opening)
        except StopIteration as stop:
            log = stop.value
            assert isinstance(log, PartitionLog), "opening a log returns a log"
            return log
