"""Validates, numbers and patches the batches of an append. ``UnifiedLog`` writes them to the disk.

This is the hot path of a produce: no record is decoded and no byte of a payload is copied, unless the topic requires
keys or has a codec of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from reference_broker.log.config import LogConfig
from reference_broker.log.producer_state import BatchMetadata, ProducerStateManager
from reference_broker.log.segment import MAX_RELATIVE_OFFSET
from reference_broker.log.transaction_verification import VerificationGuard, VerificationStates
from reference_broker.ports.slicing import Sliced, run_to_end
from reference_broker.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    TRANSACTIONAL,
    UNPATCHED_FROM,
    BatchHeader,
    Buffer,
    InvalidRecords,
    patched_log_append_time,
    patched_prefix,
    validate,
)
from reference_broker.records.validation import Rules, check_client_batch, check_records, repacked
from reference_broker.wire.errors import ErrorCode

Batches = Sequence[tuple[int, BatchHeader]]
"""The byte position and the header of each batch."""


class RecordsRefused(InvalidRecords):
    """The batches are invalid, and none of them was appended. ``error`` is Kafka's code. ``record_errors`` has a pair
    for each invalid record: its index in the batch, and a message."""


class UnexpectedOffset(RecordsRefused):
    """The first batch from a leader begins below the follower's log end offset, so it cannot be appended. Its offsets
    are ``first_offset`` to ``last_offset``."""

    def __init__(self, header: BatchHeader, log_end_offset: int) -> None:
        self.first_offset, self.last_offset = header.base_offset, header.last_offset
        super().__init__(
            ErrorCode.unknown_server_error,
            f"the leader's batch begins at offset {self.first_offset}, but the log ends at {log_end_offset}",
        )


class BatchOrigin(Enum):
    """The origin of batches. CLIENT batches are checked against every rule. BROKER batches are the node's own
    (transaction markers, the metadata log). They are only checked for damage."""

    CLIENT = "client"
    BROKER = "broker"


@dataclass(slots=True)
class AppendResult:
    """The result of an append as the leader."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with CreateTime."""
    log_start_offset: int
    duplicate: bool = False
    """Whether the batches are a retry: they were written before at these offsets, and nothing was appended now."""
    rolled: bool = False
    """Whether the batches begin a new segment."""


class LogAppend(NamedTuple):
    """The batches of one disk append, and what is computed of them before it (as in Kafka's LogAppendInfo). They go
    into one segment and have one leader epoch."""

    view: memoryview
    """The original bytes of the batches."""
    batches: Batches
    offsets: Sequence[int]
    """Base offset of each batch in the log."""
    buffers: Sequence[Buffer]
    """The bytes to write."""
    size_bytes: int
    last_offset: int
    leader_epoch: int
    log_append_time_ms: int
    """-1 if the batches keep their timestamps."""


def validate_records(view: memoryview, rules: Rules, config: LogConfig, wall_ms: int) -> Sliced[bytes | memoryview]:
    """Validate a client's batches with all their records, in slices. Return them with the topic's codec. Raise
    RecordsRefused."""
    try:
        batches = validate(view)
        for at, header in batches:
            check_client_batch(header, rules, wall_ms)
            if rules.keys_needed:
                yield from check_records(view[at : at + header.size_bytes], rules, wall_ms)
        return (yield from with_codec(view, batches, rules, config))
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message, invalid.record_errors) from invalid


def with_codec(view: memoryview, batches: Batches, rules: Rules, config: LogConfig) -> Sliced[bytes | memoryview]:
    """Return the batches with the topic's codec, in slices. Raise InvalidRecords, also if they are too large then."""
    codec = rules.codec
    if codec is None or all(header.compression == codec for _, header in batches):
        return view
    parts: list[bytes] = []
    for at, header in batches:
        packed = yield from repacked(header, view[at : at + header.size_bytes], codec, rules.level)
        if len(packed) > rules.max_message_bytes:
            problem = f"the batch has {len(packed)} bytes with {codec.name}, but {rules.max_message_bytes} are allowed"
            raise InvalidRecords(ErrorCode.message_too_large, problem)
        parts.append(packed)
    records = b"".join(parts)
    if len(records) > config.segment_bytes:
        raise _no_segment_holds(len(records), config)
    return records


def with_codec_at_once(view: memoryview, batches: Batches, rules: Rules, config: LogConfig) -> memoryview:
    """As ``with_codec``. Raise RecordsRefused."""
    try:
        return memoryview(run_to_end(with_codec(view, batches, rules, config)))
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid


def validate_batches(
    view: memoryview, rules: Rules, config: LogConfig, wall_ms: int, origin: BatchOrigin, is_validated: bool
) -> Batches:
    """Validate the batches that a leader appends, and return their headers. Raise RecordsRefused."""
    try:
        batches = validate(view)
        if not batches:
            raise InvalidRecords(ErrorCode.invalid_record, "there is no record batch")
        if origin is BatchOrigin.CLIENT:
            for _, header in batches:
                check_client_batch(header, rules, wall_ms)
            if rules.keys_needed and not is_validated:
                for at, header in batches:
                    run_to_end(check_records(view[at : at + header.size_bytes], rules, wall_ms))
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message, invalid.record_errors) from invalid
    if origin is BatchOrigin.CLIENT and len(view) > config.segment_bytes:
        raise _no_segment_holds(len(view), config)
    return batches


def _no_segment_holds(size: int, config: LogConfig) -> RecordsRefused:
    return RecordsRefused(
        ErrorCode.record_list_too_large, f"{size} bytes do not fit a segment of {config.segment_bytes}"
    )


def validate_replicated(view: memoryview) -> Batches:
    """Check the batches that a follower got from its leader for damage, and return them. Raise RecordsRefused."""
    try:
        return validate(view)
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid


def duplicate_batches(
    producers: ProducerStateManager, batches: Batches, verification: VerificationStates, guard: VerificationGuard | None
) -> list[BatchMetadata] | None:
    """Return the remembered batches if these are a retry, or None if they are new. Raise RecordsRefused, also for a
    batch of a transaction that is neither open nor verified here."""
    try:
        for _, header in batches:
            if header.attributes & TRANSACTIONAL and header.producer_id >= 0:
                verification.check_client(producers.by_id.get(header.producer_id), header, guard)
        return producers.check([header for _, header in batches])
    except InvalidRecords as invalid:
        raise RecordsRefused(invalid.error, invalid.message) from invalid


def assign_offsets(
    view: memoryview, batches: Batches, first_offset: int, leader_epoch: int, log_append_time_ms: int
) -> LogAppend:
    """Give the batches the leader's offsets and epoch, and the append time unless that is -1."""
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
    return LogAppend(view, batches, offsets, buffers, len(view), next_offset - 1, leader_epoch, log_append_time_ms)


def next_append(
    view: memoryview, batches: Batches, log_end_offset: int, active_bytes: int, segment_bytes: int
) -> LogAppend:
    """Return the longest append that begins with the first of a leader's batches. They keep their offsets and epochs.

    An append goes into one segment and has one epoch. ``active_bytes`` is the size of the active segment. Raise
    UnexpectedOffset if the first batch begins below the log end offset.
    """
    length = _append_length(batches, log_end_offset, active_bytes, segment_bytes)
    fitting = batches if length == len(batches) else batches[:length]
    (first, header), (last, last_header) = fitting[0], fitting[-1]
    end = last + last_header.size_bytes
    offsets = [header.base_offset for _, header in fitting]
    return LogAppend(
        view, fitting, offsets, [view[first:end]], end - first, last_header.last_offset, header.leader_epoch, -1
    )


def later_epoch(append: LogAppend, leader_epoch: int) -> RecordsRefused:
    """The refusal of a leader's batches whose epoch is above that of the leader. No checksum covers a batch's epoch."""
    return RecordsRefused(
        ErrorCode.corrupt_message,
        f"the leader's batch at offset {append.offsets[0]} "
        f"has leader epoch {append.leader_epoch}, above {leader_epoch}",
    )


def _append_length(batches: Batches, log_end_offset: int, active_bytes: int, segment_bytes: int) -> int:
    first = batches[0][1]
    fits_active = active_bytes + first.size_bytes <= segment_bytes
    room = segment_bytes - active_bytes if fits_active else segment_bytes
    next_offset = log_end_offset
    for at, (_, header) in enumerate(batches):
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            if at > 0:
                return at  # The batches before this one are good and are appended first.
            raise UnexpectedOffset(header, next_offset)
        room -= header.size_bytes
        next_offset = header.last_offset + 1
        if at > 0 and (
            room < 0 or header.leader_epoch != first.leader_epoch or next_offset - log_end_offset > MAX_RELATIVE_OFFSET
        ):
            return at
    return len(batches)
