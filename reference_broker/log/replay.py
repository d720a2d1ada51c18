"""Finds what a log knows of producers: the newest snapshot, and what the batches after it say (P-4, P-12).

A start and a truncation both come here. They also find aborted transactions again, for segments whose index is missing
or damaged (Kafka's LogLoader.recoverSegment and UnifiedLog.rebuildProducerState).
"""

from collections.abc import Generator, Iterator, Sequence

from reference_broker.log.producer_state import REMEMBERED_BATCHES, BatchMark, ProducerStates, mark_of
from reference_broker.log.segment import Segment, headers
from reference_broker.log.segments import Segments
from reference_broker.log.transaction_index import Aborted
from reference_broker.ports.disk import Disk
from reference_broker.records.batch import BatchHeader

MAX_OFFSET = 2**63 - 1
BATCHES_PER_SLICE = 2000
REFILL_BYTES = 16 * 1024 * 1024
"""How far before a snapshot batches are read for what it lacks. A retry comes soon or not at all, and the high
watermark soon passes what lies further back."""


def run_to_end(replay: Generator[None, None, ProducerStates]) -> ProducerStates:
    while True:
        try:
            next(replay)
        except StopIteration as stop:
            states = stop.value
            assert isinstance(states, ProducerStates), "a replay returns a state"
            return states


def replayed(
    segments: Segments, empty: ProducerStates, end_offset: int = MAX_OFFSET
) -> Generator[None, None, ProducerStates]:
    """Returns the state after the batches that end before ``end_offset``, in slices. ``empty`` has the settings.

    It comes from the newest whole snapshot and the batches behind that, or from all batches. Segments behind the
    snapshot whose transaction index is not known get their entries on the way; those before it must be known. Raises
    DiskError.
    """
    states = empty.emptied()
    offset = segments.bases[0]
    snapshot = yield from segments.snapshots.load(states, offset, end_offset)
    if snapshot is not None:
        offset = snapshot
        if states.by_id:
            yield from _refill(segments, offset, states)
    yield from _walk(segments, offset, end_offset, states)
    return states


def index_again(segments: Segments, empty: ProducerStates, unknown: Sequence[Segment]) -> Generator[None, None, None]:
    """Finds the aborted transactions of segments whose index is not known, the oldest first. Raises DiskError."""
    states, at = empty.emptied(), -1
    for segment in unknown:
        base = segment.base_offset
        newest = segments.snapshots.newest(segments.bases[0], base)
        if at < 0 or (newest is not None and newest[0] > at):
            states = empty.emptied()
            at = (yield from segments.snapshots.load(states, segments.bases[0], base)) or segments.bases[0]
        yield from _walk(segments, at, base, states)
        yield from _walk(segments, base, segment.next_offset, states)
        at = segment.next_offset


def _walk(segments: Segments, offset: int, end_offset: int, states: ProducerStates) -> Generator[None, None, None]:
    """Notes the batches from ``offset`` on that end before ``end_offset``. The places of snapshots that Kafka would
    have there, too (the last two segments), get one."""
    disk, snapshots = segments.disk, segments.snapshots
    count = 0
    for segment in segments.items[segments.index_of(offset) :]:
        if segment.base_offset >= end_offset:
            return
        is_late = segment.base_offset > offset and segment.base_offset in segments.bases[-2:]
        if is_late and segment.base_offset not in snapshots.offsets:
            snapshots.write(segment.base_offset, states)
        start = segment.position_of(disk, offset) if offset > segment.base_offset else 0
        unknown = not segment.aborted.is_known and start == 0
        if unknown:
            segment.aborted.clear()
        for position, header in headers(disk, segment.path, start, segment.size_bytes):
            if header.last_offset >= end_offset:
                return
            if header.producer_id >= 0:
                aborted = noted(disk, segment, position, header, states)
                if unknown and header.is_control:
                    segment.aborted.note(aborted)
            count += 1
            if count % BATCHES_PER_SLICE == 0:
                yield


def noted(disk: Disk, segment: Segment, position: int, header: BatchHeader, states: ProducerStates) -> Aborted | None:
    """Notes one batch of a producer. Returns the transaction that it aborts, if it does. Raises DiskError."""
    if not header.is_control:
        states.record(header, header.base_offset, header.max_timestamp_ms)
        return None
    batch = disk.read(segment.path, position, header.size_bytes)
    return states.record_control(header, header.base_offset, header.max_timestamp_ms, batch)


def _refill(segments: Segments, end_offset: int, states: ProducerStates) -> Generator[None, None, None]:
    """Finds what a snapshot at ``end_offset`` lacks in the batches before it: the last five batches of each producer,
    so that a retry that comes after a restart is recognised (P-6; Kafka refuses it), and the completed transactions
    whose markers the high watermark may not have passed (X-13)."""
    marks: dict[int, list[BatchMark]] = {}
    begun: dict[int, int] = {}
    places, is_all = _before(segments, end_offset)
    states.completed_from = 0
    for count, header in enumerate(places, 1):
        producer_id, offset = header.producer_id, header.base_offset
        if producer_id >= 0 and header.is_control and header.record_count:
            first = begun.pop(producer_id, None)
            if first is not None:
                states.completed.append((first, offset))
            elif not is_all:  # Its transaction may have begun before the batches that are read here.
                states.completed_from = offset + 1
        elif producer_id >= 0 and not header.is_control:
            if header.is_transactional:
                begun.setdefault(producer_id, offset)
            producer = states.by_id.get(producer_id)
            if producer is not None and header.producer_epoch == producer.producer_epoch:
                marks.setdefault(producer_id, []).append(mark_of(header, offset, header.max_timestamp_ms))
        if count % BATCHES_PER_SLICE == 0:
            yield
    for producer_id, found in marks.items():
        producer = states.by_id[producer_id]
        if producer.marks and found[-1].last_offset == producer.marks[-1].last_offset:
            states.by_id[producer_id] = producer._replace(marks=tuple(found[-REMEMBERED_BATCHES:]))


def _before(segments: Segments, end_offset: int) -> tuple[Iterator[BatchHeader], bool]:
    """Returns the headers of the last REFILL_BYTES before an offset, and whether they tell where each transaction
    began that ended there."""
    last = at = segments.index_of(end_offset - 1)
    stop = size = segments[last].position_of(segments.disk, end_offset)
    while at > 0 and size < REFILL_BYTES:
        at -= 1
        size += segments[at].size_bytes
    start = segments[at].offsets.boundary_at_or_before(max(size - REFILL_BYTES, 0))

    def read() -> Iterator[BatchHeader]:
        for number, segment in enumerate(segments[at : last + 1], at):
            begin, end = start if number == at else 0, stop if number == last else segment.size_bytes
            for _, header in headers(segments.disk, segment.path, begin, end):
                yield header

    return read(), at == start == 0 and segments.items[0].open_from < 0
