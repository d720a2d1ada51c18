"""Makes a snapshot of producers that a segment due for upload lacks (KAFKA-15195; P-8, P-9, P-10).

A snapshot is not needed whole: producers that are idle for longer than ``producer.id.expiration.ms`` are forgotten
anyway (P-7). So the batches are not replayed from the beginning of the log, but from the latest of these two places:

- a whole snapshot that is already there,
- the first segment with a record that is younger than the expiration.

Transactions have no age. One that is open where the snapshot is to be, or that ended on the way there, may have begun
before that place. Then the replay begins where it began. A start and each roll note for every segment the earliest one
that is open at its beginning, so that nobody has to search for it.

The last marker of a producer may lie before that place, too. Its coordinator epoch is looked for further back.
"""

from collections.abc import Generator, Mapping
from typing import NamedTuple

from reference_broker.log.lookup import Overtaken
from reference_broker.log.producer_snapshots import pieces_of, restored
from reference_broker.log.producer_state import Producer, ProducerStates
from reference_broker.log.replay import noted
from reference_broker.log.segment import headers
from reference_broker.log.segments import Segments
from reference_broker.records.control import read_marker

BATCHES_PER_SLICE = 500


class Recreated(NamedTuple):
    """``snapshot`` is Kafka's file. ``from_offset`` is where the replay began. ``read_bytes`` were read of the log."""

    snapshot: bytes
    from_offset: int
    read_bytes: int


def recreated(
    segments: Segments, offset: int, now_ms: int, expiration_ms: int, live: Mapping[int, Producer]
) -> Generator[None, None, Recreated]:
    """Makes the snapshot at ``offset``, where a segment begins. In slices. Snapshots that are found damaged are
    deleted (P-12). ``live`` are the producers that the log knows now.

    Raises Overtaken if the log loses records meanwhile, DiskError, and InvalidRecords where a file is damaged.
    """
    assert offset in segments.bases, f"no segment begins at {offset}"
    begin = replay_start(segments, offset, now_ms - expiration_ms)
    return (yield from recreated_from(segments, begin, offset, now_ms, expiration_ms, live))


def recreated_from(
    segments: Segments, begin: int, offset: int, now_ms: int, expiration_ms: int, live: Mapping[int, Producer]
) -> Generator[None, None, Recreated]:
    """The same from ``begin`` on, or from a newer snapshot that is there."""
    states = ProducerStates(expiration_ms, reject_unknown=False)
    known = segments.snapshots.newest(begin, offset)
    if known is not None:
        begin, producers = known
        yield from restored(states, producers)
    snapshotted = frozenset(states.by_id)
    read_bytes, fresh = yield from _replay(segments, begin, offset, states)
    states.expire(now_ms)
    wanted = {
        producer_id
        for producer_id, producer in states.by_id.items()
        if producer.coordinator_epoch < 0
        and producer_id not in snapshotted
        and (producer_id not in live or live[producer_id].coordinator_epoch >= 0)
    }
    if known is not None:
        wanted -= fresh
    read_bytes += yield from _find_coordinator_epochs(segments, begin, states, wanted, fresh)
    return Recreated(b"".join((yield from pieces_of(states.by_id))), begin, read_bytes)


def replay_start(segments: Segments, offset: int, expired_ms: int) -> int:
    """Where the replay begins if there is no newer snapshot. ``expired_ms``: who wrote nothing after that time is
    forgotten."""
    last = segments.index_of(offset)
    young = next(
        (segment for segment in segments.items[:last] if segment.max_timestamp_ms > expired_ms), segments.items[last]
    )
    return young.base_offset if young.open_from < 0 else young.open_from


def _replay(
    segments: Segments, begin: int, offset: int, states: ProducerStates
) -> Generator[None, None, tuple[int, set[int]]]:
    """Returns how many bytes were read, and which producers begin here with their very first batch."""
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
                noted(disk, segment, position, header, states)
            count += 1
            if count % BATCHES_PER_SLICE == 0:
                yield
                if segments.durability.last_cut != cuts or segment not in segments.items:
                    raise Overtaken(f"{segment.path} is not what it was")
    return read_bytes, fresh


def _find_coordinator_epochs(
    segments: Segments, begin: int, states: ProducerStates, wanted: set[int], fresh: set[int]
) -> Generator[None, None, int]:
    """Finds the coordinator epochs of producers whose last marker lies before ``begin``: without it a marker of an old
    coordinator would be taken (X-6). Goes back from segment to segment, until each of ``wanted`` has one or a snapshot
    tells it. A whole snapshot without a producer was made before its first batch, or when it had expired. Returns how
    many bytes were read."""
    disk, cuts, count, read_bytes = segments.disk, segments.durability.last_cut, 0, 0

    def note_read(size: int) -> None:
        nonlocal read_bytes
        read_bytes += size

    for segment in reversed(segments.items[: segments.index_of(begin) + 1]):
        if not wanted:
            break
        found: dict[int, int] = {}
        end = segment.position_of(disk, begin) if begin > segment.base_offset else 0
        for position, header in headers(disk, segment.path, 0, end, note_read=note_read):
            if header.is_control and header.producer_id in wanted:
                marker = read_marker(disk.read(segment.path, position, header.size_bytes), header)
                if marker is not None:
                    found[header.producer_id] = max(marker[1], found.get(header.producer_id, -1))
            count += 1
            if count % BATCHES_PER_SLICE == 0:
                yield
                if segments.durability.last_cut != cuts or segment not in segments.items:
                    raise Overtaken(f"{segment.path} is not what it was")
        snapshot = segments.snapshots.newest(segment.base_offset, segment.base_offset)
        for producer_id, producer in snapshot[1] if snapshot is not None else ():
            if producer_id in wanted:
                found.setdefault(producer_id, producer.coordinator_epoch)
        for producer_id, epoch in found.items():
            states.by_id[producer_id] = states.by_id[producer_id]._replace(coordinator_epoch=epoch)
        wanted.difference_update(found, fresh if snapshot is not None else ())
    return read_bytes
