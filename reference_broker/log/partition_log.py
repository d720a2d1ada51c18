"""One partition's log: what is appended, read, truncated and deleted, as offsets; segments and indexes below.

Files of a partition: ``<base offset>.log|.index|.timeindex`` and small checkpoints, made at first need, so that an
empty partition costs nothing. A change that fails (DiskError) leaves the log as it was.
"""

from bisect import bisect_right
from collections.abc import Generator

from reference_broker.log import appending, lookup, reading, recovery, removal
from reference_broker.log.appending import Appended, Origin, RecordsRefused, UnexpectedOffset
from reference_broker.log.checkpoint import Checkpoint
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import Durability, SyncPoint
from reference_broker.log.leader_epochs import FILE_NAME as LEADER_EPOCH_FILE
from reference_broker.log.leader_epochs import LeaderEpochs
from reference_broker.log.lookup import FoundOffset
from reference_broker.log.producer_state import ProducerStates
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.log.recovery import Recovered
from reference_broker.log.segment import Segment, new_segment
from reference_broker.ports.disk import Disk
from reference_broker.ports.now import Now
from reference_broker.records.batch import BatchHeader, Buffer
from reference_broker.records.control import read_marker
from reference_broker.records.rules import Rules
from reference_broker.wire.fetch import AbortedTransaction, EpochEndOffset

__all__ = [
    "Appended",
    "FoundOffset",
    "OffsetOutOfRange",
    "Origin",
    "PartitionLog",
    "RecordsRefused",
    "UnexpectedOffset",
    "open_log",
    "run_to_end",
]

CLEANER_FILE = "cleaner-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"


class PartitionLog:
    """``log_start_offset <= high_watermark <= log_end_offset`` always. Opened by ``open_log``."""

    __slots__ = (
        "_config",
        "bases",
        "cleaned_offset",
        "cleaner_file",
        "directory",
        "disk",
        "durability",
        "epochs",
        "high_watermark",
        "log_end_offset",
        "log_start_file",
        "log_start_offset",
        "producers",
        "recovered",
        "recovery_point",
        "recovery_point_file",
        "rules",
        "segments",
        "topic_id",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig) -> None:
        self.disk = disk
        self.directory = directory
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        """Base offsets of ``segments``."""
        self.epochs = LeaderEpochs(Checkpoint(disk, f"{directory}/{LEADER_EPOCH_FILE}"))
        self.log_start_file = Checkpoint(disk, f"{directory}/{LOG_START_FILE}")
        self.recovery_point_file = Checkpoint(disk, f"{directory}/{RECOVERY_POINT_FILE}")
        self.recovery_point = 0
        """As in its file: segments that end at or before it were durable, indexes included."""
        self.cleaner_file = Checkpoint(disk, f"{directory}/{CLEANER_FILE}")
        self.cleaned_offset = 0
        """As in its file: of records below it, only the newest of each key are left."""
        self.producers = ProducerStates(config.producer_id_expiration_ms, config.unknown_producer_id_policy != "accept")
        self.durability = Durability()
        self.recovered = Recovered()
        self.topic_id = b""
        """Written beside the first records; empty: the directory's name says all."""
        self.config = config

    @property
    def config(self) -> LogConfig:
        """Settings; new ones are in force from the next append on."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self.rules = Rules(
            max_message_bytes=config.max_message_bytes,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            create_time=not config.is_log_append_time,
            keys_needed=config.is_compacted,
        )
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self.producers.reject_unknown = config.unknown_producer_id_policy != "accept"

    # --- what can be seen -------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of the earliest undecided transaction below it."""
        unstable = self.producers.first_unstable_offset(self.high_watermark)
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in [offset, end_offset), by first offset: what a reader of committed
        records must leave out."""
        return self.producers.aborted_between(offset, end_offset)

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch that the log knows of; -1 if none."""
        return self.epochs.latest

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def appended_since_sync(self) -> int:
        """Records that are not known to be durable."""
        return self.log_end_offset - max(self.durability.synced_offset, self.log_start_offset)

    @property
    def synced_offset(self) -> int:
        """Every record below it is durable."""
        return self.durability.synced_offset

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """The largest known epoch <= ``epoch`` and one past its last offset; (-1, -1) for an unknown one (KIP-320)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record at ``offset``; -1 if unknown."""
        return self.epochs.epoch_at(offset)

    # --- append -----------------------------------------------------------------------------------------------------

    def append(self, now: Now, records: Buffer, leader_epoch: int, *, origin: Origin = Origin.CLIENT) -> Appended:
        """As the leader: checks, numbers and writes one or more batches, all or nothing.

        Raises RecordsRefused (nothing written) and DiskError (nothing written).
        """
        return appending.append(self, now, records, leader_epoch, origin)

    def append_replicated(self, now: Now, records: Buffer) -> int:
        """As a follower: writes a leader's batches at their own offsets and epochs; returns the new log end offset.

        Raises RecordsRefused (damaged), UnexpectedOffset (below the log's end) and DiskError. Batches before the one
        that fails stay.
        """
        return appending.append_replicated(self, now, records)

    def assign_leader_epoch(self, epoch: int) -> None:
        """A leader notes its epoch at the log's end before it appends, so that an epoch without records counts too. In
        memory: the file follows with the first record, since a restart forgets what holds none; and after a failover
        thousands of logs note one at once."""
        self.epochs.assume(epoch, self.log_end_offset)

    def forget_empty_epochs(self) -> None:
        """As a follower: a leader epoch at the log's end that this node noted as the leader, and wrote nothing in, is
        not its new leader's."""
        self.epochs.drop(self.log_end_offset)

    def note_producer(self, header: BatchHeader, offset: int, timestamp_ms: int, batch: Buffer) -> None:
        """A batch with a producer ID stands in the log at ``offset``."""
        if not header.is_control:
            self.producers.record(header, offset, timestamp_ms)
            return
        marker = read_marker(batch, header)
        if marker is not None:
            self.producers.record_marker(header, offset, timestamp_ms, *marker)

    # --- segments ---------------------------------------------------------------------------------------------------

    def roll_if_due(self, now: Now) -> bool:
        """Starts a new segment if the active one is older than ``segment.ms``, or ``max.compaction.lag.ms``."""
        if not self.segments or not self.segments[-1].is_due(self.config.max_segment_ms, now.wall_ms):
            return False
        self.roll(now)
        return True

    def roll(self, now: Now) -> Segment:
        """Writes the active segment's indexes and starts an empty one, whose file name keeps the log end offset."""
        self._write_recovery_point()
        for path in self.segments[-1].write_indexes(self.disk):
            self.durability.changed(path)
        segment = new_segment(self.directory, self.log_end_offset, now.wall_ms)
        self.disk.append(segment.path, [])
        self.add_segment(segment)
        return segment

    def add_segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.durability.changed(segment.path)

    def segment_index_of(self, offset: int) -> int:
        """Which segment holds ``offset`` (or the hole before the next one)."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def _write_recovery_point(self) -> None:
        """Segments before the first one with anything unsynced need no scan after a crash."""
        dirty = self.durability.dirty
        point = next(
            (segment.base_offset for segment in self.segments if any(path in dirty for path in segment.paths)),
            self.bases[-1],
        )
        if point > max(self.recovery_point, self.segments[0].base_offset):
            self.recovery_point_file.replace([str(point)])
            self.recovery_point = point

    def lower_recovery_point(self, offset: int) -> None:
        """Before records from ``offset`` on are taken away: what comes in their place is not durable yet."""
        if offset < self.recovery_point:
            self.recovery_point_file.replace([str(offset)])
            self.recovery_point = offset

    def note_cleaned(self, offset: int) -> None:
        """A pass of the cleaner got so far; or records from there on are about to be taken away."""
        topic, _, partition = self.directory.rpartition("/")[2].rpartition("-")
        self.cleaner_file.replace([f"{topic} {partition} {offset}"])
        self.cleaned_offset = offset

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end_offset: int | None = None, at_least_one: bool = True) -> bytes:
        """Whole batches from the one that holds ``offset``, below ``end_offset`` (None: the high watermark).

        At most ``max_bytes``, except that the first batch comes whatever its size if ``at_least_one``. May return
        less than would fit (the rest of a segment, up to an index entry). Raises OffsetOutOfRange.
        """
        end_offset = self.high_watermark if end_offset is None else end_offset
        return reading.read(self, offset, max_bytes, end_offset, at_least_one)

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """Bytes of the batches from the one that holds ``offset`` up to ``end_offset``; 0 outside the log."""
        return reading.bytes_between(self, offset, end_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        """The first record whose timestamp is >= ``timestamp_ms``."""
        return lookup.offset_for_timestamp(self, timestamp_ms)

    def offset_of_max_timestamp(self) -> FoundOffset:
        """The first record with the largest timestamp (KIP-734); (-1, -1, -1) if there is none."""
        return lookup.offset_of_max_timestamp(self)

    # --- offsets that move ------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Never goes back, never beyond the log end. True if it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def truncate_to(self, offset: int) -> int:
        """Takes away every batch that reaches ``offset`` or beyond; returns the new log end offset, which is lower
        than ``offset`` if that lies inside a batch."""
        return removal.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int, now: Now) -> None:
        """Empties the log; the next record gets ``offset`` (a replica that starts from a snapshot)."""
        removal.truncate_fully_and_start_at(self, offset, now.wall_ms)

    def delete_records_before(self, offset: int) -> int:
        """Moves the log start (kept in its checkpoint file) and deletes segments that lie wholly before it; returns
        the log start. Raises OffsetOutOfRange beyond the high watermark."""
        return removal.delete_records_before(self, offset)

    def enforce_retention(self, now: Now) -> int:
        """Deletes old segments by ``retention.ms`` and ``retention.bytes``, never at or above the high watermark;
        returns how many. An active segment that is too old is rolled first."""
        return removal.enforce_retention(self, now)

    def expire_producers(self, now: Now) -> int:
        """P-7. Called by the node every ``producer.id.expiration.check.interval.ms``; appends do it too."""
        return self.producers.expire(now.wall_ms)

    # --- durability -------------------------------------------------------------------------------------------------

    def unsynced_paths(self) -> tuple[str, ...]:
        """Files with bytes that are not known to be durable."""
        return tuple(self.durability.dirty)

    def sync_point(self) -> SyncPoint:
        """Taken when a sync of its ``paths`` is asked for, given to ``mark_synced`` when it has completed."""
        return self.durability.point(self.log_end_offset)

    def mark_synced(self, point: SyncPoint) -> None:
        """All bytes appended before ``point`` was taken are durable."""
        clean = self.durability.synced(point)
        if self.log_start_file.new_path in clean:
            self.log_start_file.settle()

    def close_cleanly(self) -> None:
        """Writes the index files, so that a clean start need not scan. Sync ``unsynced_paths()`` afterwards."""
        for segment in self.segments:
            for path in segment.write_indexes(self.disk):
                self.durability.changed(path)


def open_log(
    disk: Disk, directory: str, config: LogConfig, now: Now, clean: bool
) -> Generator[None, None, PartitionLog]:
    """Opens a partition's log, in slices: yields about every 256 KiB of scanning, returns the log at its end.

    ``clean``: the node was shut down cleanly, so bytes and index files are trusted. Otherwise segments from the
    recovery point on are read whole, the log is cut at the first bad batch, and indexes are made anew. The high
    watermark starts at the log start offset. Raises DiskError.
    """
    log = PartitionLog(disk, directory, config)
    yield from recovery.load(log, now, clean)
    return log


def run_to_end(opening: Generator[None, None, PartitionLog]) -> PartitionLog:
    """Opens a log in one go."""
    while True:
        try:
            next(opening)
        except StopIteration as stop:
            log = stop.value
            assert isinstance(log, PartitionLog)
            return log
