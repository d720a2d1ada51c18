"""The metadata log on disk (Kafka's KafkaMetadataLog): an ordinary partition log, its syncs, and its snapshots. It
does not interpret the record values.

Its leader epochs are read from the batches after a crash. ``leader-epoch-checkpoint`` is not trusted then, because a
follower may have replaced records that the file still lists.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.checkpoints import Checkpoint
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.leader_epochs import FILE_NAME as LEADER_EPOCH_FILE
from reference_broker.log.opening import open_undamaged_log
from reference_broker.log.quarantine import LogDamaged
from reference_broker.log.unified_log import BatchOrigin, UnifiedLog
from reference_broker.ports.disk import Disk, DiskError, UndoFailed
from reference_broker.ports.node_ports import Now, Ports
from reference_broker.ports.slicing import Sliced
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE, METADATA_DIRECTORY, StartRefused
from reference_broker.quorum.snapshots.format import snapshot_path
from reference_broker.quorum.values import UNKNOWN_OFFSET, OffsetAndEpoch, Provenance, QuorumListener
from reference_broker.records.batch import InvalidRecords, checked, read_header, validate
from reference_broker.records.control import build_control, leader_change
from reference_broker.records.record import Record, build, read_records


@dataclass(slots=True, eq=False)
class LogSync:
    """The syncs of the metadata log. One sync is in flight at a time, and all appends made meanwhile share the next.

    The synced end counts towards the high watermark at once, of a leader directly and of a follower by its next fetch.
    So each sync is noted beside the log, and a start never truncates below a noted end.
    """

    _log: UnifiedLog
    _ports: Ports
    in_flight: list[Callable[[], None]] | None = None
    """The callbacks of the sync in flight, or None if there is none."""
    pending: list[Callable[[], None]] = field(default_factory=list)
    """The callbacks of the next sync."""

    def request(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything that is in the log now is synced, or at once if it already is."""
        if self.in_flight is None and not self._log.durability.dirty:
            done()
            return
        self.pending.append(done)
        if self.in_flight is None:
            self._start_sync()

    def _start_sync(self) -> None:
        self.in_flight, self.pending = self.pending, []
        point = self._log.sync_point()
        self._ports.sync(point.paths, lambda: self._sync_completed(point))

    def _sync_completed(self, point: SyncPoint) -> None:
        self._log.mark_synced(point)
        self._log.files.note_synced()
        completed, self.in_flight = self.in_flight or [], None
        if self.pending:
            self._start_sync()
        for done in completed:
            done()


MAX_BATCH_BYTES = 8 * 2**20
"""Kafka's raft batch limit (KafkaRaftClient.MAX_BATCH_SIZE_BYTES)."""

READ_BYTES = 32 * 2**10
"""One event of replay reads this much: some 400 records, in less than 5 ms. A larger batch is read whole."""


class BatchTooLarge(Exception):  # noqa: N818 - the limit is the news
    """The records do not fit into one batch. Nothing was written."""


class TruncationBelowHighWatermark(Exception):  # noqa: N818 - says what was requested
    """A leader without committed records requires this node to truncate them. The node must end instead."""


class Snapshots(Protocol):
    """The part of the store of snapshots that the log needs (``snapshots.store.SnapshotStore``)."""

    @property
    def latest(self) -> OffsetAndEpoch | None: ...

    @property
    def oldest(self) -> OffsetAndEpoch | None: ...


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One batch of the log, with the values of its records."""

    values: tuple[bytes, ...]
    """Empty for a control batch."""
    provenance: Provenance
    """The provenance of the last record."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Valid:
    """The fetcher's log is a prefix of this one."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The fetcher must truncate its log."""

    end: OffsetAndEpoch
    """The largest epoch of this log not above the fetcher's, and where that epoch ends."""


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """Only a snapshot still holds what the fetcher lacks."""

    id: OffsetAndEpoch


Validity: TypeAlias = Valid | Diverging | NeedsSnapshot
VALID = Valid()


@dataclass(slots=True)
class MetadataLog:
    """The log of ``__cluster_metadata``. Each append is one batch, which is written whole or not at all (T-5)."""

    log: UnifiedLog
    """Its high watermark is that of the quorum, as far as this node knows it."""
    snapshots: Snapshots

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def synced_offset(self) -> int:
        """The offset below which every record is synced."""
        return self.log.synced_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def end(self) -> OffsetAndEpoch:
        """The end offset and the epoch of the last record: that of the latest snapshot if the log is empty behind it,
        and (0, 0) if there is neither."""
        log = self.log
        offset = log.log_end_offset
        if offset > log.log_start_offset:
            return OffsetAndEpoch(offset, log.epochs.epoch_at(offset - 1))
        latest = self.snapshots.latest
        return latest if latest is not None and latest.offset == offset else OffsetAndEpoch(offset, 0)

    # Appending

    def append(self, now: Now, values: Sequence[bytes], epoch: int) -> Provenance:
        """Append one batch of records with these values, and return the provenance of the last one. Raise BatchTooLarge
        or DiskError. The log is unchanged then."""
        stamped = [Record(timestamp_ms=now.wall_ms, value=value) for value in values]
        return self._append(now, build(stamped, leader_epoch=epoch), epoch)

    def append_leader_change(self, now: Now, leader_id: int, voters: Sequence[int], epoch: int) -> Provenance:
        """Append the LeaderChangeMessage that opens an epoch. Its GrantingVoters are all voters, because the leader
        does not keep which of them granted their votes. Raise DiskError."""
        record = leader_change(leader_id, voters, voters, now.wall_ms)
        return self._append(now, build_control([record], leader_epoch=epoch), epoch)

    def append_fetched(self, now: Now, data: bytes | memoryview, leader_epoch: int) -> int:
        """Append fetched batches to a follower's log and return the number of bytes that were appended.

        It stops before a batch that is torn, damaged or not contiguous, and before one of an epoch above
        ``leader_epoch`` or below the epoch of the log's end.
        """
        view, size = memoryview(data), len(data)
        if not size:
            return 0
        good_bytes, next_offset, epoch = 0, self.log.log_end_offset, self.end.epoch
        try:
            while good_bytes < size:
                header = checked(view, good_bytes, size)
                is_contiguous = header.base_offset == next_offset and header.last_offset_delta >= 0
                # Decision fetched-metadata-batch-fits
                if not is_contiguous or not epoch <= header.leader_epoch <= leader_epoch:
                    break
                good_bytes, next_offset, epoch = (
                    good_bytes + header.size_bytes,
                    header.last_offset + 1,
                    header.leader_epoch,
                )
        except InvalidRecords:
            pass  # The batches before the damage are good. The follower fetches the rest again.
        if good_bytes:
            self.log.append_replicated(now, view[:good_bytes])
        return good_bytes

    def _append(self, now: Now, batch: bytes, epoch: int) -> Provenance:
        if len(batch) > MAX_BATCH_BYTES:
            raise BatchTooLarge(f"a batch of {len(batch)} bytes, at most {MAX_BATCH_BYTES} are allowed")
        appended = self.log.append(now, batch, epoch, origin=BatchOrigin.BROKER)
        return Provenance(appended.last_offset, epoch, now.wall_ms)

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Return whole batches below ``end_offset``, at least one if there is any. Raise OffsetOutOfRange."""
        return self.log.read(offset, max_bytes, end_offset, True)

    def batches(self, offset: int, end_offset: int) -> Iterator[LogBatch]:
        """Yield some batches in [offset, end_offset), at least one if there is any. Raise InvalidRecords.

        Their CRCs are checked, because a start after a clean stop does not check them.
        """
        data = self.log.read(offset, READ_BYTES, end_offset, True)
        for position, header in validate(data):
            yield read_batch(data[position : position + header.size_bytes])

    # Comparison with another replica's log

    def end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the largest epoch not above ``epoch`` with its end offset. If it ends at the oldest snapshot, the
        result is that snapshot's ID."""
        end = self.end
        if epoch >= end.epoch:
            return end
        end_of_epoch = self.log.end_offset_for_epoch(epoch)
        if end_of_epoch.epoch < 0:
            return end
        oldest = self.snapshots.oldest
        # Decision epoch-ends-at-snapshot
        if oldest is not None and end_of_epoch.end_offset == oldest.offset and end_of_epoch.epoch == epoch:
            return oldest
        return OffsetAndEpoch(end_of_epoch.end_offset, end_of_epoch.epoch)

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> Validity:
        """Return whether a replica with this fetch offset and last fetched epoch has a prefix of this log, must
        truncate, or needs the newest snapshot, because this log begins later (S-10;
        KafkaRaftLog.validateOffsetAndEpoch)."""
        start, oldest, latest = self.start_offset, self.snapshots.oldest, self.snapshots.latest
        if oldest is not None and latest is not None:
            at_start = offset == start == oldest.offset and epoch != oldest.epoch
            # Decision fetching-voter-needs-snapshot
            if offset == 0 or offset < start or at_start or epoch < oldest.epoch:
                return NeedsSnapshot(latest)
        elif offset == 0 == start:
            return VALID
        end = self.end_for_epoch(epoch)
        # Decision fetching-voter-log-valid
        return VALID if end.epoch == epoch and offset <= end.offset else Diverging(end)

    # Truncation, and deletion of the oldest records

    def truncate_to_diverging(self, end: OffsetAndEpoch) -> int:
        """Truncate to the end of the log that this node shares with a leader whose response has this DivergingEpoch.
        Return the new end offset. Raise TruncationBelowHighWatermark, because a leader has all committed records."""
        own = self.end_for_epoch(end.epoch)
        # Decision quorum-diverging-epoch-known
        return self.truncate_to(min(own.offset, end.offset) if own.epoch == end.epoch else own.offset)

    def truncate_to(self, offset: int) -> int:
        """Remove every batch that reaches ``offset`` or beyond, and return the new end offset. Raise
        TruncationBelowHighWatermark for an offset below the high watermark: nothing is removed then."""
        high_watermark = self.log.high_watermark
        if offset < high_watermark:  # Decision metadata-log-cut-below-commit
            raise TruncationBelowHighWatermark(
                f"The metadata log would be cut at offset {offset}, below its high watermark {high_watermark}: a "
                "leader without committed records was elected, since voters lost what they had made durable; restore "
                "their directories from copies."
            )
        return self.log.truncate_to(offset)

    def install_snapshot(self, now: Now, id: OffsetAndEpoch) -> bool:  # noqa: A002 - Kafka's word
        """Empty the log and start it at the end of the snapshot (KafkaMetadataLog's truncateToLatestSnapshot). Return
        False, and change nothing, if the log already reaches that far.

        Raise DiskError if nothing was changed, and UndoFailed if the disk fails half-way. Then the node must end,
        because it may not report the end of a log that it has lost. The next start installs the snapshot.
        """
        before = self.end, tuple(self.log.bases)
        if id.age <= self.end.age:
            return False
        try:
            self.log.truncate_fully_and_start_at(id.offset, now)
        except DiskError as failure:
            if (self.end, tuple(self.log.bases)) == before:
                raise
            raise UndoFailed(*failure.args) from failure
        return True

    def delete_before(self, id: OffsetAndEpoch) -> bool:  # noqa: A002 - Kafka's word
        """Move the log start offset to the end of a snapshot of this node, and delete the segments before it. Return
        False if the log already starts there or later, or if the high watermark has not reached the snapshot."""
        if not self.log.log_start_offset < id.offset <= self.log.high_watermark:  # Decision metadata-log-start-stays
            return False
        self.log.delete_records_before(id.offset)
        return True


@dataclass(slots=True, eq=False)
class HighWatermark:
    """The end of the records that this node knows to be committed. It never decreases while the node runs."""

    _log: MetadataLog
    _ports: Ports
    _listener: QuorumListener
    offset: int = UNKNOWN_OFFSET

    def advance(self, offset: int) -> bool:
        """Advance the high watermark, but not beyond the end of this node's log. Return whether it advanced."""
        offset = min(offset, self._log.end_offset)
        if offset <= max(self.offset, 0):
            return False
        self.offset = offset
        self._log.log.advance_high_watermark(offset)
        self._ports.note("high_watermark", ("offset", offset))
        self._listener.high_watermark_advanced(offset)
        return True

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        """Advance the high watermark to the snapshot's end, because a snapshot has only committed records."""
        if snapshot.offset > self.offset:
            self.offset = snapshot.offset
            self._ports.note("high_watermark", ("offset", snapshot.offset))
        self._listener.snapshot_installed(snapshot)


def read_batch(batch: bytes) -> LogBatch:
    """Read one whole batch, whose CRC the caller has checked. Raise InvalidRecords."""
    header = read_header(batch)
    values: tuple[bytes, ...] = ()
    if not header.is_control:
        values = tuple(record.value or b"" for record in read_records(batch))
    return LogBatch(
        values, Provenance(header.last_offset, header.leader_epoch, header.max_timestamp_ms), header.size_bytes
    )


def open_metadata_log(
    disk: Disk, config: BrokerConfig, now: Now, clean: bool, snapshots: Snapshots
) -> Sliced[MetadataLog]:
    """Open and recover the log.

    A torn tail is cut at the first bad batch. Other damage stays as it is, since this node may have reported to a
    leader that it has these records. If a crash between the rename of the newest snapshot and the truncation of the log
    left that snapshot beyond the log, the log starts at the snapshot. Raise StartRefused for a damaged log, and for
    one that begins where no snapshot reaches (KAFKA-14240).
    """
    log_config = LogConfig(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        retention_bytes=-1,
        retention_ms=-1,
        max_message_bytes=MAX_BATCH_BYTES,
    )
    epochs = f"{METADATA_DIRECTORY}/{LEADER_EPOCH_FILE}"
    if not clean and disk.exists(epochs):
        Checkpoint(disk, epochs).replace([])  # A missing file would mean that a power loss took the log's start, too.
    try:
        opened = yield from open_undamaged_log(disk, METADATA_DIRECTORY, log_config, now, clean)
    except LogDamaged as found:
        raise StartRefused(
            f"The metadata log is damaged: {found.damage}; restore this file from a copy, or start this node with an "
            "empty directory if other voters have its records."
        ) from found
    log = MetadataLog(opened, snapshots)
    latest = snapshots.latest
    if log.start_offset > 0 and (latest is None or latest.offset < log.start_offset):
        raise StartRefused(
            f"The metadata log in {METADATA_DIRECTORY} begins at offset {log.start_offset}, and no snapshot reaches "
            "there: restore the directory from a copy or use an empty one."
        )
    if latest is not None:
        if latest.age > log.end.age:
            disk.delete(CLEAN_SHUTDOWN_FILE)  # The next start must recover a log that is about to change.
            disk.make_durable(CLEAN_SHUTDOWN_FILE)
            disk.make_durable(snapshot_path(latest))
        log.install_snapshot(now, latest)
        _commit_up_to_snapshot(log, latest)
    return log


def _commit_up_to_snapshot(log: MetadataLog, latest: OffsetAndEpoch) -> None:
    """Raise the high watermark to the latest snapshot, because snapshots hold only committed records. If a crash
    undid the move of the log's start to the oldest snapshot, this moves it again."""
    log.log.advance_high_watermark(latest.offset)
    oldest = log.snapshots.oldest
    if oldest is not None and 0 < log.start_offset < oldest.offset:
        log.delete_before(oldest)
