"""Opening a log: what its files say, what of it can be trusted, and where it must be cut."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_broker.log import removal
from reference_broker.log.cleaner import swapping
from reference_broker.log.segment import NAME_DIGITS, Segment, headers, new_segment
from reference_broker.ports.disk import Disk
from reference_broker.ports.now import Now
from reference_broker.records.batch import (
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    InvalidRecords,
    checksum,
    read_header,
)
from reference_broker.wire.errors import Error

if TYPE_CHECKING:
    from reference_broker.log.partition_log import PartitionLog

SLICE_BYTES = 256 * 1024
LOG_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex")


@dataclass(slots=True)
class Recovered:
    """What opening the log did. ``cut_bytes``: bytes taken away behind the last good batch."""

    verified_bytes: int = 0
    cut_bytes: int = 0
    deleted_segments: int = 0


def load(log: "PartitionLog", now: Now, clean: bool) -> Generator[None, None, None]:
    names = list(log.disk.list(log.directory))
    log.producers.swept_ms = now.wall_ms
    if not names:
        return
    if swapping.needs_recovery(names):
        names = yield from swapping.recover(log.disk, log.directory, names)
    log.cleaned_offset = _read_offset(log.cleaner_file.read(names))
    log.log_start_offset = log_start = _read_offset(log.log_start_file.read(names))
    log.recovery_point = _read_offset(log.recovery_point_file.read(names))
    log.epochs.load(log.epochs.checkpoint.read(names))
    known_epochs = (log.epochs.epochs[:], log.epochs.starts[:])
    yield from _load_segments(log, names, now, clean)
    log.epochs.saved = (log.epochs.epochs, log.epochs.starts) == known_epochs
    _settle_offsets(log, log_start, now)
    if log.log_start_file.new_path.rpartition("/")[2] in names:
        log.durability.changed(log.log_start_file.new_path)
    log.epochs.drop(log.log_end_offset)
    log.epochs.truncate_from_start(log.log_start_offset)
    log.epochs.save()
    log.producers.expire(now.wall_ms)


def _load_segments(log: "PartitionLog", names: list[str], now: Now, clean: bool) -> Generator[None, None, None]:
    bases = sorted(int(name[:NAME_DIGITS]) for name in names if _is_segment(name))
    _delete_stray_indexes(log, names, bases)
    again = False
    for at, base in enumerate(bases):
        segment = new_segment(log.directory, base, now.wall_ms)
        end = bases[at + 1] if at + 1 < len(bases) else None
        trusted = clean or (end is not None and end <= log.recovery_point)
        if not trusted and _follows_a_hole(log, base):
            _delete_after(log, bases[at:], now)
            break
        size = log.disk.size(segment.path)
        whole = (yield from _scan(log, segment, size, verify=False)) if trusted else False
        if not whole:
            again = again or trusted  # Its first half was taken note of already, and will be once more.
            segment = new_segment(log.directory, base, now.wall_ms)
            whole = yield from _recover(log, segment, size, bases[at + 1 :], now)
        log.segments.append(segment)
        log.bases.append(base)
        if not whole:
            break
    if again:
        removal.rebuild_producers(log)


def _follows_a_hole(log: "PartitionLog", base: int) -> bool:
    """Whether the segment before lost whole batches at its end, which looks like nothing. Our cleaner leaves no such
    hole; one that other software left in a compacted log below the recovery point is taken as it is."""
    return bool(log.segments) and base > max(log.segments[-1].next_offset, log.recovery_point)


def _is_segment(name: str) -> bool:
    stem = name.removesuffix(LOG_SUFFIX)
    return stem != name and len(stem) == NAME_DIGITS and stem.isdecimal()


def _delete_stray_indexes(log: "PartitionLog", names: list[str], bases: list[int]) -> None:
    for name in names:
        stem, dot, suffix = name.partition(".")
        if dot + suffix in INDEX_SUFFIXES and not (stem.isdecimal() and int(stem) in bases):
            log.disk.delete(f"{log.directory}/{name}")


def _recover(
    log: "PartitionLog", segment: Segment, size: int, later: list[int], now: Now
) -> Generator[None, None, bool]:
    """Reads every byte, cuts behind the last good batch, makes the indexes anew. False if something was cut; then the
    ``later`` segments went first, so that a start that dies between leaves no hole."""
    log.disk.delete(segment.offsets.path)
    log.disk.delete(segment.times.path)
    whole = yield from _scan(log, segment, size, verify=True)
    log.recovered.verified_bytes += size
    if not whole:
        _delete_after(log, later, now)
        log.recovered.cut_bytes += size - segment.size_bytes
        log.disk.truncate(segment.path, segment.size_bytes)
    log.durability.changed(segment.path)
    return whole


def _delete_after(log: "PartitionLog", bases: list[int], now: Now) -> None:
    """Segments behind a cut would leave a hole: they go."""
    for base in reversed(bases):
        segment = new_segment(log.directory, base, now.wall_ms)
        log.recovered.cut_bytes += log.disk.size(segment.path)
        log.recovered.deleted_segments += 1
        segment.delete(log.disk)


def _scan(log: "PartitionLog", segment: Segment, size: int, *, verify: bool) -> Generator[None, None, bool]:
    """Learns a segment from its batches: sizes, timestamps, epochs, producers, and the index unless its files hold
    one. True if batches fill the file; otherwise the segment ends before the first bad one."""
    disk = log.disk
    indexed = not verify and segment.offsets.load(disk, size) and segment.times.load(disk)
    if not indexed:
        segment.offsets.clear()
        segment.times.clear()
        if not verify:
            disk.delete(segment.offsets.path)
            disk.delete(segment.times.path)
    due = SLICE_BYTES
    try:
        for position, header in _verified(disk, segment.path, size) if verify else headers(disk, segment.path, 0, size):
            if header.base_offset < segment.next_offset or header.last_offset_delta < 0:
                return False
            _learn(log, segment, position, header, indexed)
            if position >= due:
                due = position + SLICE_BYTES
                yield
    except InvalidRecords:
        return False
    if indexed:
        segment.bytes_since_entry = size - segment.offsets.boundary_at_or_before(size)
    return True


def _learn(log: "PartitionLog", segment: Segment, position: int, header: BatchHeader, indexed: bool) -> None:
    if indexed:
        segment.see_timestamp(position, header)
        segment.size_bytes = position + header.size_bytes
        segment.next_offset = header.last_offset + 1
    else:
        segment.add(header, header.base_offset, header.max_timestamp_ms, log.config.index_interval_bytes)
    # Also of batches before the log start: the cleaner may have taken away those between it and the next one.
    log.epochs.learn(header.leader_epoch, max(header.base_offset, log.log_start_offset))
    if header.producer_id >= 0:
        batch = log.disk.read(segment.path, position, header.size_bytes) if header.is_control else b""
        log.note_producer(header, header.base_offset, header.max_timestamp_ms, batch)


def _verified(disk: Disk, path: str, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """As ``segment.headers``, and the CRC of every batch is right; else raises InvalidRecords."""
    position = chunk_at = 0
    chunk = memoryview(b"")
    while position < end:
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            at, chunk_at, chunk = 0, position, memoryview(disk.read(path, position, SLICE_BYTES))
        header = read_header(chunk, at)
        size = header.size_bytes
        if header.magic != MAGIC or size < HEADER_BYTES or position + size > end:
            raise InvalidRecords(Error.CORRUPT_MESSAGE, f"{path}: no batch at byte {position}")
        if at + size > len(chunk):
            at, chunk_at, chunk = 0, position, memoryview(disk.read(path, position, max(size, SLICE_BYTES)))
        if checksum(chunk[at + CRC_FROM : at + size]) != header.crc:
            raise InvalidRecords(Error.CORRUPT_MESSAGE, f"{path}: wrong CRC at byte {position}")
        yield position, header
        position += size


def _settle_offsets(log: "PartitionLog", log_start: int, now: Now) -> None:
    durability = log.durability
    if not log.segments:
        log.log_start_offset = log.log_end_offset = log_start
    else:
        log.log_start_offset = max(log_start, log.bases[0])
        log.log_end_offset = log.segments[-1].next_offset
    unsynced = next((segment.base_offset for segment in log.segments if segment.path in durability.dirty), None)
    durability.synced_offset = log.log_end_offset if unsynced is None else unsynced
    log.high_watermark = log.log_start_offset
    log.recovery_point = min(log.recovery_point, log.log_end_offset)
    if log.cleaned_offset > log.log_end_offset:  # What is appended next is not clean.
        log.note_cleaned(log.log_start_offset)
    if log.log_start_offset > log.log_end_offset:  # The log lost its end, up to before records that were deleted.
        removal.truncate_fully_and_start_at(log, log.log_start_offset, now.wall_ms)


def _read_offset(rows: list[str] | None) -> int:
    """The offset at the end of a checkpoint's only row; 0 if there is none."""
    last = rows[0].rpartition(" ")[2] if rows else ""
    return int(last) if last.isdecimal() else 0
