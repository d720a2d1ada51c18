"""Producer state rebuilt from a snapshot and the batches after it (P-4, P-12).

``replay`` is for a start and a truncation. They also find aborted transactions again, for segments whose index is
missing or damaged (Kafka's LogLoader.recoverSegment and UnifiedLog.rebuildProducerState).

``recreate`` makes the snapshot that a segment due for upload lacks (KAFKA-15195; P-8, P-9, P-10). It need not replay
the log from its beginning, since producers that are idle for longer than ``producer.id.expiration.ms`` are removed
anyway (P-7). The replay begins at the later of these two places:

- a whole snapshot that exists,
- the first segment with a record that is younger than the expiration.

Transactions have no age. One that is open where the snapshot is to be, or that ended on the way there, may have begun
before that place. Then the replay begins where it began. A start and each roll note for every segment the earliest one
that is open at its beginning, so that no search is needed. The last marker of a producer may be before that place,
too. Its coordinator epoch is searched further back.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reference_broker.log.indexes import Aborted
from reference_broker.log.producer_state import (
    REMEMBERED_BATCHES,
    BatchMetadata,
    ProducerStateEntry,
    ProducerStateManager,
    batch_metadata_of,
    pieces_of,
    restore_in_slices,
)
from reference_broker.log.segment import Segment, headers
from reference_broker.log.segments import Segments
from reference_broker.log.timestamp_lookup import Overtaken
from reference_broker.ports.disk import Disk
from reference_broker.ports.slicing import RECREATED_BATCHES_PER_SLICE, REPLAYED_BATCHES_PER_SLICE, Sliced
from reference_broker.records.batch import BatchHeader
from reference_broker.records.control import read_marker

MAX_OFFSET = 2**63 - 1
REFILL_BYTES = 16 * 1024 * 1024
"""How far before a snapshot batches are read for the state that it lacks. A retry comes soon or not at all, and the
high watermark soon passes older markers."""


def replay(
    segments: Segments, empty: ProducerStateManager, log_start_offset: int, end_offset: int = MAX_OFFSET
) -> Sliced[ProducerStateManager]:
    """Return the state after the batches that end before ``end_offset``, in slices. ``empty`` has the settings.

    It comes from the newest whole snapshot and the batches behind that, or from all batches. Segments behind the
    snapshot whose transaction index is not known get their entries on the way; those before it must be known. As in
    Kafka, which replays from the log start, a marker before it does not make its producer known: the next sequence of a
    producer whose batches were all deleted would be refused. Raise DiskError.
    """
    states = empty.empty_copy()
    offset = segments.bases[0]
    snapshot = yield from segments.snapshots.load(states, offset, end_offset)
    if snapshot is not None:
        offset = snapshot
        if states.by_id:
            yield from _refill(segments, offset, states)
    yield from _walk(segments, offset, end_offset, states, log_start_offset)
    return states


def index_again(segments: Segments, empty: ProducerStateManager, unknown: Sequence[Segment]) -> Sliced[None]:
    """Find the aborted transactions of segments whose index is not known, the oldest first. Raise DiskError."""
    states, at = empty.empty_copy(), -1
    for segment in unknown:
        base = segment.base_offset
        newest = segments.snapshots.newest(segments.bases[0], base)
        if at < 0 or (newest is not None and newest[0] > at):
            states = empty.empty_copy()
            at = (yield from segments.snapshots.load(states, segments.bases[0], base)) or segments.bases[0]
        yield from _walk(segments, at, base, states)
        yield from _walk(segments, base, segment.next_offset, states)
        at = segment.next_offset


def _walk(
    segments: Segments, offset: int, end_offset: int, states: ProducerStateManager, log_start_offset: int = 0
) -> Sliced[None]:
    """Note the batches from ``offset`` on that end before ``end_offset``, but no marker before ``log_start_offset`` of
    a producer that is not known. The places of snapshots that Kafka would have there, too (the last two segments), get
    one."""
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
            is_deleted_marker = header.is_control and header.base_offset < log_start_offset
            if header.producer_id >= 0 and not (is_deleted_marker and header.producer_id not in states.by_id):
                aborted = note_batch(disk, segment, position, header, states)
                if unknown and header.is_control:
                    segment.aborted.note(aborted)
            count += 1
            if count % REPLAYED_BATCHES_PER_SLICE == 0:
                yield


def note_batch(
    disk: Disk, segment: Segment, position: int, header: BatchHeader, states: ProducerStateManager
) -> Aborted | None:
    """Note one batch of a producer. Return the transaction that it aborts, if it does. Raise DiskError."""
    if not header.is_control:
        states.record(header, header.base_offset, header.max_timestamp_ms)
        return None
    batch = disk.read(segment.path, position, header.size_bytes)
    return states.record_control(header, header.base_offset, header.max_timestamp_ms, batch)


def _refill(segments: Segments, end_offset: int, states: ProducerStateManager) -> Sliced[None]:
    """Find what a snapshot at ``end_offset`` lacks in the batches before it: the last five batches of each producer,
    so that a retry that comes after a restart is recognised (P-6; Kafka refuses it), and the completed transactions
    whose markers the high watermark may not have passed (X-13).

    The batches of one producer, where ``[`` is where the reading begins, and ``|`` is ``end_offset``::

        data data COMMIT [ data COMMIT  data data ABORT  data |
                           ^    ^       ^         ^
                           (first, marker) of each is in ``completed``

    A marker without data behind ``[`` belongs to a transaction that began before it. Only transactions that ended after
    that marker are known then (``completed_from``).
    """
    recent: dict[int, list[BatchMetadata]] = {}
    """By producer ID, its batches with the epoch that the snapshot has."""
    open_from: dict[int, int] = {}
    """By producer ID, the first offset of its transaction that has no marker yet."""
    places, is_all = _before(segments, end_offset)
    states.completed_from = 0
    for count, header in enumerate(places, 1):
        producer_id, offset = header.producer_id, header.base_offset
        if producer_id >= 0 and header.is_control and header.record_count:
            first = open_from.pop(producer_id, None)
            if first is not None:
                states.completed.append((first, offset))
            elif not is_all:  # Its transaction may have begun before the batches that are read here.
                states.completed_from = offset + 1
        elif producer_id >= 0 and not header.is_control:
            if header.is_transactional:
                open_from.setdefault(producer_id, offset)
            producer = states.by_id.get(producer_id)
            if producer is not None and header.producer_epoch == producer.producer_epoch:
                recent.setdefault(producer_id, []).append(batch_metadata_of(header, offset, header.max_timestamp_ms))
        if count % REPLAYED_BATCHES_PER_SLICE == 0:
            yield
    for producer_id, batches in recent.items():
        producer = states.by_id[producer_id]
        if producer.batch_metadata and batches[-1].last_offset == producer.batch_metadata[-1].last_offset:
            states.by_id[producer_id] = producer._replace(batch_metadata=tuple(batches[-REMEMBERED_BATCHES:]))


def _before(segments: Segments, end_offset: int) -> tuple[Iterator[BatchHeader], bool]:
    """Return the headers of the last REFILL_BYTES before an offset, and whether they show where each transaction
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


class RecreatedSnapshot(NamedTuple):
    """A snapshot, and the cost of making it."""

    snapshot: bytes
    """Kafka's file."""
    from_offset: int
    """The offset at which the replay began."""
    read_bytes: int
    """The number of bytes read of the log."""


def recreate(
    segments: Segments, offset: int, now_ms: int, expiration_ms: int, live: Mapping[int, ProducerStateEntry]
) -> Sliced[RecreatedSnapshot]:
    """Make the snapshot at ``offset``, where a segment begins. In slices. Snapshots that are found damaged are
    deleted (P-12). ``live`` are the producers that the log knows now.

    Raise Overtaken if the log loses records meanwhile, DiskError, and InvalidRecords where a file is damaged.
    """
    assert offset in segments.bases, f"no segment begins at {offset}"
    begin = replay_start(segments, offset, now_ms - expiration_ms)
    return (yield from recreate_from(segments, begin, offset, now_ms, expiration_ms, live))


def recreate_from(
    segments: Segments, begin: int, offset: int, now_ms: int, expiration_ms: int, live: Mapping[int, ProducerStateEntry]
) -> Sliced[RecreatedSnapshot]:
    """Make the snapshot at ``offset`` by a replay from ``begin`` on, or from a newer snapshot that exists."""
    states = ProducerStateManager(expiration_ms, reject_unknown=False)
    snapshot = segments.snapshots.newest(begin, offset)
    if snapshot is not None:  # Decision recreation-begin
        begin, producers = snapshot
        yield from restore_in_slices(states, producers)
    snapshotted = frozenset(states.by_id)
    read_bytes, fresh = yield from _replay(segments, begin, offset, states)
    states.expire(now_ms)
    unknown_ids = {
        producer_id
        for producer_id, producer in states.by_id.items()
        if producer.coordinator_epoch < 0
        and producer_id not in snapshotted
        and (producer_id not in live or live[producer_id].coordinator_epoch >= 0)
    }
    if snapshot is not None:
        unknown_ids -= fresh
    read_bytes += yield from _find_coordinator_epochs(segments, begin, states, unknown_ids, fresh)
    return RecreatedSnapshot(b"".join((yield from pieces_of(states.by_id))), begin, read_bytes)


def replay_start(segments: Segments, offset: int, expired_ms: int) -> int:
    """Return where the replay begins if there is no newer snapshot. Producers without a record after ``expired_ms``
    are removed."""
    last = segments.index_of(offset)
    young = next(
        (segment for segment in segments.items[:last] if segment.max_timestamp_ms > expired_ms), segments.items[last]
    )
    return young.base_offset if young.open_from < 0 else young.open_from  # Decision recreation-start


def _replay(segments: Segments, begin: int, offset: int, states: ProducerStateManager) -> Sliced[tuple[int, set[int]]]:
    """Return how many bytes were read, and which producers begin here with their very first batch."""
    fresh: set[int] = set()
    disk, cuts, count, read_bytes = segments.disk, segments.durability.last_cut, 0, 0

    def note_read(size: int) -> None:
        nonlocal read_bytes
        read_bytes += size

    for segment in segments.items[segments.index_of(begin) : segments.index_of(offset)]:
        start = segment.offsets.floor(begin - segment.base_offset)
        for position, header in headers(disk, segment.path, start, segment.size_bytes, note_read=note_read):
            if header.producer_id >= 0:
                if header.producer_id not in states.by_id and header.producer_epoch == header.base_sequence == 0:
                    fresh.add(header.producer_id)
                note_batch(disk, segment, position, header, states)
            count += 1
            if count % RECREATED_BATCHES_PER_SLICE == 0:
                yield
                if segments.durability.last_cut != cuts or segment not in segments.items:  # Decision recreation
                    raise Overtaken(f"{segment.path} is not what it was")
    return read_bytes, fresh


def _find_coordinator_epochs(
    segments: Segments, begin: int, states: ProducerStateManager, unknown_ids: set[int], fresh: set[int]
) -> Sliced[int]:
    """Find the coordinator epochs of producers whose last marker lies before ``begin``: without it a marker of an old
    coordinator would be taken (X-6). Go back from segment to segment, until each of ``unknown_ids`` has one or a
    snapshot has it. A whole snapshot without a producer was made before its first batch, or when it had expired. Return
    the number of bytes that were read."""
    disk, cuts, count, read_bytes = segments.disk, segments.durability.last_cut, 0, 0

    def note_read(size: int) -> None:
        nonlocal read_bytes
        read_bytes += size

    for segment in reversed(segments.items[: segments.index_of(begin) + 1]):
        if not unknown_ids:
            break
        epochs: dict[int, int] = {}
        end = segment.position_of(disk, begin) if begin > segment.base_offset else 0
        for position, header in headers(disk, segment.path, 0, end, note_read=note_read):
            if header.is_control and header.producer_id in unknown_ids:
                marker = read_marker(disk.read(segment.path, position, header.size_bytes), header)
                if marker is not None:
                    epochs[header.producer_id] = max(marker[1], epochs.get(header.producer_id, -1))
            count += 1
            if count % RECREATED_BATCHES_PER_SLICE == 0:
                yield
                if segments.durability.last_cut != cuts or segment not in segments.items:
                    raise Overtaken(f"{segment.path} is not what it was")
        snapshot = segments.snapshots.newest(segment.base_offset, segment.base_offset)
        for producer_id, producer in snapshot[1] if snapshot is not None else ():
            if producer_id in unknown_ids:
                epochs.setdefault(producer_id, producer.coordinator_epoch)
        for producer_id, epoch in epochs.items():
            states.by_id[producer_id] = states.by_id[producer_id]._replace(coordinator_epoch=epoch)
        unknown_ids.difference_update(epochs, fresh if snapshot is not None else ())
    return read_bytes
