"""Appends to a partition's log: judge, number, patch, one disk append, take note.

The hot path of a produce: no record is decoded and no payload byte copied here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from reference_broker.log.partition_metadata import write_partition_metadata
from reference_broker.log.producer_state import BatchMark
from reference_broker.log.segment import MAX_RELATIVE_OFFSET, new_segment
from reference_broker.ports.now import Now
from reference_broker.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    UNPATCHED_FROM,
    BatchHeader,
    Buffer,
    InvalidRecords,
    patched_log_append_time,
    patched_prefix,
    validate,
)
from reference_broker.records.rules import check_client_batch, check_keys
from reference_broker.wire.errors import Error

if TYPE_CHECKING:
    from reference_broker.log.partition_log import PartitionLog


class RecordsRefused(InvalidRecords):
    """Nothing was appended. ``error``: Kafka's code; ``record_errors``: (index in batch, what is wrong)."""


class UnexpectedOffset(RecordsRefused):
    """The first batch of a leader, ``first_offset`` to ``last_offset``, begins before the log's end."""

    def __init__(self, header: BatchHeader, log_end_offset: int) -> None:
        self.first_offset, self.last_offset = header.base_offset, header.last_offset
        super().__init__(
            Error.UNKNOWN_SERVER_ERROR,
            f"replicated batch at offset {self.first_offset}, the log ends at {log_end_offset}",
        )


class Origin(Enum):
    """CLIENT batches are judged by every rule. BROKER batches (markers, the controllers' log) are the node's own:
    checked for damage only."""

    CLIENT = "client"
    BROKER = "broker"


@dataclass(slots=True)
class Appended:
    """``log_append_time_ms``: -1 with CreateTime. ``duplicate``: written before, at these offsets; nothing was
    appended now (the first offset of a multi-batch retry is the first batch's)."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


def append(log: "PartitionLog", now: Now, records: Buffer, leader_epoch: int, origin: Origin) -> Appended:
    """As the leader: checks, numbers and writes one or more batches, all or nothing.

    Raises RecordsRefused (nothing written) and DiskError (nothing written).
    """
    view = memoryview(records)
    batches = _judged(log, now, view, origin)
    if origin is Origin.CLIENT:
        marks = _known_marks(log, now, batches)
        if marks is not None:
            return _duplicate(log, marks)
    log_append_time_ms = now.wall_ms if log.config.is_log_append_time else -1
    first_offset = next_offset = log.log_end_offset
    buffers: list[Buffer] = []
    offsets = []
    for position, header in batches:
        offsets.append(next_offset)
        end = position + header.batch_length + LENGTH_OVERHEAD_BYTES
        if log_append_time_ms < 0:
            buffers.append(patched_prefix(header, next_offset, leader_epoch))
            buffers.append(view[position + UNPATCHED_FROM : end])
        else:
            batch = view[position:end]
            head = patched_log_append_time(batch, header, next_offset, leader_epoch, log_append_time_ms)
            buffers.append(head)
            buffers.append(batch[HEADER_BYTES:])
        next_offset += header.last_offset_delta + 1
    if leader_epoch > log.epochs.latest or not log.epochs.saved:
        log.epochs.assign(leader_epoch, first_offset)
    _write(log, now, batches, buffers, len(view), next_offset - 1)
    _take_note(log, view, batches, offsets, log_append_time_ms)
    return Appended(first_offset, next_offset - 1, log_append_time_ms, log.log_start_offset)


def append_replicated(log: "PartitionLog", now: Now, records: Buffer) -> int:
    """As a follower: writes a leader's batches at their own offsets and epochs; returns the new log end offset.

    Raises RecordsRefused (damaged, or not the next offset) and DiskError. Batches before the one that fails stay.
    """
    view = memoryview(records)
    try:
        batches = validate(view)
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid
    start = 0
    while start < len(batches):
        end = _run_end(log, batches, start)
        run = batches[start:end]
        header = run[0][1]
        if header.leader_epoch > log.epochs.latest or not log.epochs.saved:
            log.epochs.assign(header.leader_epoch, header.base_offset)
        first, last = run[0][0], run[-1][0] + run[-1][1].size_bytes
        _write(log, now, run, [view[first:last]], last - first, run[-1][1].last_offset)
        _take_note(log, view, run, [header.base_offset for _, header in run], -1)
        start = end
    return log.log_end_offset


def _run_end(log: "PartitionLog", batches: Sequence[tuple[int, BatchHeader]], start: int) -> int:
    """Up to where the batches from ``start`` on are written in one go: into one segment, under one leader epoch.

    Raises RecordsRefused if the first of them is not the log's next.
    """
    room = log.config.segment_bytes
    used = log.segments[-1].size_bytes if log.segments else 0
    epoch, first_offset, next_offset = batches[start][1].leader_epoch, log.log_end_offset, log.log_end_offset
    if used + batches[start][1].size_bytes <= room:
        room -= used
    for at in range(start, len(batches)):
        header = batches[at][1]
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            if at > start:
                return at  # What comes before it stays.
            raise UnexpectedOffset(header, next_offset)
        room -= header.size_bytes
        next_offset = header.last_offset + 1
        if at > start and (
            room < 0 or header.leader_epoch != epoch or next_offset - first_offset > MAX_RELATIVE_OFFSET
        ):
            return at
    return len(batches)


def _judged(log: "PartitionLog", now: Now, view: memoryview, origin: Origin) -> list[tuple[int, BatchHeader]]:
    try:
        batches = validate(view)
        if not batches:
            raise InvalidRecords(Error.INVALID_RECORD, "no record batch")
        if origin is Origin.CLIENT:
            for _, header in batches:
                check_client_batch(header, log.rules, now.wall_ms)
            if log.rules.keys_needed:
                check_keys([view[at : at + header.size_bytes] for at, header in batches])
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message, invalid.record_errors) from invalid
    if origin is Origin.CLIENT and len(view) > log.config.segment_bytes:
        raise RecordsRefused(
            Error.RECORD_LIST_TOO_LARGE, f"{len(view)} bytes do not fit a segment of {log.config.segment_bytes}"
        )
    return batches


def _known_marks(log: "PartitionLog", now: Now, batches: Sequence[tuple[int, BatchHeader]]) -> list[BatchMark] | None:
    producers = log.producers
    if now.wall_ms - producers.swept_ms >= log.config.producer_id_expiration_check_interval_ms:
        producers.expire(now.wall_ms)
    try:
        return producers.check([header for _, header in batches])
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid


def _duplicate(log: "PartitionLog", marks: list[BatchMark]) -> Appended:
    time_ms = marks[-1].timestamp_ms if log.config.is_log_append_time else -1
    return Appended(marks[0].first_offset, marks[-1].last_offset, time_ms, log.log_start_offset, True)


def _write(
    log: "PartitionLog",
    now: Now,
    batches: Sequence[tuple[int, BatchHeader]],
    buffers: list[Buffer],
    size: int,
    last_offset: int,
) -> None:
    """One append to the active segment; rolls before it where the bytes belong into a new one."""
    config = log.config
    timestamp_ms = batches[0][1].max_timestamp_ms if not config.is_log_append_time else now.wall_ms
    if not log.segments:
        if log.topic_id:
            log.durability.changed(write_partition_metadata(log.disk, log.directory, log.topic_id))
        segment = new_segment(log.directory, log.log_end_offset, now.wall_ms)
        log.disk.append(segment.path, buffers)
        log.add_segment(segment)
    else:
        segment = log.segments[-1]
        if segment.must_roll_for(size, last_offset, config.segment_bytes, config.segment_index_bytes) or segment.is_due(
            config.max_segment_ms, now.wall_ms, timestamp_ms
        ):
            segment = log.roll(now)
        log.disk.append(segment.path, buffers)
    log.durability.changed(segment.path)


def _take_note(
    log: "PartitionLog",
    view: memoryview,
    batches: Sequence[tuple[int, BatchHeader]],
    offsets: Sequence[int],
    time_ms: int,
) -> None:
    """After the bytes are written: index, producers, log end. Cannot fail."""
    segment = log.segments[-1]
    interval = log.config.index_interval_bytes
    for (position, header), offset in zip(batches, offsets, strict=True):
        timestamp_ms = header.max_timestamp_ms if time_ms < 0 else time_ms
        segment.add(header, offset, timestamp_ms, interval)
        if header.producer_id >= 0:
            log.note_producer(header, offset, timestamp_ms, view[position : position + header.size_bytes])
    log.log_end_offset = segment.next_offset
