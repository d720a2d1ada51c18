"""What a replica needs of the tier to begin behind remote records: leader epochs and producers (P-11).

A segment has both as they are at its end. A leader's local records may begin inside a segment that another leader has
copied, and what the segment holds behind that place may be of another history (an unclean election). So the state is
that of the place itself: producers come from the segment before, and from the batches up to the place.
"""

from typing import NamedTuple

from reference_broker.log.checkpoints import decoded_rows
from reference_broker.log.producer_state import ProducerStates, SnapshotDamaged, decoded, pieces_of, restored
from reference_broker.records.batch import InvalidRecords, iterate
from reference_broker.remote_log.lineage import common_end
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment
from reference_broker.remote_log.metadata.partition_segments import PartitionSegments
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.remote_log.reading.parts import whole
from reference_broker.remote_log.reading.readings import Reading
from reference_broker.remote_log.reading.records import HEADERS_PER_SLICE, MOST_BYTES, batches_from
from reference_broker.wire.errors import Error, ErrorCode


class Auxiliary(NamedTuple):
    """The state of a log at ``offset``. ``epochs``: (epoch, start offset), from the log's start on. ``snapshot``:
    Kafka's file of the producers there, with open transactions, and ``producers`` is what it tells."""

    offset: int
    epochs: tuple[tuple[int, int], ...]
    snapshot: bytes
    producers: ProducerStates


def auxiliary_of(
    known: PartitionSegments, segment: RemoteSegment, offset: int, empty: ProducerStates
) -> Reading[Auxiliary | Error]:
    """``segment`` has the record before ``offset``. ``empty`` has the settings of the log. OFFSET_OUT_OF_RANGE: records
    that are needed are not listed any more. Raises InvalidRecords (CORRUPT_MESSAGE) if an object is damaged."""
    epochs = tuple(each for each in (yield from _epochs_of(segment)) if each[1] < offset)
    if segment.next_offset == offset:
        snapshot = yield from _restored_from(segment, empty)
        return Auxiliary(offset, epochs, snapshot, empty)
    if not (yield from _replayed(known, segment, epochs, offset, empty)):
        return ErrorCode.offset_out_of_range
    return Auxiliary(offset, epochs, b"".join((yield from pieces_of(empty.by_id))), empty)


def _epochs_of(segment: RemoteSegment) -> Reading[tuple[tuple[int, int], ...]]:
    rows = decoded_rows((yield from whole(segment, ObjectKind.LEADER_EPOCHS)))
    try:
        epochs = tuple((int(epoch), int(start)) for epoch, start in (row.split() for row in rows or ()))
    except ValueError as damage:
        raise _damaged(segment, str(damage)) from None
    if not epochs:
        raise _damaged(segment, "it has no leader epochs")
    return epochs


def _restored_from(segment: RemoteSegment, states: ProducerStates) -> Reading[bytes]:
    snapshot = yield from whole(segment, ObjectKind.PRODUCER_SNAPSHOT)
    try:
        producers = decoded(snapshot)
    except SnapshotDamaged as damage:
        raise _damaged(segment, str(damage)) from None
    yield from restored(states, producers)
    return snapshot


def _replayed(
    known: PartitionSegments,
    segment: RemoteSegment,
    lineage: LeaderEpochStarts,
    offset: int,
    states: ProducerStates,
) -> Reading[bool]:
    """Fills ``states`` from the last snapshot that is not behind ``offset``, and from the batches that follow it.
    Returns False if these are not listed. If there is no such snapshot, the first segment is all there is."""
    first, before = segment, known.segment_at(lineage, segment.start_offset - 1)
    while before is not None and before.next_offset > offset:
        first, before = before, known.segment_at(lineage, before.start_offset - 1)
    at = first.start_offset
    if before is not None:
        yield from _restored_from(before, states)
        at = before.next_offset
    while at < offset:
        here = known.segment_at(lineage, at)
        if here is None:
            return False
        end = min(common_end(here, lineage, offset), offset)
        batches = yield from batches_from(here, at, end, MOST_BYTES, at_least_one=True)
        view = memoryview(batches.records)
        for number, (position, header) in enumerate(iterate(view), 1):
            if header.is_control:
                batch = view[position : position + header.size_bytes]
                states.record_control(header, header.base_offset, header.max_timestamp_ms, batch)
            elif header.producer_id >= 0:
                states.record(header, header.base_offset, header.max_timestamp_ms)
            if number % HEADERS_PER_SLICE == 0:
                yield None
        if (batches.end_offset if batches.records else end) <= at:
            return False
        at = batches.end_offset if batches.records else end
    return True


def _damaged(segment: RemoteSegment, why: str) -> InvalidRecords:
    where = key_of(segment, ObjectKind.LEADER_EPOCHS)
    return InvalidRecords(ErrorCode.corrupt_message, f"the auxiliary state beside {where} is damaged: {why}")
