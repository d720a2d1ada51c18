"""Recovery of a log at a start (Kafka's LogLoader): trusted files, rebuilt indexes, truncation of a torn tail.

The README of this room describes the steps of a start.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_broker.log.checkpoints import PARTITION_METADATA_FILE, Checkpoint, OffsetCheckpoints
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import Durability
from reference_broker.log.indexes import TRANSACTION_CHECKSUM_SUFFIX, TRANSACTION_SUFFIX
from reference_broker.log.leader_epochs import FILE_NAME as LEADER_EPOCH_FILE
from reference_broker.log.leader_epochs import LeaderEpochFileCache
from reference_broker.log.producer_replay import index_again, replay
from reference_broker.log.producer_state import ProducerStateManager, SnapshotDamaged, decode_snapshot, offset_of
from reference_broker.log.quarantine import Damage, LogDamaged, Quarantine, is_segment, read_quarantine
from reference_broker.log.segment import (
    MAX_RELATIVE_OFFSET,
    NAME_DIGITS,
    WIDE_GAP,
    Segment,
    headers,
    new_segment,
    whole_batches,
)
from reference_broker.log.segments import Segments, finish_swaps, needs_recovery
from reference_broker.log.tombstone_horizon import TombstoneHorizon
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import RECOVERED_BYTES_PER_SLICE, Sliced
from reference_broker.records.batch import CRC_FROM, BatchHeader, InvalidRecords, checksum
from reference_broker.wire.errors import ErrorCode

INDEX_SUFFIXES = (".index", ".timeindex", TRANSACTION_SUFFIX, TRANSACTION_CHECKSUM_SUFFIX)
LOG_FILES = (".log", *INDEX_SUFFIXES, ".snapshot")
MAX_OFFSET = 2**63 - 1


class Cut(NamedTuple):
    """Bytes that were removed from a file, up to its end."""

    path: str
    position: int
    """The position at which they began."""
    size_bytes: int
    offset: int
    """The offset of the first record in them."""


class Flaw(NamedTuple):
    """The reason why a segment is not whole. It is good up to its ``size_bytes`` and ``next_offset``."""

    why: str


@dataclass(slots=True)
class RecoveryReport:
    """Report of the opening of a log."""

    verified_bytes: int = 0
    cuts: list[Cut] = field(default_factory=list)
    """The parts of a torn tail that were removed."""
    deleted_segments: int = 0
    snapshot: str = ""
    """The file from which producers came, if any did."""
    damaged_snapshots: list[tuple[str, str]] = field(default_factory=list)
    """Files that were not loaded, and why."""

    @property
    def cut_bytes(self) -> int:
        return sum(cut.size_bytes for cut in self.cuts)


@dataclass(slots=True)
class Recovered:
    """The parts that a log is built from."""

    segments: Segments
    epochs: LeaderEpochFileCache
    producers: ProducerStateManager
    checkpoints: OffsetCheckpoints
    log_start_offset: int
    """May be beyond the end of the last segment, if a power loss took the records behind a log start to which
    DeleteRecords had moved the log."""
    local_start_offset: int
    """Larger than ``log_start_offset`` if records are in the remote tier only."""
    cleaned_offset: int
    horizon: TombstoneHorizon
    report: RecoveryReport
    quarantine: Quarantine | None


class Recovery:
    """One run over one partition's directory."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, now: Now, clean: bool) -> None:
        self.disk = disk
        self.directory = directory
        self.index_interval_bytes = config.index_interval_bytes
        self.now = now
        self.clean = clean
        self.report = RecoveryReport()
        self.durability = Durability()
        self.segments = Segments(disk, directory, self.durability)
        self.epochs = LeaderEpochFileCache(
            Checkpoint(disk, f"{directory}/{LEADER_EPOCH_FILE}"), self.durability.note_changed
        )
        self.checkpoints = OffsetCheckpoints(disk, directory)
        self.horizon = TombstoneHorizon(disk, directory)
        self.producers = ProducerStateManager.of(config, now.wall_ms)
        self.log_start_offset = self.local_start = 0
        self.cleaned_offset = 0
        self.is_compacted = config.is_compacted
        self.lost_epochs = False
        """Whether the file of leader epochs is damaged or missing."""
        self.first_epoch: int | None = None
        self.last_epoch = -1
        self.next_base = MAX_OFFSET
        self.boundaries: list[int] = []
        """Offsets that no batch spans, in ascending order: what was synced, and where snapshots of producers are."""
        self.has_markers = False
        self.open: dict[int, int] = {}
        """The start offset of each producer's open transaction, while segments are scanned."""
        self.names: Sequence[str] = ()
        self.quarantine: Quarantine | None = None

    def run(self) -> Sliced[Recovered]:
        """Yield about every 256 KiB of scanning. Raise DiskError, and LogDamaged for damage that is no torn end; then
        the log's records are as they were found."""
        names: Sequence[str] = list(self.disk.list(self.directory))
        if names:
            if needs_recovery(names):
                names = yield from finish_swaps(self.disk, self.directory, names)
            self.quarantine = read_quarantine(self.disk, self.directory, names)
            self.cleaned_offset, self.log_start_offset = self.checkpoints.load(names)
            self.horizon.load(names, self.cleaned_offset)
            local = self.checkpoints.local
            if local.has_begun:  # Decision interrupted-tier-start
                names = self._empty(names)
            self.local_start = max(self.log_start_offset, local.offset)
            rows = self.epochs.checkpoint.read(names)
            self.epochs.load(rows)
            self.lost_epochs = rows is None
            known_epochs = (self.epochs.epochs[:], self.epochs.starts[:])
            if local.offset:
                self.epochs.put_before(local.offset, local.epochs)
            yield from self._load_segments(names)
            self._check_end()
            self._settle_offsets()
            self.epochs.saved = (self.epochs.epochs, self.epochs.starts) == known_epochs
            yield from self._find_producers(names)
            if not self.clean and PARTITION_METADATA_FILE in names:
                # The process that wrote it may have ended before it was synced.
                self.durability.note_changed(f"{self.directory}/{PARTITION_METADATA_FILE}")
        return Recovered(
            self.segments,
            self.epochs,
            self.producers,
            self.checkpoints,
            self.log_start_offset,
            self.local_start,
            self.cleaned_offset,
            self.horizon,
            self.report,
            self.quarantine,
        )

    def _empty(self, names: Sequence[str]) -> Sequence[str]:
        """Delete the records of a replica that was being emptied to begin in the remote tier. Wait for the disk."""
        self.checkpoints.lower_recovery_point(0)
        self.checkpoints.lower_synced(0)
        if self.cleaned_offset:
            self.cleaned_offset = 0
            self.checkpoints.write_cleaned(0)
        for name in names:
            if name == LEADER_EPOCH_FILE or name.endswith(LOG_FILES):
                self.disk.delete(f"{self.directory}/{name}")
        self.disk.make_durable(f"{self.directory}/{LEADER_EPOCH_FILE}")
        self.checkpoints.local.forget()
        return list(self.disk.list(self.directory))

    def _find_producers(self, names: Sequence[str]) -> Sliced[None]:
        """Find producers and aborted transactions, after the log's end is known."""
        segments, snapshots = self.segments, self.segments.snapshots
        snapshots.find(names, segments.bases, self.log_start_offset, segments[-1].next_offset if segments else -1)
        if not segments:
            return
        unknown = [segment for segment in segments if not segment.aborted.is_known]
        if unknown:
            newest = snapshots.newest(segments.bases[0], MAX_OFFSET)
            before = newest[0] if newest is not None else 0
            without_snapshot = [segment for segment in unknown if segment.base_offset < before]
            yield from index_again(segments, self.producers, without_snapshot)
        self.producers = yield from replay(segments, self.producers, self.log_start_offset)
        segments[-1].aborted.hold(self.disk)
        for segment in unknown:
            if segment is not segments[-1]:
                segments.write_indexes(segment)
                segment.aborted.release()
        self.report.snapshot, self.report.damaged_snapshots = snapshots.loaded, snapshots.damaged

    def _load_segments(self, names: Sequence[str]) -> Sliced[None]:
        self.names = names
        snapshots = (offset_of(name) for name in names)
        self.boundaries = sorted(
            {self.checkpoints.recovery_point, self.checkpoints.durable_end, *(at for at in snapshots if at is not None)}
        )
        bases = sorted(int(name[:NAME_DIGITS]) for name in names if is_segment(name))
        self._delete_retired(bases)
        self._delete_stray_indexes(names, bases)
        if bases and self.local_start > self.log_start_offset:
            self.open = self._open_at(bases[0])
        for at, base in enumerate(bases):
            segment = new_segment(self.directory, base, self.now.wall_ms)
            if self._is_unused(segment):  # Decision unused-segment
                segment.delete(self.disk)
                continue
            misfit = self._misfit(base)
            if misfit is not None:
                first_lost, why = misfit
                if self._was_durable(first_lost):  # Decision misfit-segment
                    raise LogDamaged(Damage(segment.path, 0, first_lost, why))
                self._cut_away(bases[at:])
                break
            self.next_base = bases[at + 1] if at + 1 < len(bases) else MAX_OFFSET
            segment.open_from = min(self.open.values(), default=-1)
            trusted = self.clean or self.next_base <= self.checkpoints.recovery_point  # Decision segment-trusted
            size = self.disk.size(segment.path)
            flaw: Flaw | None = Flaw("")
            begun = self.open.copy()
            if trusted:
                flaw = yield from self._scan(segment, size, verify=False)
                if not self.clean and self.next_base >= self.checkpoints.durable_end:
                    # An earlier start may have cut off a torn end here, and died before that was synced.
                    self.durability.note_changed(segment.path)
            if flaw is not None:
                segment = new_segment(self.directory, base, self.now.wall_ms)
                segment.open_from, self.open = min(begun.values(), default=-1), begun
                flaw = yield from self._recover(segment, size, bases[at + 1 :])
            self.segments.add(segment)
            self.last_epoch = max(self.last_epoch, segment.last_epoch)
            if flaw is not None:
                break

    def _open_at(self, offset: int) -> dict[int, int]:
        """Return where the transactions began that are open at the local log start. Only a snapshot has that."""
        path = self.segments.snapshots.path(offset)
        if path.rpartition("/")[2] not in self.names:
            return {}
        try:
            producers = dict(decode_snapshot(self.disk.read(path, 0, self.disk.size(path))))
        except SnapshotDamaged:
            return {}
        return {
            who: producer.current_txn_first_offset
            for who, producer in producers.items()
            if producer.current_txn_first_offset >= 0
        }

    def _was_durable(self, offset: int) -> bool:
        """Return whether the record was on the disk. Then its loss is damage. Otherwise it may be lost with the power,
        as the end of the log."""
        return self.clean or offset < self.checkpoints.durable_end

    def _lost_start(self, base: int) -> int | None:
        """The offset from which records are gone, if the first segment should have begun before ``base``.

        Files are deleted only after the log start is durable behind them. Without a log start of its own, as in Kafka's
        and in old directories, a log begins at latest with its first leader epoch. If the file of epochs is damaged or
        missing and nothing is known to be durable, a power loss may have taken that file and the first segment: the log
        is taken to begin at 0. Kafka has had that file since it has had the batches that can be read here. If it is
        whole and has no epoch, the start is unknown.
        """
        begins = self.epochs.starts[:1] if self.local_start == 0 else [self.local_start]
        if not begins and self.lost_epochs and not self._was_durable(0):
            begins = [0]
        return begins[0] if begins and begins[0] < base else None

    def _is_unused(self, segment: Segment) -> bool:
        """Return whether a file without records lies inside the segment before it. The disk failed when the file was
        made, and the log went on in that segment with a batch that still fitted into it. All records there are
        whole."""
        before = self.segments.items[-1] if self.segments.items else None
        is_inside = before is not None and before.base_offset < segment.base_offset < before.next_offset
        return is_inside and self.disk.size(segment.path) == 0

    def _misfit(self, base: int) -> tuple[int, str] | None:
        """Return the reason why a segment does not continue where the previous one ends, with the first offset that is
        in doubt.

        A power loss leaves that above the durable end only: whole batches at an end look like nothing when they are
        lost, a deleted segment may come back, and the name of the second segment may survive where that of the first
        does not. A log that begins behind such a hole would take the records in it from all other replicas once it
        leads. So it is emptied. Our cleaner leaves no hole, and a follower only one that no segment could hold. A hole
        that other software left in a compacted log below the recovery point is taken as it is.
        """
        if not self.segments.items:
            begin = self._lost_start(base)
            return None if begin is None else (begin, f"the records from offset {begin} to {base} before it are gone")
        end = self.segments.items[-1].next_offset
        if base < end:
            return base, f"it overlaps the segment before it, which ends at {end}"
        is_below = self.clean or base <= self.checkpoints.recovery_point
        if base > end and base - end <= WIDE_GAP and not (self.is_compacted and is_below):
            return end, f"the records from offset {end} to {base} before it are gone"
        return None

    def _delete_retired(self, bases: list[int]) -> None:
        """Delete segments that end at or before the log start: an earlier deletion was not finished."""
        while len(bases) > 1 and bases[1] <= self.local_start:
            new_segment(self.directory, bases.pop(0), self.now.wall_ms).delete(self.disk)

    def _delete_stray_indexes(self, names: Sequence[str], bases: Sequence[int]) -> None:
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in INDEX_SUFFIXES and not (stem.isdecimal() and int(stem) in bases):
                self.disk.delete(f"{self.directory}/{name}")

    def _recover(self, segment: Segment, size: int, later: Sequence[int]) -> Sliced[Flaw | None]:
        """Read every byte, and rebuild the indexes. Truncate behind the last good batch if that is the log's torn
        end.

        The ``later`` segments go before that, so that a start that dies in between leaves no hole. Raise LogDamaged
        if the flaw is no torn end.
        """
        segment.delete_indexes(self.disk)
        flaw = yield from self._scan(segment, size, verify=True)
        self.report.verified_bytes += size
        if flaw is not None:
            position, offset = segment.size_bytes, segment.next_offset
            if self._was_durable(offset):  # Decision bad-batch
                raise LogDamaged(Damage(segment.path, position, offset, flaw.why))
            self._cut_away(later)
            self.report.cuts.append(Cut(segment.path, position, size - position, offset))
            self.disk.truncate(segment.path, position)
        self.durability.note_changed(segment.path)
        return flaw

    def _cut_away(self, bases: Sequence[int]) -> None:
        """Segments behind the log's end would leave a hole, so they go."""
        for base in reversed(bases):
            segment = new_segment(self.directory, base, self.now.wall_ms)
            self.report.cuts.append(Cut(segment.path, 0, self.disk.size(segment.path), base))
            self.report.deleted_segments += 1
            segment.delete(self.disk)

    def _scan(self, segment: Segment, size: int, *, verify: bool) -> Sliced[Flaw | None]:
        """Learn a segment from its batches: sizes, timestamps, epochs, and the indexes unless its files hold them.
        Aborted transactions that are in no file are found later. None if batches fill the file and the index is theirs.
        Otherwise the segment ends before the first bad batch."""
        disk = self.disk
        indexed = not verify and segment.offsets.load(disk, size) and segment.times.load(disk)  # Decision index-files
        if not indexed:
            segment.offsets.clear()
            segment.times.clear()
            if not verify:
                disk.delete(segment.offsets.path)
                disk.delete(segment.times.path)
        segment.aborted.load(disk, () if verify else self.names)
        self.has_markers = False
        due = RECOVERED_BYTES_PER_SLICE
        entries = 0
        segment.last_epoch = self.last_epoch
        batches = _verified(disk, segment.path, size) if verify else headers(disk, segment.path, 0, size)
        try:
            for position, header in batches:
                why = _disorder(segment, header, self.next_base, self.boundaries)
                if why is not None:
                    return Flaw(why)
                if indexed and segment.offsets.has_entry(entries, position):
                    if segment.offsets.last_offsets[entries] != header.last_offset - segment.base_offset:
                        return Flaw("an entry of its index is wrong")
                    entries += 1
                self._learn(segment, position, header, indexed)
                if position >= due:
                    due = position + RECOVERED_BYTES_PER_SLICE
                    yield
        except InvalidRecords as bad:
            return Flaw(bad.message or "no batch")
        finally:
            segment.aborted.settle(self.has_markers, segment.next_offset)
            segment.aborted.release()
        if indexed:
            if entries < len(segment.offsets) or not segment.has_sound_indexes:
                return Flaw("its index is of another segment")
            segment.bytes_since_entry = size - segment.offsets.boundary_at_or_before(size)
        return None

    def _learn(self, segment: Segment, position: int, header: BatchHeader, indexed: bool) -> None:
        if indexed:
            segment.see_timestamp(position, header)
            if header.record_count == 0:
                segment.note_empty(header.last_offset + 1)
            segment.size_bytes = position + header.size_bytes
            segment.next_offset = header.last_offset + 1
        else:
            segment.add(header, header.base_offset, header.max_timestamp_ms, self.index_interval_bytes)
        segment.last_epoch = max(segment.last_epoch, header.leader_epoch)
        if self.first_epoch is None:
            self.first_epoch = header.leader_epoch
        # Also of batches before the log start: the cleaner may have taken away those between it and the next one.
        self.epochs.learn(header.leader_epoch, max(header.base_offset, self.local_start))
        if header.producer_id >= 0:
            if header.is_control:
                self.has_markers = True
                self.open.pop(header.producer_id, None)
            elif header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)

    def _check_end(self) -> None:
        """A truncation lowers the durable end first. So a log that ends below it has lost records that were
        durable, even if all of its batches are good. Raise LogDamaged."""
        segments = self.segments.items
        end = segments[-1].next_offset if segments else self.local_start
        durable_end = self.checkpoints.durable_end
        if end < durable_end and self.quarantine is None:  # Decision log-ends-early
            path = new_segment(self.directory, end, self.now.wall_ms).path
            source = self.checkpoints.durable_end_path
            why = f"{source} says that records up to offset {durable_end} were synced, and they are gone"
            raise LogDamaged(Damage(path, 0, end, why))

    def _settle_offsets(self) -> None:
        segments, durability = self.segments.items, self.durability
        end = segments[-1].next_offset if segments else self.local_start
        has_remote_part = self.local_start > self.log_start_offset
        if segments:
            self.local_start = max(self.local_start, segments[0].base_offset)
        if not has_remote_part:
            self.log_start_offset = self.local_start
        if self.first_epoch is not None:
            self.epochs.reach_back(self.first_epoch, self.local_start)
        unsynced = next((segment.base_offset for segment in segments if segment.path in durability.dirty), None)
        durability.synced_offset = end if unsynced is None else unsynced
        durability.last_cut = durability.changes  # Nor is it known whether earlier deletions are durable.
        self.checkpoints.lower_recovery_point(end)  # Records that are appended next are not durable.
        if end < self.checkpoints.synced:
            self.checkpoints.lower_synced(end)
        if self.cleaned_offset > end:  # Records that are appended next are not cleaned.
            self.cleaned_offset = self.log_start_offset
            self.checkpoints.write_cleaned(self.cleaned_offset)


def _disorder(segment: Segment, header: BatchHeader, next_base: int, boundaries: Sequence[int]) -> str | None:
    """Return the reason why the batch cannot follow those before it, or None. Offsets and leader epochs never go back
    in a log, a gap does not lead beyond the segment, nor beyond what an index can hold, and no batch spans one of the
    ``boundaries``. The CRC covers neither."""
    if header.base_offset < segment.next_offset or header.last_offset_delta < 0:
        return f"a batch of offsets {header.base_offset} to {header.last_offset} is where {segment.next_offset} is due"
    if segment.next_offset < header.base_offset >= next_base:
        return f"a batch of offset {header.base_offset} is before the segment of {next_base}"
    at = bisect_right(boundaries, header.base_offset)
    if at < len(boundaries) and boundaries[at] <= header.last_offset:
        return f"a batch of offsets {header.base_offset} to {header.last_offset} spans {boundaries[at]}"
    if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return f"a batch of offsets up to {header.last_offset} is in the segment of {segment.base_offset}"
    if 0 <= header.leader_epoch < segment.last_epoch:
        return f"its leader epoch goes back from {segment.last_epoch} to {header.leader_epoch}"
    return None


def _verified(disk: Disk, path: str, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the same as ``segment.headers``. Raise InvalidRecords also if a CRC is wrong."""
    for position, header, batch in whole_batches(disk, path, 0, end, RECOVERED_BYTES_PER_SLICE):
        if checksum(batch[CRC_FROM:]) != header.crc:
            raise InvalidRecords(ErrorCode.corrupt_message, f"{path}: wrong CRC at byte {position}")
        yield position, header
