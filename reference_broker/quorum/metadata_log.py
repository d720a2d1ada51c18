"""The metadata log on disk: an ordinary partition log, and its snapshots.

What the values of its records mean is known only to those who read them.

Epochs are those of the batches themselves: the epochs file is never trusted after a crash, since a follower may have
replaced records that the file still speaks of.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.leader_epochs import FILE_NAME as LEADER_EPOCH_FILE
from reference_broker.log.partition_log import Origin, PartitionLog, open_log
from reference_broker.ports.disk import Disk
from reference_broker.ports.now import Now
from reference_broker.quorum.leader_change import leader_change_record
from reference_broker.quorum.node_files import METADATA_DIRECTORY, StartRefused
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch, Provenance
from reference_broker.records.batch import InvalidRecords, checked, read_header, validate
from reference_broker.records.builder import build
from reference_broker.records.reader import Record, read_records

MAX_BATCH_BYTES = 8 * 2**20
"""Kafka's raft batch limit (KafkaRaftClient.MAX_BATCH_SIZE_BYTES)."""

READ_BYTES = 32 * 2**10
"""Read in one slice of replay: some 400 records, below 5 ms (a larger batch is read whole)."""


class BatchTooLarge(Exception):  # noqa: N818 - the limit is the news
    """Records that do not fit one batch; nothing was written."""


class CutBelowHighWatermark(Exception):  # noqa: N818 - says what was asked for
    """A leader without committed records wants them cut: the node must end rather than forget them."""


class Snapshots(Protocol):
    """What the log needs to know of the store of snapshots (``snapshots.store.SnapshotStore``)."""

    @property
    def latest(self) -> OffsetAndEpoch | None: ...

    @property
    def oldest(self) -> OffsetAndEpoch | None: ...


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The values of records that were appended together, with the offset and epoch of the last. A control batch has
    no values."""

    values: tuple[bytes, ...]
    provenance: Provenance
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Valid:
    """The fetcher's log is a part of this one."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The fetcher must cut its log: this one's last epoch not above the fetcher's, and where that ends."""

    end: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """What the fetcher lacks is only in a snapshot."""

    id: OffsetAndEpoch


Validity: TypeAlias = Valid | Diverging | NeedsSnapshot
VALID = Valid()


@dataclass(slots=True)
class MetadataLog:
    """Every append is one batch: whole or not at all (T-5). ``log.high_watermark`` is what is known to be committed."""

    log: PartitionLog
    snapshots: Snapshots

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def synced_offset(self) -> int:
        """Every record below it is durable."""
        return self.log.synced_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def end(self) -> OffsetAndEpoch:
        """Right after a snapshot took the log's place, and for a log without records: the snapshot's; (0, 0) if there
        never was anything."""
        log = self.log
        offset = log.log_end_offset
        if offset > log.log_start_offset:
            return OffsetAndEpoch(offset, log.epochs.epoch_at(offset - 1))
        latest = self.snapshots.latest
        return latest if latest is not None and latest.offset == offset else OffsetAndEpoch(offset, 0)

    # Appending

    def append(self, now: Now, values: Sequence[bytes], epoch: int) -> Provenance:
        """One batch of records with these values. After BatchTooLarge or DiskError the log is as before."""
        stamped = [Record(timestamp_ms=now.wall_ms, value=value) for value in values]
        return self._append(now, build(stamped, leader_epoch=epoch), epoch)

    def append_leader_change(self, now: Now, leader_id: int, voters: Sequence[int], epoch: int) -> Provenance:
        """The control record that opens an epoch (LeaderChangeMessage version 0)."""
        record = leader_change_record(now.wall_ms, leader_id, voters)
        return self._append(now, build([record], leader_epoch=epoch, is_control=True), epoch)

    def append_fetched(self, now: Now, data: bytes | memoryview, leader_epoch: int) -> int:
        """As a follower: appends whole batches that follow on each other; stops before a torn or damaged one, one that
        does not follow, and one of an epoch above ``leader_epoch`` or below the log's. Returns how many bytes it took.
        """
        view, size = memoryview(data), len(data)
        if not size:
            return 0
        taken, next_offset, epoch = 0, self.log.log_end_offset, self.end.epoch
        try:
            while taken < size:
                header = checked(view, taken, size)
                good = header.base_offset == next_offset and header.last_offset_delta >= 0
                if not good or not epoch <= header.leader_epoch <= leader_epoch:
                    break
                taken, next_offset, epoch = taken + header.size_bytes, header.last_offset + 1, header.leader_epoch
        except InvalidRecords:
            pass  # What stands before the damage is good; the rest is asked for again.
        if taken:
            self.log.append_replicated(now, view[:taken])
        return taken

    def _append(self, now: Now, batch: bytes, epoch: int) -> Provenance:
        if len(batch) > MAX_BATCH_BYTES:
            raise BatchTooLarge(f"a batch of {len(batch)} bytes, at most {MAX_BATCH_BYTES} are allowed")
        appended = self.log.append(now, batch, epoch, origin=Origin.BROKER)
        return Provenance(appended.last_offset, epoch, now.wall_ms)

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """Whole batches below ``end_offset``, at least one if there is any. Raises OffsetOutOfRange."""
        return self.log.read(offset, max_bytes, end_offset, True)

    def batches(self, offset: int, end_offset: int) -> Iterator[LogBatch]:
        """The batches of one slice from ``offset`` on, at least one if there is any.

        Their CRC is looked at again: after a clean stop nobody else does. Raises InvalidRecords.
        """
        data = self.log.read(offset, READ_BYTES, end_offset, True)
        for position, header in validate(data):
            yield read_batch(data[position : position + header.size_bytes])

    # Comparing

    def end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where the largest epoch not above ``epoch`` ends. An epoch above all: the log's end. One from before the
        oldest snapshot: that snapshot."""
        end = self.end
        if epoch >= end.epoch:
            return end
        known = self.log.end_offset_for_epoch(epoch)
        if known.epoch < 0:
            return end
        oldest = self.snapshots.oldest
        if oldest is not None and known.end_offset == oldest.offset and known.epoch == epoch:
            return oldest
        return OffsetAndEpoch(known.end_offset, known.epoch)

    def validate(self, offset: int, epoch: int) -> Validity:
        """What a fetch from ``offset`` with the last fetched ``epoch`` gets (S-10)."""
        start, oldest, latest = self.start_offset, self.snapshots.oldest, self.snapshots.latest
        if oldest is not None and latest is not None:
            at_start = offset == start == oldest.offset and epoch != oldest.epoch
            if offset == 0 or offset < start or at_start or epoch < oldest.epoch:
                return NeedsSnapshot(latest)
        elif offset == 0 == start:
            return VALID
        end = self.end_for_epoch(epoch)
        return VALID if end.epoch == epoch and offset <= end.offset else Diverging(end)

    # Moving the ends

    def truncate_to_diverging(self, end: OffsetAndEpoch) -> int:
        """Cuts what a leader with the diverging ``end`` does not have; returns the new end offset. Committed records
        are never cut: a leader without them must not have been elected."""
        own = self.end_for_epoch(end.epoch)
        return self.truncate_to(min(own.offset, end.offset) if own.epoch == end.epoch else own.offset)

    def truncate_to(self, offset: int) -> int:
        """Takes away every batch that reaches ``offset`` or beyond; returns the new end offset. Raises
        CutBelowHighWatermark: the node must end rather than forget what was committed."""
        high_watermark = self.log.high_watermark
        if offset < high_watermark:
            raise CutBelowHighWatermark(
                f"The metadata log would be cut at offset {offset}, below its high watermark {high_watermark}: a "
                "leader without committed records was elected, since voters lost what they had made durable; restore "
                "their directories from copies."
            )
        return self.log.truncate_to(offset)

    def install_snapshot(self, now: Now, id: OffsetAndEpoch) -> bool:  # noqa: A002 - Kafka's word
        """The log starts anew, empty, where the snapshot ends, unless it already reaches further (KafkaMetadataLog's
        truncateToLatestSnapshot); True if it did."""
        end = self.end
        if (id.epoch, id.offset) <= (end.epoch, end.offset):
            return False
        self.log.truncate_fully_and_start_at(id.offset, now)
        return True

    def delete_before(self, id: OffsetAndEpoch) -> bool:  # noqa: A002 - Kafka's word
        """The log starts at a snapshot that is held; whole segments go. False where it starts there or later, or what
        the snapshot holds is not known to be committed."""
        if not self.log.log_start_offset < id.offset <= self.log.high_watermark:
            return False
        self.log.delete_records_before(id.offset)
        return True

    # Durability

    @property
    def is_durable(self) -> bool:
        """Nothing waits to be synced."""
        return not self.log.durability.dirty

    def sync_point(self) -> SyncPoint:
        """Taken when a sync of its ``paths`` is asked for, given to ``mark_synced`` when it has completed."""
        return self.log.sync_point()

    def mark_synced(self, point: SyncPoint) -> None:
        self.log.mark_synced(point)


def read_batch(batch: bytes) -> LogBatch:
    """One whole batch, whose CRC was looked at. Raises InvalidRecords."""
    header = read_header(batch)
    values: tuple[bytes, ...] = ()
    if not header.is_control:
        values = tuple(record.value or b"" for record in read_records(batch))
    return LogBatch(
        values, Provenance(header.last_offset, header.leader_epoch, header.max_timestamp_ms), header.size_bytes
    )


def open_metadata_log(
    disk: Disk, config: BrokerConfig, now: Now, clean: bool, snapshots: Snapshots
) -> Generator[None, None, MetadataLog]:
    """Recovers it in slices: a torn tail is cut at the first bad batch; where the newest snapshot lies beyond the log
    (a crash between its rename and the log's truncation), the log starts there. Raises StartRefused for a log that
    begins where no snapshot reaches (KAFKA-14240)."""
    log_config = LogConfig(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        retention_bytes=-1,
        retention_ms=-1,
        max_message_bytes=MAX_BATCH_BYTES,
    )
    if not clean:
        disk.delete(f"{METADATA_DIRECTORY}/{LEADER_EPOCH_FILE}")
    log = MetadataLog((yield from open_log(disk, METADATA_DIRECTORY, log_config, now, clean)), snapshots)
    latest = snapshots.latest
    if log.start_offset > 0 and (latest is None or latest.offset < log.start_offset):
        raise StartRefused(
            f"The metadata log in {METADATA_DIRECTORY} begins at offset {log.start_offset}, and no snapshot reaches "
            "there: restore the directory from a copy or use an empty one."
        )
    if latest is not None:
        log.install_snapshot(now, latest)
        _take_as_committed(log, latest)
    return log


def _take_as_committed(log: MetadataLog, latest: OffsetAndEpoch) -> None:
    """Snapshots hold only what is committed. Where a crash forgot that the log was to start at the oldest one, it
    does so again."""
    log.log.advance_high_watermark(latest.offset)
    oldest = log.snapshots.oldest
    if oldest is not None and 0 < log.start_offset < oldest.offset:
        log.delete_before(oldest)
