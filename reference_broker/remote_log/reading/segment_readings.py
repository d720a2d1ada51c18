"""Readings of remote segments: batches, aborted transactions, times, and the state with which a replica begins (P-11).

Indexes stay bytes as they were stored, and are searched in place, so that an index of megabytes costs nothing to load.
Their formats are those of ``log.indexes``.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from reference_broker.log.checkpoints import decoded_rows
from reference_broker.log.indexes import OFFSET_ENTRY, TIME_ENTRY, Aborted
from reference_broker.log.indexes import TRANSACTION_ENTRY as ABORTED_ENTRY
from reference_broker.log.producer_state import (
    ProducerStateManager,
    SnapshotDamaged,
    decode_snapshot,
    pieces_of,
    restore_in_slices,
)
from reference_broker.log.timestamp_lookup import FoundOffset, first_at
from reference_broker.ports.slicing import (
    LOOKUP_US_PER_SLICE,
    REMOTE_HEADERS_PER_SLICE,
    REMOTE_STEPS_PER_SLICE,
    Budget,
)
from reference_broker.records.batch import HEADER_BYTES, MAGIC, BatchHeader, InvalidRecords, iterate, read_header
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteLogSegmentMetadata, common_end
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadataCache
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.remote_log.reading.readings import Range, Reading
from reference_broker.wire.errors import Error, ErrorCode


def floor_position(offset_index: bytes, relative_offset: int) -> int:
    """Return the byte position of a batch from which a walk finds the offset. The offset is relative to the segment's
    base offset. An entry has the last offset of its batch. Raise InvalidRecords for a damaged index."""
    at = _count_while(offset_index, OFFSET_ENTRY, lambda entry: entry[0] <= relative_offset)
    return int(OFFSET_ENTRY.unpack_from(offset_index, (at - 1) * OFFSET_ENTRY.size)[1]) if at else 0


def boundary_before(offset_index: bytes, position: int) -> int:
    """Return the last byte position <= ``position`` at which a batch is known to begin."""
    at = _count_while(offset_index, OFFSET_ENTRY, lambda entry: entry[1] <= position)
    return int(OFFSET_ENTRY.unpack_from(offset_index, (at - 1) * OFFSET_ENTRY.size)[1]) if at else 0


def offset_before(time_index: bytes, timestamp_ms: int) -> int:
    """Return a relative offset before which every record has a smaller timestamp. It is 0 if nothing is known."""
    at = _count_while(time_index, TIME_ENTRY, lambda entry: entry[0] < timestamp_ms)
    return int(TIME_ENTRY.unpack_from(time_index, (at - 1) * TIME_ENTRY.size)[1]) if at else 0


def aborted_from(transaction_index: bytes, offset: int) -> Iterator[Aborted]:
    """Yield the aborted transactions whose markers lie at ``offset`` or beyond, in the order of their markers."""
    at = _count_while(transaction_index, ABORTED_ENTRY, lambda entry: entry[3] < offset)
    for _, *fields in ABORTED_ENTRY.iter_unpack(memoryview(transaction_index)[at * ABORTED_ENTRY.size :]):
        yield Aborted(*fields)


def _count_while(index: bytes, layout: Struct, is_before: Callable[[tuple[int, ...]], bool]) -> int:
    """Return the number of entries at the beginning that fit. All that fit come before all that do not."""
    if len(index) % layout.size:
        raise InvalidRecords(ErrorCode.corrupt_message, f"an index of {len(index)} bytes is damaged")
    low, high = 0, len(index) // layout.size
    while low < high:
        middle = (low + high) // 2
        fits = is_before(layout.unpack_from(index, middle * layout.size))
        low, high = (middle + 1, high) if fits else (low, middle)
    return low


BLOCK_BYTES: Final = 1 << 20
"""A log object is read in blocks of this size. Readers at about the same place share them."""
LARGEST_SNAPSHOT_BYTES: Final = 256 << 20
"""A snapshot of four million producers."""


def whole(segment: RemoteLogSegmentMetadata, kind: ObjectKind) -> Reading[bytes]:
    """The bytes of an object that is no log. No index is larger than its segment."""
    is_index = kind in (ObjectKind.OFFSET_INDEX, ObjectKind.TIME_INDEX, ObjectKind.TRANSACTION_INDEX)
    limit_bytes = segment.size_bytes if is_index else LARGEST_SNAPSHOT_BYTES
    return (yield Range(key_of(segment, kind), 0, limit_bytes, kind))


def block(segment: RemoteLogSegmentMetadata, number: int) -> Range:
    """A block of the log object. The last one is shorter."""
    start = number * BLOCK_BYTES
    return Range(key_of(segment, ObjectKind.LOG), start, min(BLOCK_BYTES, segment.size_bytes - start), ObjectKind.LOG)


def block_count(segment: RemoteLogSegmentMetadata) -> int:
    return -(-segment.size_bytes // BLOCK_BYTES)


def log_bytes(segment: RemoteLogSegmentMetadata, position: int, end: int) -> Reading[bytes]:
    """The bytes of the log object in [position, end), inside the segment. Raise InvalidRecords if it is shorter."""
    pieces = []
    for number in range(position // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
        byte_range = block(segment, number)
        data = yield byte_range
        if len(data) < byte_range.length:
            raise InvalidRecords(
                ErrorCode.corrupt_message, f"{byte_range.key} ends at byte {byte_range.position + len(data)}"
            )
        pieces.append(data[max(position - byte_range.position, 0) : end - byte_range.position])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def window_end(segment: RemoteLogSegmentMetadata, position: int, length: int) -> int:
    """Return the end of one read of headers from ``position`` on: after ``length`` bytes, and not in the next block,
    unless the first header reaches into it."""
    block_end = (position // BLOCK_BYTES + 1) * BLOCK_BYTES
    return min(max(min(position + length, block_end), position + HEADER_BYTES), segment.size_bytes)


def header_at(segment: RemoteLogSegmentMetadata, position: int) -> Reading[BatchHeader]:
    """The header of the batch at a byte position. Raise InvalidRecords (CORRUPT_MESSAGE) if no whole batch begins
    there."""
    data = yield from log_bytes(segment, position, min(position + HEADER_BYTES, segment.size_bytes))
    return next(headers_in(segment, data, position))[1]


def headers_in(segment: RemoteLogSegmentMetadata, data: bytes, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches whose headers are in ``data``, which begins with the batch at byte
    ``position`` of the log object. There is at least one. Raise InvalidRecords where no whole batch begins."""
    at = 0
    while at == 0 or at + HEADER_BYTES <= len(data):
        header = _checked(segment, read_header(data, at), position + at)
        yield position + at, header
        at += header.size_bytes


def _checked(segment: RemoteLogSegmentMetadata, header: BatchHeader, position: int) -> BatchHeader:
    size = header.size_bytes
    if header.magic != MAGIC or size < HEADER_BYTES or position + size > segment.size_bytes:
        where = key_of(segment, ObjectKind.LOG)
        raise InvalidRecords(ErrorCode.corrupt_message, f"{where}: no batch at byte {position}")
    return header


WALK_BYTES: Final = 16 * 1024
MAX_BYTES: Final = 4 << 20
"""Limits a read, unless its first batch is larger. Joining as many bytes takes some 2 ms."""
EMPTY_LENGTH: Final = (HEADER_BYTES - 12).to_bytes(4, "big")
"""The length field of a batch without records, which counts what follows the field."""
BOUNDARY_FROM_BYTES: Final = 64 * 1024
"""A read of at least this size ends at a batch that the index knows, so that its batches need not be walked over."""


class Batches(NamedTuple):
    """Batches of a remote segment. Without records, the offsets say where the batch lies that was not read, or the end
    of the segment."""

    records: bytes
    position: int
    """The position of ``records`` in the log object."""
    end_position: int
    """Its end there."""
    first_offset: int
    """The first offset of the first batch."""
    end_offset: int
    """No batch reaches beyond it."""
    offset_index: bytes
    """The segment's offset index."""


def batches_from(
    segment: RemoteLogSegmentMetadata, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
) -> Reading[Batches]:
    """Read whole batches, from the one that holds ``offset``, or the first one after it, up to ``end_offset``. That is
    the segment's end or an offset at which a batch begins.

    At most ``max_bytes``, except that the first batch comes whatever its size if ``at_least_one``. May return less than
    would fit: several batches have at most MAX_BYTES. Raise InvalidRecords where an object is damaged.
    """
    index = yield from whole(segment, ObjectKind.OFFSET_INDEX)
    position = floor_position(index, offset - segment.start_offset)
    stop = segment.size_bytes
    if end_offset < segment.next_offset:
        stop, _ = yield from _batch_of(segment, floor_position(index, end_offset - segment.start_offset), end_offset)
    position, first_offset = yield from _batch_of(segment, position, offset)
    if position >= stop:
        return Batches(b"", stop, stop, end_offset, end_offset, index)
    header = yield from header_at(segment, position)
    max_bytes, wanted_bytes = min(max_bytes, MAX_BYTES), max_bytes
    if header.size_bytes > max_bytes:
        if header.size_bytes > wanted_bytes and not at_least_one:
            return Batches(b"", position, position, first_offset, first_offset, index)
        data = yield from log_bytes(segment, position, position + header.size_bytes)
        return Batches(data, position, position + len(data), first_offset, header.last_offset + 1, index)
    if stop - position <= max_bytes:
        data = yield from log_bytes(segment, position, stop)
        return Batches(data, position, stop, first_offset, end_offset, index)
    boundary = boundary_before(index, position + max_bytes) if max_bytes >= BOUNDARY_FROM_BYTES else position
    if boundary > position:
        data = yield from log_bytes(segment, position, boundary)
        behind = yield from header_at(segment, boundary)
        return Batches(data, position, boundary, first_offset, behind.base_offset, index)
    data = yield from log_bytes(segment, position, position + max_bytes)
    size, next_offset = 0, first_offset
    for number, (at, each) in enumerate(headers_in(segment, data, position), 1):
        if number % REMOTE_HEADERS_PER_SLICE == 0:
            yield None
        if at + each.size_bytes <= position + len(data):
            size, next_offset = at + each.size_bytes - position, each.last_offset + 1
    return Batches(data[:size], position, position + size, first_offset, next_offset, index)


def without_empty(records: bytes) -> Reading[bytes]:
    """The batches that have records. The cleaner leaves others, and a topic may get a tier when it is not compacted any
    more."""
    if EMPTY_LENGTH not in records:
        return records
    view, kept = memoryview(records), []
    for number, (position, header) in enumerate(iterate(view), 1):
        if header.record_count:
            kept.append(view[position : position + header.size_bytes])
        if number % REMOTE_HEADERS_PER_SLICE == 0:
            yield None
    return b"".join(kept)


def _batch_of(segment: RemoteLogSegmentMetadata, position: int, offset: int) -> Reading[tuple[int, int]]:
    """Walk from the batch at ``position`` to the one that holds ``offset``, or the first one after it. Returns its
    position and first offset: those of the segment's end if there is none. An index entry lies every few KiB, so the
    walk is short."""
    while position < segment.size_bytes:
        data = yield from log_bytes(segment, position, window_end(segment, position, WALK_BYTES))
        start = position
        for number, (position, header) in enumerate(headers_in(segment, data, start), 1):
            if number % REMOTE_HEADERS_PER_SLICE == 0:
                yield None
            if header.last_offset >= offset:
                return position, header.base_offset
        position += header.size_bytes
    return segment.size_bytes, segment.next_offset


class AbortedSoFar(NamedTuple):
    """Aborted transactions of some segments."""

    found: tuple[Aborted, ...]
    is_complete: bool
    """Whether no later segment has a marker of a transaction that began before the end."""


def aborted_in_segments(
    segments: RemoteLogMetadataCache,
    first: RemoteLogSegmentMetadata,
    lineage: LeaderEpochStarts,
    offset: int,
    end_offset: int,
    local_start_offset: int,
) -> Reading[AbortedSoFar]:
    """The aborted transactions that overlap [offset, end_offset), in ``first`` and the remote segments after it that
    begin before ``local_start_offset``."""
    aborted: list[Aborted] = []
    segment: RemoteLogSegmentMetadata | None = first
    steps = 0
    while segment is not None:
        if segment.has_transaction_index:
            index = yield from whole(segment, ObjectKind.TRANSACTION_INDEX)
            for each in aborted_from(index, offset):
                steps += 1
                if steps % REMOTE_STEPS_PER_SLICE == 0:
                    yield None
                if each.first_offset < end_offset:
                    aborted.append(each)
                if each.last_stable_offset >= end_offset:
                    return AbortedSoFar(tuple(aborted), True)
        steps += 1
        if steps % REMOTE_STEPS_PER_SLICE == 0:
            yield None
        segment = segments.after(segment, lineage) if segment.next_offset < local_start_offset else None
    return AbortedSoFar(tuple(aborted), False)


def first_of_time(
    segments: RemoteLogMetadataCache,
    lineage: LeaderEpochStarts,
    timestamp_ms: int,
    start_offset: int,
    end_offset: int,
) -> Reading[FoundOffset | None]:
    """The first record in [start_offset, end_offset) whose timestamp is >= ``timestamp_ms``, in the segments of a log
    with these leader epochs. None if there is none, or from where no segment is listed any more."""
    budget, offset = Budget(LOOKUP_US_PER_SLICE), start_offset
    while offset < end_offset and (segment := segments.segment_at(lineage, offset)) is not None:
        until = min(common_end(segment, lineage, end_offset), end_offset)
        if segment.max_timestamp_ms >= timestamp_ms:
            record = yield from _first_in(segment, timestamp_ms, offset, until, budget)
            if record is not None:
                return record
        elif budget.spend(1):
            yield None
        if until <= offset:
            return None
        offset = until
    return None


def _first_in(
    segment: RemoteLogSegmentMetadata, timestamp_ms: int, start_offset: int, end_offset: int, budget: Budget
) -> Reading[FoundOffset | None]:
    times = yield from whole(segment, ObjectKind.TIME_INDEX)
    offsets = yield from whole(segment, ObjectKind.OFFSET_INDEX)
    after = max(offset_before(times, timestamp_ms), start_offset - segment.start_offset)
    position = floor_position(offsets, after)
    while position < segment.size_bytes:
        data = yield from log_bytes(segment, position, window_end(segment, position, BLOCK_BYTES))
        begin = position
        for position, header in headers_in(segment, data, begin):
            if header.base_offset >= end_offset:
                return None
            if budget.spend(1):
                yield None
            if header.max_timestamp_ms < timestamp_ms or header.last_offset < start_offset or not header.record_count:
                continue
            batch = yield from log_bytes(segment, position, position + header.size_bytes)
            record = yield from first_at(batch, header, timestamp_ms, start_offset, budget)
            if record is not None:
                return FoundOffset(*record, header.leader_epoch)
        position += header.size_bytes
    return None


class Auxiliary(NamedTuple):
    """The state of a log at an offset (Kafka's auxiliary state of a replica that begins in the tier)."""

    offset: int
    epochs: tuple[tuple[int, int], ...]
    """(epoch, start offset), from the log's start on."""
    snapshot: bytes
    """Kafka's producer snapshot there, with open transactions."""
    producers: ProducerStateManager
    """Its content."""


def auxiliary_of(
    segments: RemoteLogMetadataCache, segment: RemoteLogSegmentMetadata, offset: int, empty: ProducerStateManager
) -> Reading[Auxiliary | Error]:
    """``segment`` has the record before ``offset``. ``empty`` has the settings of the log. OFFSET_OUT_OF_RANGE: records
    that are needed are not listed any more. Raise InvalidRecords (CORRUPT_MESSAGE) if an object is damaged."""
    epochs = tuple(each for each in (yield from _epochs_of(segment)) if each[1] < offset)
    if segment.next_offset == offset:  # Decision tier-producer-state
        snapshot = yield from _restored_from(segment, empty)
        return Auxiliary(offset, epochs, snapshot, empty)
    if not (yield from _replayed(segments, segment, epochs, offset, empty)):
        return ErrorCode.offset_out_of_range
    return Auxiliary(offset, epochs, b"".join((yield from pieces_of(empty.by_id))), empty)


def _epochs_of(segment: RemoteLogSegmentMetadata) -> Reading[tuple[tuple[int, int], ...]]:
    rows = decoded_rows((yield from whole(segment, ObjectKind.LEADER_EPOCHS)))
    try:
        epochs = tuple((int(epoch), int(start)) for epoch, start in (row.split() for row in rows or ()))
    except ValueError as damage:
        raise _damaged(segment, str(damage)) from None
    if not epochs:
        raise _damaged(segment, "it has no leader epochs")
    return epochs


def _restored_from(segment: RemoteLogSegmentMetadata, states: ProducerStateManager) -> Reading[bytes]:
    snapshot = yield from whole(segment, ObjectKind.PRODUCER_SNAPSHOT)
    try:
        producers = decode_snapshot(snapshot)
    except SnapshotDamaged as damage:
        raise _damaged(segment, str(damage)) from None
    yield from restore_in_slices(states, producers)
    return snapshot


def _replayed(
    segments: RemoteLogMetadataCache,
    segment: RemoteLogSegmentMetadata,
    lineage: LeaderEpochStarts,
    offset: int,
    states: ProducerStateManager,
) -> Reading[bool]:
    """Fill ``states`` from the last snapshot that is not behind ``offset``, and from the batches that follow it.
    Returns False if these are not listed. If there is no such snapshot, the first segment is all there is."""
    first, before = segment, segments.segment_at(lineage, segment.start_offset - 1)
    while before is not None and before.next_offset > offset:
        first, before = before, segments.segment_at(lineage, before.start_offset - 1)
    at = first.start_offset
    if before is not None:
        yield from _restored_from(before, states)
        at = before.next_offset
    while at < offset:
        here = segments.segment_at(lineage, at)
        if here is None:
            return False
        end = min(common_end(here, lineage, offset), offset)
        batches = yield from batches_from(here, at, end, MAX_BYTES, at_least_one=True)
        view = memoryview(batches.records)
        for number, (position, header) in enumerate(iterate(view), 1):
            if header.is_control:
                batch = view[position : position + header.size_bytes]
                states.record_control(header, header.base_offset, header.max_timestamp_ms, batch)
            elif header.producer_id >= 0:
                states.record(header, header.base_offset, header.max_timestamp_ms)
            if number % REMOTE_HEADERS_PER_SLICE == 0:
                yield None
        if (batches.end_offset if batches.records else end) <= at:
            return False
        at = batches.end_offset if batches.records else end
    return True


def _damaged(segment: RemoteLogSegmentMetadata, why: str) -> InvalidRecords:
    where = key_of(segment, ObjectKind.LEADER_EPOCHS)
    return InvalidRecords(ErrorCode.corrupt_message, f"the auxiliary state beside {where} is damaged: {why}")
