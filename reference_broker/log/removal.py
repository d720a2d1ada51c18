"""What takes records away: truncation from the end, deletion from the start, retention."""

from typing import TYPE_CHECKING

from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.log.segment import Segment, headers, new_segment
from reference_broker.ports.disk import DiskError
from reference_broker.ports.now import Now

if TYPE_CHECKING:
    from reference_broker.log.partition_log import PartitionLog

MAX_OFFSET = 2**63 - 1


def truncate_to(log: "PartitionLog", offset: int) -> int:
    """Also below the high watermark, which then follows (an unclean leader's doing). Producer state is made anew
    from the headers that remain, unless it is empty. Should the disk fail half-way, the log ends where it was cut so
    far, and all that is known of it says so."""
    if offset >= log.log_end_offset:
        return log.log_end_offset
    if not log.segments or offset < log.bases[0]:
        truncate_fully_and_start_at(log, offset, log.segments[0].created_ms if log.segments else 0)
        return offset
    known = log.producers
    if known.by_id or known.aborted:
        rebuild_producers(log, offset)
    try:
        _cut_from(log, offset)
    except DiskError:
        if log.segments[-1].next_offset > offset:
            log.producers = known  # Of more than is left perhaps: the cut is tried again.
        raise
    finally:
        _settle_end(log)
    if log.log_start_offset > log.log_end_offset:
        _move_log_start(log, log.log_end_offset)
    log.epochs.save()
    return log.log_end_offset


def _cut_from(log: "PartitionLog", offset: int) -> None:
    log.lower_recovery_point(offset)
    first_touched = log.bases[log.segment_index_of(offset)]  # A batch that holds the offset goes as a whole.
    if first_touched < log.cleaned_offset:
        log.note_cleaned(first_touched)
    while len(log.segments) > 1 and log.segments[-1].base_offset >= offset:
        _drop_last(log)
    _cut(log, log.segments[-1], offset)


def _settle_end(log: "PartitionLog") -> None:
    log.log_end_offset = log.segments[-1].next_offset
    log.high_watermark = min(log.high_watermark, log.log_end_offset)
    log.epochs.drop(log.log_end_offset)


def _drop_last(log: "PartitionLog") -> None:
    segment = log.segments[-1]
    _delete_files(log, segment)
    log.segments.pop()
    log.bases.pop()
    log.durability.cut(log.segments[-1].path, segment.base_offset)
    log.log_end_offset = log.segments[-1].next_offset


def _cut(log: "PartitionLog", segment: Segment, offset: int) -> None:
    if offset >= segment.next_offset:
        return
    size = segment.position_of(log.disk, offset)
    next_offset = segment.base_offset
    start = segment.offsets.boundary_at_or_before(max(size - 1, 0))
    for _, header in headers(log.disk, segment.path, start, size):
        next_offset = header.last_offset + 1
    log.durability.cut(segment.path, next_offset)
    segment.truncate(log.disk, size, next_offset)


def _delete_files(log: "PartitionLog", segment: Segment) -> None:
    segment.delete(log.disk)
    for path in segment.paths:
        log.durability.deleted(path)


def rebuild_producers(log: "PartitionLog", end_offset: int = MAX_OFFSET) -> None:
    """From the headers of the batches below ``end_offset``. On DiskError nothing changes."""
    known, log.producers = log.producers, log.producers.emptied()
    try:
        _note_producers(log, end_offset)
    except DiskError:
        log.producers = known
        raise


def _note_producers(log: "PartitionLog", end_offset: int) -> None:
    for segment in log.segments:
        for position, header in headers(log.disk, segment.path, 0, segment.size_bytes):
            if header.last_offset >= end_offset:
                return
            if header.producer_id >= 0:
                batch = log.disk.read(segment.path, position, header.size_bytes) if header.is_control else b""
                log.note_producer(header, header.base_offset, header.max_timestamp_ms, batch)


def truncate_fully_and_start_at(log: "PartitionLog", offset: int, created_ms: int) -> None:
    log.lower_recovery_point(0)
    if log.cleaned_offset > 0:
        log.note_cleaned(0)
    while log.segments:
        log.log_start_offset = max(log.log_start_offset, log.bases[0])  # Should the disk fail before the end.
        _delete_files(log, log.segments[0])
        del log.segments[0], log.bases[0]
    log.durability.changes += 1
    log.durability.last_cut = log.durability.changes
    log.epochs.clear()
    log.producers.clear()
    segment = new_segment(log.directory, offset, created_ms)
    log.disk.append(segment.path, [])
    log.segments.append(segment)
    log.bases.append(offset)
    log.durability.changed(segment.path)
    log.log_end_offset = log.high_watermark = offset
    log.durability.synced_offset = offset
    _move_log_start(log, offset)


def delete_records_before(log: "PartitionLog", offset: int) -> int:
    if offset > log.high_watermark:
        raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)
    if offset > log.log_start_offset:
        _move_log_start(log, offset)
        log.epochs.truncate_from_start(offset)
        log.producers.forget_aborted_before(offset)
        while len(log.segments) > 1 and log.segments[1].base_offset <= offset:
            _drop_first(log)
    return log.log_start_offset


def _move_log_start(log: "PartitionLog", offset: int) -> None:
    topic, _, partition = log.directory.rpartition("/")[2].rpartition("-")
    path = log.log_start_file.prepare([f"{topic} {partition} {offset}"])
    log.durability.changed(path)
    log.log_start_offset = offset


def enforce_retention(log: "PartitionLog", now: Now) -> int:
    config = log.config
    deleted = 0
    if config.is_deleted and _is_wholly_too_old(log, now):
        log.roll(now)  # As in Kafka: what is too old goes, also from a partition that nobody writes to.
    excess = log.size_bytes - config.retention_bytes
    while len(log.segments) > 1 and log.segments[1].base_offset <= log.high_watermark:
        oldest = log.segments[0]
        unreachable = log.segments[1].base_offset <= log.log_start_offset
        too_large = config.is_deleted and config.retention_bytes >= 0 and excess >= oldest.size_bytes
        if not (unreachable or too_large or (config.is_deleted and _is_too_old(oldest, config.retention_ms, now))):
            break
        excess -= oldest.size_bytes
        _drop_first(log)
        deleted += 1
    return deleted


def _is_too_old(segment: Segment, retention_ms: int, now: Now) -> bool:
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.created_ms
    return retention_ms >= 0 and now.wall_ms - newest_ms > retention_ms


def _is_wholly_too_old(log: "PartitionLog", now: Now) -> bool:
    active = log.segments[-1] if log.segments else None
    return (
        active is not None
        and active.size_bytes > 0
        and log.high_watermark == log.log_end_offset
        and _is_too_old(active, log.config.retention_ms, now)
    )


def _drop_first(log: "PartitionLog") -> None:
    _delete_files(log, log.segments[0])
    del log.segments[0], log.bases[0]
    first = log.segments[0].base_offset
    if first > log.log_start_offset:
        log.log_start_offset = first
        log.epochs.truncate_from_start(first)
        log.producers.forget_aborted_before(first)
