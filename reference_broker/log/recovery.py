"""Reads a log's files at a start, decides which of them can be trusted, and cuts the log where it is damaged.

The README of this room says how a start walks through.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from reference_broker.log import swapping
from reference_broker.log.checkpoint import Checkpoint
from reference_broker.log.config import LogConfig
from reference_broker.log.durability import Durability
from reference_broker.log.leader_epochs import FILE_NAME as LEADER_EPOCH_FILE
from reference_broker.log.leader_epochs import LeaderEpochs
from reference_broker.log.offset_checkpoints import OffsetCheckpoints
from reference_broker.log.producer_state import ProducerStates
from reference_broker.log.segment import NAME_DIGITS, Segment, headers, new_segment, whole_batches
from reference_broker.log.segments import Segments
from reference_broker.ports.disk import Disk
from reference_broker.ports.now import Now
from reference_broker.records.batch import CRC_FROM, BatchHeader, InvalidRecords, checksum
from reference_broker.wire.errors import ErrorCode

SLICE_BYTES = 256 * 1024
LOG_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex")
MAX_OFFSET = 2**63 - 1


@dataclass(slots=True)
class RecoveryReport:
    """What opening the log did. ``verified_bytes`` were read with their CRCs. ``cut_bytes`` were removed behind the
    last good batch."""

    verified_bytes: int = 0
    cut_bytes: int = 0
    deleted_segments: int = 0


@dataclass(slots=True)
class Recovered:
    """The parts that a log is built from. ``log_start_offset`` may lie beyond the end of the last segment. That happens
    if a power loss took the records behind a log start to which DeleteRecords had moved the log."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerStates
    checkpoints: OffsetCheckpoints
    log_start_offset: int
    cleaned_offset: int
    report: RecoveryReport


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
        self.epochs = LeaderEpochs(Checkpoint(disk, f"{directory}/{LEADER_EPOCH_FILE}"))
        self.checkpoints = OffsetCheckpoints(disk, directory)
        self.producers = ProducerStates.of(config, now.wall_ms)
        self.log_start_offset = 0
        self.cleaned_offset = 0

    def run(self) -> Generator[None, None, Recovered]:
        """Yields about every 256 KiB of scanning. Raises DiskError."""
        names = list(self.disk.list(self.directory))
        if names:
            if swapping.needs_recovery(names):
                names = yield from swapping.recover(self.disk, self.directory, names)
            self.cleaned_offset, self.log_start_offset = self.checkpoints.load(names)
            self.epochs.load(self.epochs.checkpoint.read(names))
            known_epochs = (self.epochs.epochs[:], self.epochs.starts[:])
            yield from self._load_segments(names)
            self.epochs.saved = (self.epochs.epochs, self.epochs.starts) == known_epochs
            self._settle_offsets()
        return Recovered(
            self.segments,
            self.epochs,
            self.producers,
            self.checkpoints,
            self.log_start_offset,
            self.cleaned_offset,
            self.report,
        )

    def _load_segments(self, names: Sequence[str]) -> Generator[None, None, None]:
        bases = sorted(int(name[:NAME_DIGITS]) for name in names if _is_segment(name))
        self._delete_retired(bases)
        self._delete_stray_indexes(names, bases)
        for at, base in enumerate(bases):
            end = bases[at + 1] if at + 1 < len(bases) else None
            trusted = self.clean or (end is not None and end <= self.checkpoints.recovery_point)
            if not trusted and self._follows_a_hole(base):
                self._delete_after(bases[at:])
                break
            segment = new_segment(self.directory, base, self.now.wall_ms)
            size = self.disk.size(segment.path)
            whole = (yield from self._scan(segment, size, verify=False)) if trusted else False
            if not whole:
                if trusted:  # The scan has noted producers of this segment. Forget them: they are noted anew.
                    self.producers = producers_of(self.segments, self.producers.emptied())
                segment = new_segment(self.directory, base, self.now.wall_ms)
                whole = yield from self._recover(segment, size, bases[at + 1 :])
            self.segments.add(segment)
            if not whole:
                break

    def _delete_retired(self, bases: list[int]) -> None:
        """Segments that end at or before the log start are left from a deletion that was not finished."""
        while len(bases) > 1 and bases[1] <= self.log_start_offset:
            new_segment(self.directory, bases.pop(0), self.now.wall_ms).delete(self.disk)

    def _follows_a_hole(self, base: int) -> bool:
        """Whether the segment before this one has lost whole batches at its end. Its file does not show that: only the
        offsets that are missing between the two segments do.

        Our cleaner leaves no such hole. Other software may have left one in a compacted log. Below the recovery point
        it is accepted.
        """
        segments = self.segments.items
        return bool(segments) and base > max(segments[-1].next_offset, self.checkpoints.recovery_point)

    def _delete_stray_indexes(self, names: Sequence[str], bases: Sequence[int]) -> None:
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in INDEX_SUFFIXES and not (stem.isdecimal() and int(stem) in bases):
                self.disk.delete(f"{self.directory}/{name}")

    def _recover(self, segment: Segment, size: int, later: Sequence[int]) -> Generator[None, None, bool]:
        """Reads every byte of a segment, cuts it behind the last good batch, and makes its indexes anew.

        Returns False if something was cut. In that case the ``later`` segments are deleted first, so that a crash in
        between leaves no hole.
        """
        self.disk.delete(segment.offsets.path)
        self.disk.delete(segment.times.path)
        whole = yield from self._scan(segment, size, verify=True)
        self.report.verified_bytes += size
        if not whole:
            self._delete_after(later)
            self.report.cut_bytes += size - segment.size_bytes
            self.disk.truncate(segment.path, segment.size_bytes)
        self.durability.changed(segment.path)
        return whole

    def _delete_after(self, bases: Sequence[int]) -> None:
        """Deletes the segments behind a cut, the last one first. They would follow a hole."""
        for base in reversed(bases):
            segment = new_segment(self.directory, base, self.now.wall_ms)
            self.report.cut_bytes += self.disk.size(segment.path)
            self.report.deleted_segments += 1
            segment.delete(self.disk)

    def _scan(self, segment: Segment, size: int, *, verify: bool) -> Generator[None, None, bool]:
        """Learns a segment from its batches: sizes, timestamps, epochs, producers, and the indexes unless their files
        can be read. With ``verify`` it also checks the CRCs and always makes the indexes anew.

        Returns True if whole batches fill the file and the indexes belong to them. Otherwise the segment ends before
        the first bad batch.
        """
        disk = self.disk
        indexed = not verify and segment.offsets.load(disk, size) and segment.times.load(disk)
        if not indexed:
            segment.offsets.clear()
            segment.times.clear()
            if not verify:
                disk.delete(segment.offsets.path)
                disk.delete(segment.times.path)
        due = SLICE_BYTES
        batches = _verified(disk, segment.path, size) if verify else headers(disk, segment.path, 0, size)
        try:
            for position, header in batches:
                if header.base_offset < segment.next_offset or header.last_offset_delta < 0:
                    return False
                self._learn(segment, position, header, indexed)
                if position >= due:
                    due = position + SLICE_BYTES
                    yield
        except InvalidRecords:
            return False
        if indexed:
            segment.bytes_since_entry = size - segment.offsets.boundary_at_or_before(size)
        return not indexed or segment.has_sound_indexes

    def _learn(self, segment: Segment, position: int, header: BatchHeader, indexed: bool) -> None:
        if indexed:
            segment.see_timestamp(position, header)
            segment.size_bytes = position + header.size_bytes
            segment.next_offset = header.last_offset + 1
        else:
            segment.add(header, header.base_offset, header.max_timestamp_ms, self.index_interval_bytes)
        # Epochs of batches before the log start count too. The epoch of the last one may still be in force at the log
        # start, because the cleaner may have removed the batches in between.
        self.epochs.learn(header.leader_epoch, max(header.base_offset, self.log_start_offset))
        _note_producer(self.disk, segment, position, header, self.producers)

    def _settle_offsets(self) -> None:
        segments, durability = self.segments.items, self.durability
        end = segments[-1].next_offset if segments else self.log_start_offset
        if segments:
            self.log_start_offset = max(self.log_start_offset, segments[0].base_offset)
        unsynced = next((segment.base_offset for segment in segments if segment.path in durability.dirty), None)
        durability.synced_offset = end if unsynced is None else unsynced
        self.checkpoints.lower_recovery_point(end)  # Records that are appended next are not durable.
        if self.cleaned_offset > end:  # Records that are appended next are not cleaned.
            self.cleaned_offset = self.log_start_offset
            self.checkpoints.write_cleaned(self.cleaned_offset)


def _is_segment(name: str) -> bool:
    stem = name.removesuffix(LOG_SUFFIX)
    return stem != name and len(stem) == NAME_DIGITS and stem.isdecimal()


def producers_of(segments: Segments, empty: ProducerStates, end_offset: int = MAX_OFFSET) -> ProducerStates:
    """Adds to ``empty`` what the headers of the batches below ``end_offset`` say of producers, and returns it. Raises
    DiskError."""
    disk = segments.disk
    for segment in segments.items:
        for position, header in headers(disk, segment.path, 0, segment.size_bytes):
            if header.last_offset >= end_offset:
                return empty
            _note_producer(disk, segment, position, header, empty)
    return empty


def _note_producer(disk: Disk, segment: Segment, position: int, header: BatchHeader, producers: ProducerStates) -> None:
    if header.producer_id < 0:
        return
    if header.is_control:
        batch = disk.read(segment.path, position, header.size_bytes)
        producers.record_control(header, header.base_offset, header.max_timestamp_ms, batch)
    else:
        producers.record(header, header.base_offset, header.max_timestamp_ms)


def _verified(disk: Disk, path: str, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields the same as ``segment.headers``. Raises InvalidRecords also if a CRC is wrong."""
    for position, header, batch in whole_batches(disk, path, 0, end, SLICE_BYTES):
        if checksum(batch[CRC_FROM:]) != header.crc:
            raise InvalidRecords(ErrorCode.corrupt_message, f"{path}: wrong CRC at byte {position}")
        yield position, header
