"""One partition's log (Kafka's UnifiedLog): append, read, truncate and delete by offset.

The log owns its state. Other modules change it only through it, except that the partition publisher sets
``topic_id``, and the checks of Produce and TxnOffsetCommit requests add transactions to its ``verification``. Work on
parts of it is in other files of this folder, which get values and return values (see README.md). A change that fails
(DiskError) leaves the log as it was, unless a method says otherwise.
"""

from collections.abc import Sequence
from operator import attrgetter

from reference_broker.log import invariants, reading
from reference_broker.log.appending import (
    AppendResult,
    BatchOrigin,
    LogAppend,
    RecordsRefused,
    UnexpectedOffset,
    assign_offsets,
    duplicate_batches,
    later_epoch,
    next_append,
    validate_batches,
    validate_records,
    validate_replicated,
    with_codec_at_once,
)
from reference_broker.log.checkpoints import EpochStart
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.log_files import LogFiles
from reference_broker.log.producer_replay import RecreatedSnapshot, recreate, replay
from reference_broker.log.producer_state import ProducerStateManager, encode_snapshot
from reference_broker.log.quarantine import FILE_NAME as QUARANTINE_FILE
from reference_broker.log.reading import MovedToRemote, OffsetOutOfRange
from reference_broker.log.recovery import Recovered
from reference_broker.log.retention import TierableSegment, count_before, count_expired, tierable
from reference_broker.log.segment import Segment
from reference_broker.log.timestamp_lookup import FoundOffset, LookUp
from reference_broker.log.transaction_verification import VerificationGuard, VerificationStates
from reference_broker.ports.disk import DiskError, UndoFailed
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import Budget, Sliced, run_to_end
from reference_broker.records.batch import Buffer, end_of, validate
from reference_broker.records.validation import CODECS, Rules
from reference_broker.wire.fetch import AbortedTransaction, EpochEndOffset

__all__ = [
    "AppendResult",
    "BatchOrigin",
    "FoundOffset",
    "MovedToRemote",
    "OffsetOutOfRange",
    "RecordsRefused",
    "UnexpectedOffset",
    "UnifiedLog",
]


MAX_LEADER_EPOCH = 2**31 - 1

_begin = attrgetter("first_offset")


class UnifiedLog:
    """One partition's log. ``open_log`` (``opening.py``) opens one.

    Between ``log_start_offset`` and ``local_log_start_offset``, records are in the remote tier only. Without such
    records both are the same.
    """

    __slots__ = (
        "_config",
        "_rules",
        "_stamps_append_time",
        "cleaned_offset",
        "copied_end_offset",
        "directory",
        "disk",
        "durability",
        "epochs",
        "files",
        "high_watermark",
        "horizon",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "must_decode_records",
        "producers",
        "quarantine",
        "recovered",
        "segments",
        "topic_id",
        "verification",
    )

    _config: LogConfig

    def __init__(self, config: LogConfig, recovered: Recovered) -> None:
        self.files = files = LogFiles(recovered)
        self.segments = segments = files.segments
        self.disk = files.disk
        self.directory = files.directory
        self.durability = files.durability
        self.epochs = files.epochs
        self.producers = recovered.producers
        self.recovered = recovered.report
        self.quarantine = recovered.quarantine
        """Why the log must not be led, or None."""
        self.topic_id = b""
        """Written beside the first records. It is empty if the directory's name is enough."""
        self.log_end_offset = segments[-1].next_offset if segments else recovered.local_start_offset
        self.log_start_offset = min(recovered.log_start_offset, self.log_end_offset)
        self.local_log_start_offset = self.high_watermark = min(recovered.local_start_offset, self.log_end_offset)
        self.copied_end_offset = 0
        """Every record below it is in a listed remote segment, as far as the remote log manager has found. 0 at a
        start."""
        self.cleaned_offset = recovered.cleaned_offset
        """The cleaner checkpoint: below it, only the newest record of each key remains."""
        self.horizon = recovered.horizon
        """The offset below which tombstones may be gone (H-1)."""
        self.verification = VerificationStates()
        self.config = config

    @classmethod
    def of(cls, config: LogConfig, recovered: Recovered, now: Now) -> "UnifiedLog":
        """Build the log from what was recovered, and repair on the disk what a crash left behind. Raise
        DiskError."""
        log = cls(config, recovered)
        begin = recovered.local_start_offset
        if begin > log.log_end_offset and begin > recovered.log_start_offset:  # Decision recovered-in-tier
            none, earlier_epochs = log.producers.empty_copy(), log.epochs.before(begin)
            log.start_from_remote(now, begin, recovered.log_start_offset, earlier_epochs, encode_snapshot(none), none)
        elif begin > log.log_end_offset:
            log.truncate_fully_and_start_at(begin, now)
        log.files.snapshot_if_due(log.log_end_offset, log.log_start_offset, log.producers)
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
        self.files.configure(config)
        self._stamps_append_time = config.is_log_append_time
        codec = CODECS.get(config.compression_type)
        self.must_decode_records = config.is_compacted or codec is not None
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

    # --- offsets and epochs -----------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest undecided transaction below the high watermark, or the high watermark if
        there is none. It is never below the log start offset, where the transaction may have begun."""
        unstable = self.producers.first_unstable_offset(self.high_watermark)
        if unstable is None:  # Decision stable-offset
            return self.high_watermark
        return max(self.log_start_offset, min(self.high_watermark, unstable))

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [offset, end_offset), by first offset. A reader of committed
        records must skip their records. Raise DiskError."""
        aborted = self.segments.aborted_between(offset, end_offset)
        return [AbortedTransaction(entry.producer_id, entry.first_offset) for entry in sorted(aborted, key=_begin)]

    def aborted_among(self, offset: int, records: Buffer) -> list[AbortedTransaction]:
        """Return the aborted transactions among the batches that a read from ``offset`` returned. Mostly there are
        none. The end of the records is found only if a segment has aborted transactions. Raise DiskError."""
        segments = self.segments
        if not records or not any(item.aborted.count for item in segments.items[segments.index_of(offset) :]):
            return []
        first_offset = int.from_bytes(memoryview(records)[:8])
        return self.aborted_transactions(max(offset, first_offset), end_of(records))

    @property
    def latest_epoch(self) -> int:
        """The newest known leader epoch, or -1 if there is none."""
        return self.epochs.latest

    @property
    def bases(self) -> Sequence[int]:
        """The base offsets of the segments."""
        return self.segments.bases

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def is_offline(self) -> bool:
        """Whether a failed append could not be undone, so that the log is not used before a restart."""
        return self.segments.is_offline

    @property
    def is_start_durable(self) -> bool:
        """Whether no power loss takes the log start back."""
        return self.files.checkpoints.is_start_durable

    @property
    def synced_offset(self) -> int:
        """The offset below which every record is durable."""
        return self.durability.synced_offset

    @property
    def appended_since_sync(self) -> int:
        """The number of offsets whose records are not known to be durable."""
        return self.log_end_offset - max(self.durability.synced_offset, self.local_log_start_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Return the largest known epoch <= ``epoch`` and its end offset, one past its last offset (KIP-320). The
        result is (-1, -1) for an epoch above the latest, or if no epoch is known."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset``, or -1 if it is unknown."""
        return self.epochs.epoch_at(offset)

    def advance_high_watermark(self, offset: int) -> bool:
        """Move the high watermark to ``offset``, but never back and never beyond the log end offset. Return whether
        it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def assign_leader_epoch(self, epoch: int) -> None:
        """Note a new leader's epoch at the log end offset. The leader calls it before it appends, so that an epoch
        without records counts too.

        Only memory changes. The file is written with the first record of the epoch. A restart forgets an epoch without
        records anyway, and after a failover thousands of logs note an epoch at once.
        """
        self.epochs.assume(epoch, self.log_end_offset)

    def forget_empty_epochs(self) -> None:
        """Remove an epoch that this node noted as the leader without writing a record. A follower calls it, because
        its new leader's log does not have that epoch."""
        self.epochs.drop(self.log_end_offset)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int | None = None,
        at_least_one: bool = True,
        skips_empty: bool = False,
    ) -> bytes:
        """Return whole batches, from the one that contains ``offset`` up to ``end_offset``. Without ``end_offset``
        that is the high watermark. With ``skips_empty`` each has records, unless none with records follow.

        At most ``max_bytes``, except that the first batch comes whatever its size if ``at_least_one``. May return
        less than would fit (the rest of a segment, up to an index entry). Raise OffsetOutOfRange, MovedToRemote and
        DiskError.
        """
        log_end_offset = self.log_end_offset
        if not self.local_log_start_offset <= offset <= log_end_offset:
            if self.log_start_offset <= offset < log_end_offset:
                raise MovedToRemote(offset, self.local_log_start_offset)
            raise OffsetOutOfRange(offset, self.log_start_offset, log_end_offset)
        end_offset = min(self.high_watermark if end_offset is None else end_offset, log_end_offset)
        segments = self.segments
        if offset >= end_offset or (max_bytes <= 0 and not at_least_one) or not segments.items:
            return b""
        if segments.is_offline:
            segments.check_online()
        read = reading.read_skipping_empty if skips_empty else reading.read
        return read(segments, offset, max_bytes, end_offset, at_least_one)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Return the size of the batches from the one that contains ``offset`` up to ``end_offset``. It is 0 outside
        the log, and for records that are in the remote tier only."""
        offset, end_offset = max(offset, self.local_log_start_offset), min(end_offset, self.log_end_offset)
        if offset >= end_offset or not self.segments.items:
            return 0
        return reading.bytes_between(self.segments, offset, end_offset)

    def search_timestamp(self, timestamp_ms: int, budget: Budget) -> Sliced[FoundOffset | None]:
        """Find the first local record whose timestamp is >= ``timestamp_ms``. Raise Overtaken."""
        return LookUp(self.segments, self.local_log_start_offset, budget).first_at(timestamp_ms)

    def search_max_timestamp(self, budget: Budget) -> Sliced[FoundOffset]:
        """Find the first local record with the largest timestamp (KIP-734); (-1, -1, -1) if there is none. Raise
        Overtaken."""
        return LookUp(self.segments, self.local_log_start_offset, budget).largest()

    # --- appending --------------------------------------------------------------------------------------------------

    def validate_records(self, now: Now, records: Buffer) -> Sliced[bytes | memoryview]:
        """Validate a client's batches with all their records, in slices. Return them as they are to be appended, with
        the topic's codec. Raise RecordsRefused."""
        return validate_records(memoryview(records), self._rules, self._config, now.wall_ms)

    def append(
        self,
        now: Now,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: BatchOrigin = BatchOrigin.CLIENT,
        is_validated: bool = False,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append as the leader: validate, number and write one or more batches, all or nothing. ``is_validated`` means
        that ``validate_records`` has validated their records. ``guard`` is that of the first batch of a transaction
        here, whose coordinator knows the partition (``VerificationStates.begin``).

        Raise RecordsRefused and DiskError. In both cases nothing is written.
        """
        view = memoryview(records)
        batches = validate_batches(view, self._rules, self._config, now.wall_ms, origin, is_validated)
        if origin is BatchOrigin.CLIENT:
            if now.wall_ms - self.producers.swept_ms >= self._config.producer_id_expiration_check_interval_ms:
                self.expire_producers(now)
            has_producer = len(batches) > 1 or batches[0][1].producer_id >= 0
            duplicates = duplicate_batches(self.producers, batches, self.verification, guard) if has_producer else None
            if duplicates is not None:  # Decision append-retry
                time_ms = duplicates[-1].timestamp_ms if self._stamps_append_time else -1
                first, last = duplicates[0].first_offset, duplicates[-1].last_offset
                return AppendResult(first, last, time_ms, self.log_start_offset, duplicate=True)
            if self.must_decode_records and self._rules.codec is not None:
                view = with_codec_at_once(view, batches, self._rules, self._config)
                batches = validate(view)
        first_offset, time_ms = self.log_end_offset, now.wall_ms if self._stamps_append_time else -1
        append = assign_offsets(view, batches, first_offset, leader_epoch, time_ms)
        rolled = self._write(now, append)
        return AppendResult(first_offset, append.last_offset, time_ms, self.log_start_offset, rolled=rolled)

    def append_replicated(self, now: Now, records: Buffer, leader_epoch: int = MAX_LEADER_EPOCH) -> int:
        """Append as a follower: write a leader's batches at their own offsets and epochs. Return the new log end
        offset. ``leader_epoch`` is that of the leader, and no batch can be of a later one (KAFKA-18723).

        Raise RecordsRefused (damaged batches, or a later epoch), UnexpectedOffset (a batch below the log end offset)
        and DiskError. The batches before the one that fails stay.
        """
        view = memoryview(records)
        batches = validate_replicated(view)
        while batches:
            active_bytes = self.segments.items[-1].size_bytes if self.segments.items else 0
            append = next_append(view, batches, self.log_end_offset, active_bytes, self._config.segment_bytes)
            if append.leader_epoch > leader_epoch:
                raise later_epoch(append, leader_epoch)
            self._write(now, append)
            batches = batches[len(append.batches) :]
        return self.log_end_offset

    def _write(self, now: Now, append: LogAppend) -> bool:
        """Make one disk append. Return whether it begins a new segment. The state changes only after the disk append,
        and nothing can fail after it."""
        segments = self.segments
        rolled = self.files.write(
            now, append, self.log_end_offset, self.log_start_offset, self.topic_id, self.producers
        )
        self._note_written(segments.items[-1], append)
        if segments.snapshots.unfinished is not None:
            segments.snapshots.go_on()
        return rolled

    def _note_written(self, segment: Segment, append: LogAppend) -> None:
        """Update the index, the producers and the log end offset after the bytes are written."""
        interval, time_ms = self._config.index_interval_bytes, append.log_append_time_ms
        for (position, header), offset in zip(append.batches, append.offsets, strict=True):
            timestamp_ms = header.max_timestamp_ms if time_ms < 0 else time_ms
            segment.add(header, offset, timestamp_ms, interval)
            if header.producer_id >= 0:
                if self.verification.guards and header.is_transactional:
                    self.verification.note_written(header)
                if header.is_control:
                    batch = append.view[position : position + header.size_bytes]
                    segment.aborted.note(self.producers.record_control(header, offset, timestamp_ms, batch))
                else:
                    self.producers.record(header, offset, timestamp_ms)
        assert segment.next_offset > self.log_end_offset, (
            f"{self.directory}: an append moved the log end from {self.log_end_offset} to {segment.next_offset}"
        )
        self.log_end_offset = segment.next_offset

    def expire_producers(self, now: Now) -> int:
        """Remove idle producers (P-7) and return how many. The node calls it every
        ``producer.id.expiration.check.interval.ms``. Appends do the same."""
        self.verification.expire(now.wall_ms, self.producers.expiration_ms)
        return self.producers.expire(now.wall_ms)

    def roll(self, now: Now) -> None:
        """Start a new segment at the log end offset."""
        self.files.roll(now, self.log_end_offset, self.log_start_offset, self.producers)

    def roll_if_due(self, now: Now) -> bool:
        """Start a new segment if the active one is older than ``segment.ms`` or ``max.compaction.lag.ms``."""
        is_due = self.files.is_roll_due(now)
        if is_due:  # Decision segment-roll-by-time
            self.roll(now)
        return is_due

    # --- truncation and restart -------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> int:
        """Remove every batch that reaches ``offset`` or beyond. After an unclean election these may be below the high
        watermark, which then moves down too. Return the new log end offset. It is lower than ``offset`` if ``offset``
        is inside a batch.

        If the disk fails half-way, the log ends where it was truncated so far, and its state in memory agrees with
        that.
        """
        segments, producers = self.segments, self.producers
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if not segments or offset < segments.bases[0]:
            if self.local_log_start_offset > self.log_start_offset:  # Its leader knows where it begins in the tier.
                offset = min(offset, self.log_start_offset)
            self._restart_at(offset, segments[0].created_ms if segments else 0)
            return offset
        end = segments.end_before(offset)
        work = replay(segments, producers, self.log_start_offset, offset)
        self.producers = run_to_end(work) if producers.by_id else producers.empty_copy()  # Decision truncated-producers
        self.producers.keep_completed(producers, end)
        try:
            segments.snapshots.delete_beyond(end)
            first_touched = self.files.lower_checkpoints(offset)
            if first_touched < self.cleaned_offset:  # Decision truncation-of-clean-part
                self.note_cleaned(first_touched)
            segments.cut_from(offset)
        except DiskError:
            if segments[-1].next_offset > offset:
                self.producers = producers  # They may know of batches that are gone. The truncation is retried.
            raise
        finally:
            self.log_end_offset = segments[-1].next_offset
            self.high_watermark = min(self.high_watermark, self.log_end_offset)
            self.copied_end_offset = min(self.copied_end_offset, self.log_end_offset)
            self.epochs.drop(self.log_end_offset)
        self.local_log_start_offset = min(self.local_log_start_offset, self.log_end_offset)
        if self.log_start_offset > self.log_end_offset:
            self._begin_where_records_do(self.log_end_offset)
        self.epochs.save()
        return self.log_end_offset

    def truncate_fully_and_start_at(self, offset: int, now: Now) -> None:
        """Empty the log. The next record gets ``offset``. A replica that starts from a snapshot needs that."""
        self._restart_at(offset, now.wall_ms)

    def _restart_at(self, offset: int, created_ms: int) -> None:
        local = self.files.checkpoints.local
        if not local.is_there:
            self._empty_and_restart_at(offset, created_ms)
            return
        try:
            local.begin()
            self._empty_and_restart_at(offset, created_ms)
            local.forget()
        except DiskError as failure:
            raise UndoFailed(*failure.args) from failure

    def _empty_and_restart_at(self, offset: int, created_ms: int) -> None:
        self._empty()
        self.epochs.clear()
        self.producers.clear()
        self.durability.note_emptied(self.segments.create(offset, created_ms).path)
        self._begin_at(offset)
        self._begin_where_records_do(offset)

    def start_from_remote(
        self,
        now: Now,
        offset: int,
        log_start_offset: int,
        epochs: Sequence[EpochStart],
        snapshot: bytes,
        producers: ProducerStateManager,
    ) -> None:
        """Empty the log, which goes on at ``offset``: the records from ``log_start_offset`` up to there are in the
        remote tier (P-11). ``epochs`` are the leader epochs that began before ``offset``. ``snapshot`` is Kafka's
        file of the producers at ``offset``, with open transactions, and ``producers`` is its decoded content.

        Wait for the disk. A start finds the log whole or empty, never a part of it. If the disk fails half-way, only a
        restart can mend the log (UndoFailed).
        """
        assert log_start_offset <= offset, f"a log that starts at {log_start_offset} cannot go on at {offset}"
        try:
            self.files.checkpoints.local.begin()
            self._empty()
            earlier_epochs = [(epoch, start) for epoch, start in epochs if start < offset]
            self.files.begin_behind_remote(now, offset, log_start_offset, earlier_epochs, snapshot)
        except DiskError as failure:
            raise UndoFailed(*failure.args) from failure
        self.producers = self.producers.empty_copy()
        self.producers.by_id, self.producers.open_transactions = producers.by_id, producers.open_transactions
        self._begin_at(offset)
        self.log_start_offset = log_start_offset

    def _begin_at(self, offset: int) -> None:
        self.local_log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.durability.synced_offset = offset
        self.copied_end_offset = 0

    def _empty(self) -> None:
        checkpoints = self.files.checkpoints
        checkpoints.lower_recovery_point(0)
        checkpoints.lower_synced(0)
        if self.cleaned_offset > 0:
            self.note_cleaned(0)
        self.segments.snapshots.delete_beyond(-1)
        try:
            self.segments.drop_all()
        finally:
            if self.segments:
                self.local_log_start_offset = max(self.local_log_start_offset, self.bases[0])
                if not checkpoints.local.is_there:
                    self.log_start_offset = self.local_log_start_offset

    # --- deletion of the oldest records -------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset to ``offset``, write it to its checkpoint file, and delete the segments that are
        wholly before it. Return the log start offset. Raise OffsetOutOfRange beyond the high watermark."""
        if offset > self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        if offset > self.log_start_offset:
            self._move_log_start(offset)
            self.epochs.truncate_from_start(offset)
            self._drop_oldest(count_before(self.segments, offset))
        return self.log_start_offset

    def enforce_retention(self, now: Now) -> int:
        """Delete old segments by ``retention.ms`` and ``retention.bytes``, and return how many. Records at or above
        the high watermark stay. The active segment is rolled first if it is to go with all others."""
        count = count_expired(self.segments, self._config, self.log_start_offset, self.high_watermark, now.wall_ms)
        if 0 < count == len(self.segments):
            self.roll(now)
        if not self._config.is_remote_copy_enabled:
            self._drop_oldest(count)
            return count
        unreachable = count_before(self.segments, self.log_start_offset)
        self._drop_oldest(unreachable)
        return unreachable + self.delete_local(self.bases[count - unreachable]) if count > unreachable else unreachable

    def delete_local(self, end_offset: int) -> int:
        """Delete the segments that are wholly below ``end_offset``, and return how many. Their records are in the
        remote tier, where the log still begins.

        A segment stays if its copy is not listed, if it is not durable here, or if no whole and durable snapshot has
        the producer state behind it: a start could not read that from the segment any more.
        """
        safe = min(end_offset, self.copied_end_offset, self.high_watermark, self.synced_offset)
        count = self.files.count_deletable(safe)
        if count:  # Decision local-deletion
            first = self.bases[count]
            self.files.write_local_start(first)
            self.local_log_start_offset = first
            self.files.retire(count)
        return count

    def _drop_oldest(self, count: int) -> None:
        if count == 0:
            return
        first = max(self.log_start_offset, self.bases[count])
        if first > self.log_start_offset:
            self._move_log_start(first)
            self.epochs.truncate_from_start(first)
        self.files.retire(count)

    def _begin_where_records_do(self, offset: int) -> None:
        """Move the log start after a truncation. The records are gone, so it also moves if the disk refuses its
        checkpoint file (DiskError), which the next append writes."""
        self.files.is_log_start_unwritten = True
        try:
            self._move_log_start(offset)
        finally:
            self.log_start_offset = offset
            self.local_log_start_offset = max(self.local_log_start_offset, offset)

    def _move_log_start(self, offset: int) -> None:
        self.files.write_log_start(offset)
        self.log_start_offset = offset
        self.local_log_start_offset = max(self.local_log_start_offset, offset)

    # --- the remote tier ---------------------------------------------------------------------------------------------

    def tierable(self, last_stable_offset: int, high_watermark: int, from_offset: int) -> tuple[TierableSegment, ...]:
        """Return the closed segments with offsets from ``from_offset`` on that may be copied to the remote tier: those
        that lie wholly below the last stable offset and the high watermark, the oldest first."""
        return tierable(self.segments, min(last_stable_offset, high_watermark), from_offset)

    def note_copied(self, end_offset: int) -> None:
        """Note up to where the log is listed in the remote tier, exclusive: 0 if that is not known any more."""
        self.copied_end_offset = end_offset

    def make_snapshot(self, now: Now, offset: int) -> Sliced[RecreatedSnapshot]:
        """Make the snapshot of producers at ``offset``, where a segment begins, as P-9 says. In slices. Raise
        Overtaken and DiskError. ``recreate_snapshot`` also writes it."""
        return recreate(self.segments, offset, now.wall_ms, self.producers.expiration_ms, self.producers.by_id)

    def recreate_snapshot(self, now: Now, offset: int) -> Sliced[RecreatedSnapshot]:
        """Make the snapshot of producers at ``offset``, and write it (P-8, P-13). In slices. Raise Overtaken and
        DiskError."""
        made = yield from self.make_snapshot(now, offset)
        self.segments.snapshots.put(offset, made.snapshot)
        return made

    # --- cleaning ---------------------------------------------------------------------------------------------------

    def note_cleaned(self, offset: int) -> None:
        """Note that the log is clean up to ``offset``: a pass of the cleaner got that far, or records from ``offset``
        on are about to be removed."""
        self.files.checkpoints.write_cleaned(offset)
        self.cleaned_offset = offset

    # --- durability -------------------------------------------------------------------------------------------------

    def sync_point(self) -> SyncPoint:
        """Take a sync point. The caller takes it when it requests a sync of its ``paths``, and passes it to
        ``mark_synced`` when the sync has completed."""
        return self.durability.point(self.log_end_offset)

    def mark_synced(self, point: SyncPoint) -> None:
        """Note that all bytes appended before ``point`` was taken are durable."""
        self.files.mark_synced(point)
        assert self.durability.synced_offset <= self.log_end_offset, (
            f"{self.directory}: a sync up to offset {point.end_offset} covers more than the log, which ends at "
            f"{self.log_end_offset}"
        )

    def close_cleanly(self) -> None:
        """Write the index files and a snapshot of the producers, so that a clean start need not scan. Sync the
        ``sync_point()`` afterwards.

        Called again when all is synced, it moves the recovery point to the log's end, which needs one more sync. So
        even if the next start dies before it has read the log, no later start takes durable records for a torn end.
        """
        self.files.close_cleanly(self.log_end_offset, self.log_start_offset, self.producers)

    # --- quarantine -------------------------------------------------------------------------------------------------

    def release(self, committed: int) -> bool:
        """End a quarantine if the log is complete again, up to a leader's high watermark and to its former end.
        Return whether it did. Raise DiskError."""
        quarantine = self.quarantine
        if quarantine is None or self.log_end_offset < max(committed, quarantine.until):
            return False
        self.end_quarantine()
        return True

    def end_quarantine(self) -> None:
        """End a quarantine, because the cluster no longer relies on the records that the log had before its damage.
        This waits for the disk: the replica may be elected from now on, and its log must not be in quarantine again
        after a power loss. Raise DiskError."""
        path = f"{self.directory}/{QUARANTINE_FILE}"
        self.disk.delete(path)
        self.disk.make_durable(path)
        self.quarantine = None

    # --- assertions -------------------------------------------------------------------------------------------------

    def check_invariants(self, closed_too: bool = True) -> None:
        """Raise AssertionError if the parts of the log contradict each other. It walks over all that is in memory, so
        the simulator and tests call it and production does not. Without ``closed_too`` it omits what is in closed
        segments, which change only with the list of segments and with a truncation."""
        self.check_offsets()
        invariants.check_segments(self.segments, self.local_log_start_offset, self.log_end_offset, closed_too)
        invariants.check_durability(self.durability, self.files.durable_end, self.cleaned_offset, self.log_end_offset)
        invariants.check_epochs(self.epochs, self.log_start_offset, self.log_end_offset)
        invariants.check_producers(self.producers, self.log_end_offset)

    def check_offsets(self) -> None:
        """Raise AssertionError if the log's offsets contradict each other: enough if only the high watermark moved."""
        invariants.check_offsets(
            self.log_start_offset, self.local_log_start_offset, self.high_watermark, self.log_end_offset
        )
