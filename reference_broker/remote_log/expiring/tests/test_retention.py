"""Segments selected by retention, on small lists of segments."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.ports.slicing import Sliced
from reference_broker.remote_log.expiring.expirer import Due, LeaderLog, Shares
from reference_broker.remote_log.expiring.expirer import due as sliced_due
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadata
from reference_broker.remote_log.metadata.tests.remote_events import copy_of

SIZE = 100
FoundT = TypeVar("FoundT")


def log_of(*lineage: tuple[int, int], start: int = 0, local: int = 0, ms: int = -1, limit: int = -1) -> LeaderLog:
    return LeaderLog(start, lineage or ((0, 0),), local, ms, limit)


def to_its_end(work: Sliced[FoundT]) -> FoundT:
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: FoundT = end.value
            return found


def due(listed: Sequence[RemoteLogSegmentMetadata], log: LeaderLog, now_ms: int) -> Due:
    return to_its_end(sliced_due(listed, log, now_ms))


def starts(found: Due) -> list[int]:
    return [segment.start_offset for segment in found.segments]


THREE = [copy_of(1, 0, 9), copy_of(2, 10, 19), copy_of(3, 20, 29)]
"""Each has 100 bytes, and records until 1000 ms."""


@pytest.mark.clause("TopicBasedRemoteLogMetadataManagerTest.testRemoteLogSizeCalculationWithSegmentsOfTheSameEpoch")
@pytest.mark.parametrize(("limit", "gone"), [(1000, 0), (350, 0), (300, 1), (299, 1), (200, 2), (101, 2), (100, 3)])
def test_local_and_remote_bytes_count_together(limit: int, gone: int) -> None:
    """Beside the remote segments there are 100 bytes that only the log has."""
    due_segments = due(THREE, log_of(local=100, limit=limit), 0)
    assert starts(due_segments) == [0, 10, 20][:gone]
    assert due_segments.log_start_offset == 10 * gone


@pytest.mark.parametrize(("now_ms", "gone"), [(1999, 0), (2000, 3)])
def test_segment_expires_with_its_last_record(now_ms: int, gone: int) -> None:
    assert len(due(THREE, log_of(ms=1000), now_ms).segments) == gone


def test_first_kept_segment_keeps_later_ones() -> None:
    young = replace(THREE[0], max_timestamp_ms=5_000)
    assert not due([young, *THREE[1:]], log_of(ms=1000), 3_000).segments


@pytest.mark.clause("RemoteLogManagerTest.testDeletionOnOverlappingRetentionBreachedSegments")
def test_diverged_log_moves_start_only_within_shared_part() -> None:
    """Records from 5 on are of another history. The segment is needed up to there."""
    branch = [copy_of(1, 0, 9), copy_of(2, 5, 14, (1, 5))]
    due_segments = due(branch, log_of((0, 0), (1, 5), ms=0, limit=-1), 1_000_000)
    assert starts(due_segments) == [0, 5]
    assert due_segments.log_start_offset == 15
    due_segments = due(branch, log_of((0, 0), (1, 5), local=0, limit=100), 0)
    assert (starts(due_segments), due_segments.log_start_offset) == ([0], 5)


@pytest.mark.clause(
    "RemoteLogManagerTest.testRemoteSegmentWithinLeaderEpochs",
    "TopicBasedRemoteLogMetadataManagerTest.testRemoteLogSizeCalculationWithSegmentsHavingNonExistentEpochs",
)
def test_segment_of_other_lineage_is_ignored_until_its_epochs_end() -> None:
    other = copy_of(9, 0, 9, (2, 0))
    lineage = (1, 0), (3, 5)
    assert not due([other], log_of(*lineage, ms=0, limit=0), 1_000_000).segments
    assert starts(due([other], log_of((3, 5), start=5), 0)) == [0]


@pytest.mark.parametrize(("start", "gone"), [(0, []), (9, []), (10, [0]), (29, [0, 10]), (30, [0, 10, 20])])
def test_segments_before_log_start_are_removed(start: int, gone: list[int]) -> None:
    due_segments = due(THREE, log_of(start=start), 0)
    assert starts(due_segments) == gone
    assert due_segments.log_start_offset == start


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=8), st.integers(0, 900), st.integers(0, 12))
def test_removed_segments_are_prefix_and_rest_is_sufficient(
    shapes: list[tuple[int, int]], limit: int, age_ms: int
) -> None:
    """For consecutive segments: the log keeps its last ``limit`` bytes if it had that many, and every record that is
    young
    enough unless there are too many bytes."""
    segments: list[RemoteLogSegmentMetadata] = []
    offset = 0
    for number, (length, last_ms) in enumerate(shapes, 1):
        segments.append(replace(copy_of(number, offset, offset + length - 1, (0, offset)), max_timestamp_ms=last_ms))
        offset += length
    due_segments = due(segments, log_of(ms=age_ms, limit=limit), 12)
    gone = len(due_segments.segments)
    assert list(due_segments.segments) == segments[:gone]
    assert due_segments.log_start_offset == (segments[gone - 1].next_offset if gone else 0)
    stays = segments[gone:]
    if stays:
        total = sum(each.size_bytes for each in stays)
        assert stays[0].max_timestamp_ms > 12 - age_ms
        assert total - SIZE < limit
    for at, segment in enumerate(due_segments.segments):
        rest = SIZE * (len(segments) - at - 1)
        assert segment.max_timestamp_ms <= 12 - age_ms or rest >= limit


@pytest.mark.clause("RemoteLogManagerTest.testRemoteSegmentWithinLeaderEpochsForOverlappingSegments")
def test_segment_with_log_start_inside_belongs_to_log() -> None:
    lineage = (7, 51), (9, 100)
    assert Shares(lineage).end(copy_of(1, 14, 150, (5, 14), (7, 15), (9, 100))) == 151
    assert Shares(lineage).end(copy_of(2, 14, 50, (5, 14), (7, 15))) is None
    assert Shares(lineage).end(copy_of(3, 14, 150, (5, 14), (6, 60))) is None


def test_first_remaining_record_is_found_by_epochs() -> None:
    lineage = (0, 0), (1, 15)
    segments = [copy_of(1, 10, 19), copy_of(2, 15, 24, (1, 15))]
    assert to_its_end(Shares(lineage).first(segments, 3)) == 10
    assert to_its_end(Shares(lineage).first(segments, 12)) == 12
    assert to_its_end(Shares(lineage).first(segments[1:], 0)) == 15
    assert to_its_end(Shares(lineage).first(segments, 25)) is None
