"""What an append writes: batches are judged, numbered and patched here. The log writes them and takes note.

This is the hot path of a produce: no record is decoded and no byte of a payload is copied.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from reference_broker.log.config import LogConfig
from reference_broker.log.producer_state import BatchMark, ProducerStates
from reference_broker.log.segment import MAX_RELATIVE_OFFSET
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
from reference_broker.records.rules import Rules, check_client_batch, check_records
from reference_broker.wire.errors import ErrorCode

Batches = Sequence[tuple[int, BatchHeader]]
"""Byte position and header of each batch."""


class RecordsRefused(InvalidRecords):
    """Nothing was appended. ``error`` is Kafka's code. ``record_errors`` has pairs of index in the batch and what is
    wrong."""


class UnexpectedOffset(RecordsRefused):
    """The first batch from a leader, ``first_offset`` to ``last_offset``, begins before the log's end."""

    def __init__(self, header: BatchHeader, log_end_offset: int) -> None:
        self.first_offset, self.last_offset = header.base_offset, header.last_offset
        super().__init__(
            ErrorCode.unknown_server_error,
            f"replicated batch at offset {self.first_offset}, the log ends at {log_end_offset}",
        )


class Origin(Enum):
    """CLIENT batches are judged by every rule. BROKER batches are the node's own (markers, the controllers' log), and
    are checked for damage only."""

    CLIENT = "client"
    BROKER = "broker"


@dataclass(slots=True)
class Appended:
    """``log_append_time_ms`` is -1 with CreateTime. ``duplicate`` says that the batches were written before, at these
    offsets, and that nothing was appended now. ``rolled`` says that a segment was closed, and that the batches begin a
    new one."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    rolled: bool = False


class Run(NamedTuple):
    """Batches that one disk append writes, into one segment and under one leader epoch. ``batches`` stand in ``view``;
    ``offsets`` are their base offsets in the log."""

    view: memoryview
    batches: Batches
    offsets: Sequence[int]
    buffers: Sequence[Buffer]
    size_bytes: int
    last_offset: int
    leader_epoch: int
    log_append_time_ms: int


def looked_into(view: memoryview, rules: Rules, wall_ms: int) -> Generator[None, None, None]:
    """Judges a client's batches with all their records, in slices. Raises RecordsRefused."""
    try:
        for at, header in validate(view):
            check_client_batch(header, rules, wall_ms)
            yield from check_records(view[at : at + header.size_bytes], rules, wall_ms)
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message, invalid.record_errors) from invalid


def judged(
    view: memoryview, rules: Rules, config: LogConfig, wall_ms: int, origin: Origin, is_looked_into: bool
) -> Batches:
    """The batches that a leader may append. Raises RecordsRefused."""
    try:
        batches = validate(view)
        if not batches:
            raise InvalidRecords(ErrorCode.invalid_record, "no record batch")
        if origin is Origin.CLIENT:
            for _, header in batches:
                check_client_batch(header, rules, wall_ms)
            if rules.keys_needed and not is_looked_into:
                for at, header in batches:
                    for _ in check_records(view[at : at + header.size_bytes], rules, wall_ms):
                        pass
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message, invalid.record_errors) from invalid
    if origin is Origin.CLIENT and len(view) > config.segment_bytes:
        raise RecordsRefused(
            ErrorCode.record_list_too_large, f"{len(view)} bytes do not fit a segment of {config.segment_bytes}"
        )
    return batches


def undamaged(view: memoryview) -> Batches:
    """The batches that a follower got from its leader. Raises RecordsRefused."""
    try:
        return validate(view)
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid


def marks_of_retry(producers: ProducerStates, batches: Batches) -> list[BatchMark] | None:
    """Where the batches were written before; None if they are new. Raises RecordsRefused."""
    if len(batches) == 1 and batches[0][1].producer_id < 0:
        return None
    try:
        return producers.check([header for _, header in batches])
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid


def numbered(view: memoryview, batches: Batches, first_offset: int, leader_epoch: int, log_append_time_ms: int) -> Run:
    """The batches with the leader's offsets, epoch and, unless it is -1, append time."""
    next_offset = first_offset
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
            buffers.append(patched_log_append_time(batch, header, next_offset, leader_epoch, log_append_time_ms))
            buffers.append(batch[HEADER_BYTES:])
        next_offset += header.last_offset_delta + 1
    return Run(view, batches, offsets, buffers, len(view), next_offset - 1, leader_epoch, log_append_time_ms)


def next_run(view: memoryview, batches: Batches, log_end_offset: int, active_bytes: int, segment_bytes: int) -> Run:
    """The first of a leader's batches that are written in one go, at their own offsets and epoch.

    ``active_bytes`` is the size of the active segment. One run goes into one segment and holds one epoch.
    Raises UnexpectedOffset if the first batch does not follow on the log.
    """
    length = _run_length(batches, log_end_offset, active_bytes, segment_bytes)
    run = batches if length == len(batches) else batches[:length]
    (first, header), (last, last_header) = run[0], run[-1]
    end = last + last_header.size_bytes
    offsets = [header.base_offset for _, header in run]
    return Run(view, run, offsets, [view[first:end]], end - first, last_header.last_offset, header.leader_epoch, -1)


def _run_length(batches: Batches, log_end_offset: int, active_bytes: int, segment_bytes: int) -> int:
    first = batches[0][1]
    fits_active = active_bytes + first.size_bytes <= segment_bytes
    room = segment_bytes - active_bytes if fits_active else segment_bytes
    next_offset = log_end_offset
    for at, (_, header) in enumerate(batches):
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            if at > 0:
                return at  # What comes before it stays.
            raise UnexpectedOffset(header, next_offset)
        room -= header.size_bytes
        next_offset = header.last_offset + 1
        if at > 0 and (
            room < 0 or header.leader_epoch != first.leader_epoch or next_offset - log_end_offset > MAX_RELATIVE_OFFSET
        ):
            return at
    return len(batches)
