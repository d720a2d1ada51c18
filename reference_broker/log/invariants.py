"""Invariants of a log's state. Each check gets values, and raises AssertionError with a sentence.

Cheap assertions are where the state changes, and run in production. The checks in this file walk over everything that
a log has in memory. ``UnifiedLog.check_invariants`` runs them all. The simulator calls it after each event for the
logs that the event touched. Tests call it too, production does not.
"""

from collections.abc import Sequence
from itertools import islice, pairwise
from operator import lt

from reference_broker.log.durability import Durability
from reference_broker.log.leader_epochs import LeaderEpochFileCache
from reference_broker.log.producer_state import REMEMBERED_BATCHES, ProducerStateEntry, ProducerStateManager
from reference_broker.log.segment import Segment
from reference_broker.log.segments import Segments


def check_offsets(log_start_offset: int, local_log_start_offset: int, high_watermark: int, log_end_offset: int) -> None:
    assert 0 <= log_start_offset <= local_log_start_offset, (
        f"local records begin at {local_log_start_offset}, before the log's start {log_start_offset}"
    )
    assert local_log_start_offset <= high_watermark <= log_end_offset, (
        f"the high watermark {high_watermark} lies outside {local_log_start_offset}..{log_end_offset}"
    )


def check_segments(segments: Segments, local_log_start_offset: int, log_end_offset: int, closed_too: bool) -> None:
    """Check that the list agrees with its base offsets, and that segments follow each other without an overlap. With
    ``closed_too`` check all of them and what is in them, otherwise only the end of the active one and of its indexes.
    They grow by a few entries at a time, and those before were checked then."""
    items = segments.items
    last, last_bases = (items, segments.bases) if closed_too else (items[-2:], segments.bases[-2:])
    assert len(segments.bases) == len(items), "there are as many base offsets as segments"
    assert last_bases == [segment.base_offset for segment in last], "base offsets differ from those of the segments"
    for before, after in pairwise(last):
        assert before.next_offset <= after.base_offset, (
            f"segment {before.base_offset} ends at {before.next_offset}, inside segment {after.base_offset}"
        )
        assert before.base_offset < after.base_offset, f"two segments begin at {after.base_offset}"
    if items:
        assert items[0].base_offset <= local_log_start_offset, (
            f"the log starts at {local_log_start_offset}, before its first segment {items[0].base_offset}"
        )
        assert items[-1].next_offset == log_end_offset, (
            f"the log ends at {log_end_offset}, its last segment at {items[-1].next_offset}"
        )
    for segment in items if closed_too else items[-1:]:
        _check_segment(segment, 0 if closed_too else -_LATEST)


_LATEST = 64
"""Number of an index's last entries that are compared when only the active segment has grown."""


def _check_segment(segment: Segment, begin: int) -> None:
    """Check the segment, and its indexes from entry ``begin`` on."""
    offsets, times = segment.offsets, segment.times
    assert segment.next_offset >= segment.base_offset, f"{segment.path} ends before it begins"
    assert (segment.size_bytes == 0) == (segment.next_offset == segment.base_offset), (
        f"{segment.path} has {segment.size_bytes} bytes for offsets up to {segment.next_offset}"
    )
    last = segment.next_offset - segment.base_offset - 1
    for name, values, limit in (
        ("offsets", offsets.keys, last),
        ("last offsets", offsets.last_offsets, last),
        ("positions", offsets.positions, segment.size_bytes - 1),
        ("times", times.timestamps, segment.max_timestamp_ms),
        ("offsets of times", times.offsets, last),
    ):
        if values:
            assert _rises(values[begin:]), f"{segment.path}: the {name} of the index do not rise: {list(values)}"
            assert values[-1] <= limit, f"{segment.path}: the {name} of the index go beyond {limit}"
    assert segment.aborted.is_known, f"{segment.path}: its aborted transactions are not known"
    for entry in segment.aborted.entries:
        marker = entry.last_offset
        is_inside = segment.base_offset <= marker <= segment.base_offset + last
        assert entry.first_offset < marker and is_inside, (  # noqa: PT018 - one message for both, made only if it is due
            f"{segment.path}: an aborted transaction of producer {entry.producer_id} lies at "
            f"{entry.first_offset}..{marker}"
        )


def check_durability(durability: Durability, durable_end: int, cleaned_offset: int, log_end_offset: int) -> None:
    synced = durability.synced_offset
    assert 0 <= synced <= log_end_offset, f"the synced offset {synced} lies beyond the log's end {log_end_offset}"
    assert 0 <= durable_end <= log_end_offset, (
        f"the durable end {durable_end} lies beyond the log's end {log_end_offset}"
    )
    assert 0 <= cleaned_offset <= log_end_offset, (
        f"the cleaned offset {cleaned_offset} lies beyond the log's end {log_end_offset}"
    )


def check_epochs(epochs: LeaderEpochFileCache, log_start_offset: int, log_end_offset: int) -> None:
    """Check that epochs and their start offsets rise. An epoch may start at the log end offset, because its leader may
    have written nothing yet."""
    assert len(epochs.epochs) == len(epochs.starts), "each epoch has one start offset"
    assert _rises(epochs.epochs), f"the leader epochs do not rise: {epochs.epochs}"
    assert _rises(epochs.starts), f"the start offsets of the leader epochs do not rise: {epochs.starts}"
    if epochs.starts:
        assert log_start_offset <= epochs.starts[0] <= epochs.starts[-1] <= log_end_offset, (
            f"epochs start at {epochs.starts}, outside {log_start_offset}..{log_end_offset}"
        )


def check_producers(producers: ProducerStateManager, log_end_offset: int) -> None:
    begun: dict[int, int] = {}
    for producer_id, producer in producers.by_id.items():
        _check_producer(producer_id, producer, log_end_offset)
        if producer.current_txn_first_offset >= 0:
            begun[producer_id] = producer.current_txn_first_offset
    assert begun == producers.open_transactions, (
        f"the producers have begun {begun}, and the open transactions are {producers.open_transactions}"
    )


def _check_producer(producer_id: int, producer: ProducerStateEntry, log_end_offset: int) -> None:
    """Check offsets only. A follower takes over whatever sequences its leader has. The simulator's checks of the whole
    cluster judge those."""
    marks = producer.batch_metadata
    assert len(marks) <= REMEMBERED_BATCHES, f"producer {producer_id}: {len(marks)} batches are remembered"
    end = marks[0].first_offset - 1 if marks else -1
    for mark in marks:
        assert mark.first_offset <= mark.last_offset, f"producer {producer_id}: a batch ends before it begins"
        assert end < mark.first_offset, (
            f"producer {producer_id}: its batches at ..{end} and {mark.first_offset}..{mark.last_offset} overlap"
        )
        end = mark.last_offset
    assert end < log_end_offset or not marks, (
        f"producer {producer_id}: its last batch ends at {end}, beyond the log's end {log_end_offset}"
    )


def _rises(values: Sequence[int]) -> bool:
    return len(values) < 2 or all(map(lt, values, islice(values, 1, None)))
