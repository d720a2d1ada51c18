"""Assertions of Kafka's own tests of remote segments' metadata, each by the name of its test."""

from dataclasses import replace

import pytest

from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadata, RemoteLogSegmentState
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadataCache
from reference_broker.remote_log.metadata.tests.remote_events import (
    DELETED,
    DELETING,
    FINISHED,
    STARTED,
    copy_of,
    step,
)
from reference_broker.wire.errors import ErrorCode


def after(*segments: RemoteLogSegmentMetadata, state: RemoteLogSegmentState = FINISHED) -> RemoteLogMetadataCache:
    """Return the metadata after each was copied, in this order. ``state``: the last one of each."""
    known = RemoteLogMetadataCache()
    for segment in segments:
        assert known.apply(segment) is ErrorCode.none
        for each in RemoteLogSegmentState:
            if STARTED < each <= state:
                assert known.apply(step(segment, each)) is ErrorCode.none
    return known


def listed(known: RemoteLogMetadataCache) -> list[RemoteLogSegmentMetadata]:
    return [as_copy_started(each) for each in known.listed()]


def as_copy_started(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    return replace(segment, state=STARTED, event_timestamp_ms=2_000)


def garbage(known: RemoteLogMetadataCache) -> set[bytes]:
    return {each.segment_id for each in known.unfinished()}


def owner(known: RemoteLogMetadataCache, epoch: int, offset: int) -> bytes | None:
    segment = known.segment_for(epoch, offset)
    return None if segment is None else segment.segment_id


@pytest.mark.clause("RemoteLogMetadataCacheTest.testCacheAddMetadataOnInvalidArgs")
@pytest.mark.parametrize("state", [FINISHED, DELETING, DELETED])
def test_first_event_must_be_copy_started(state: RemoteLogSegmentState) -> None:
    known = RemoteLogMetadataCache()
    assert known.apply(replace(copy_of(1, 0, 100), state=state)) is ErrorCode.invalid_request
    assert not len(known)


@pytest.mark.clause("RemoteLogMetadataCacheTest.testCacheUpdateMetadataOnInvalidArgs")
@pytest.mark.parametrize("state", [FINISHED, DELETING, DELETED])
def test_update_of_unknown_segment_is_ignored(state: RemoteLogSegmentState) -> None:
    known = RemoteLogMetadataCache()
    assert known.apply(step(copy_of(1, 0, 100), state)) is ErrorCode.resource_not_found
    assert not len(known)


@pytest.mark.clause("RemoteLogMetadataCacheTest.testDropEventOnInvalidStateTransition")
def test_invalid_transition_is_ignored() -> None:
    """The steps of Kafka's test, with the state after each."""
    segment = copy_of(1, 10, 100, (5, 10))
    known = after(segment, state=STARTED)
    for state, then in (
        (DELETED, STARTED),
        (FINISHED, FINISHED),
        (DELETED, FINISHED),
        (STARTED, FINISHED),
        (DELETING, DELETING),
        (FINISHED, DELETING),
        (STARTED, DELETING),
    ):
        error = known.apply(step(segment, state))
        assert (error is ErrorCode.none) is (state is then)
        assert known.get(segment.segment_id).state is then  # type: ignore[union-attr]
    assert known.apply(step(segment, DELETED)) is ErrorCode.none
    assert not len(known)


@pytest.mark.clause("RemoteLogLeaderEpochStateTest.testListAllRemoteLogSegmentsOnEmpty")
def test_new_metadata_is_empty() -> None:
    known = RemoteLogMetadataCache()
    assert listed(known) == []
    assert known.unfinished() == ()
    assert known.highest_offset(0) is None
    assert owner(known, 0, 0) is None


@pytest.mark.clause("RemoteLogLeaderEpochStateTest.testListAllRemoteLogSegmentsShouldReturnSortedSegments")
@pytest.mark.clause("RemoteLogSegmentLifecycleTest.testCacheListSegments")
def test_segments_are_listed_by_start_offset() -> None:
    one, two, three = copy_of(1, 201, 400, (0, 201), (1, 301)), copy_of(2, 0, 100), copy_of(3, 101, 200)
    assert listed(after(one, two, three)) == [two, three, one]


@pytest.mark.clause("RemoteLogLeaderEpochStateTest.handleSegmentWithCopySegmentStartedState")
@pytest.mark.clause("RemoteLogSegmentLifecycleTest.testCacheSegmentWithCopySegmentStartedState")
def test_started_copy_is_known_and_not_read() -> None:
    segment = copy_of(1, 0, 50)
    known = after(segment, state=STARTED)
    assert owner(known, 0, 0) is None
    assert listed(known) == []
    assert garbage(known) == {segment.segment_id}
    assert known.highest_offset(0) is None


@pytest.mark.clause("RemoteLogLeaderEpochStateTest.handleSegmentWithCopySegmentFinishedState")
@pytest.mark.clause("RemoteLogSegmentLifecycleTest.testCacheSegmentWithCopySegmentFinishedState")
@pytest.mark.clause("RemoteLogMetadataManagerTest.testFetchSegments")
def test_finished_copy_is_read_where_it_has_offset() -> None:
    one, two = copy_of(1, 10, 100), copy_of(2, 101, 200)
    known = after(one, two)
    assert (owner(known, 0, 90), owner(known, 0, 150)) == (one.segment_id, two.segment_id)
    assert owner(known, 0, 9) is None
    assert owner(known, 0, 201) is None
    assert owner(known, 1, 90) is None
    assert known.highest_offset(0) == 200
    assert not garbage(known)


@pytest.mark.clause(
    "RemoteLogLeaderEpochStateTest.handleSegmentWithCopySegmentFinishedStateForOverlappingSegments",
    "RemoteLogLeaderEpochStateTest.handleSegmentWithCopySegmentFinishedStateForMultipleOverlappingSegments",
    "RemoteLogLeaderEpochStateTest.handleSegmentWithCopySegmentFinishedStateForDuplicateSegments",
    "RemoteLogLeaderEpochStateTest.handleSegmentWithCopySegmentFinishedStateForSegmentsWithSameStartOffset",
)
@pytest.mark.parametrize(
    "ranges",
    [
        [(10, 100), (5, 150)],
        [(10, 100), (5, 150), (148, 155), (4, 200)],
        [(10, 100), (10, 100)],
        [(10, 100), (10, 150)],
    ],
)
def test_newer_segment_replaces_covered_ones(ranges: list[tuple[int, int]]) -> None:
    segments = [copy_of(number, *each) for number, each in enumerate(ranges, 1)]
    known = after(*segments)
    assert listed(known) == segments[-1:]
    assert garbage(known) == {segment.segment_id for segment in segments[:-1]}
    assert {owner(known, 0, offset) for offset in (11, ranges[-1][1])} == {segments[-1].segment_id}
    assert known.highest_offset(0) == ranges[-1][1]


@pytest.mark.clause("RemoteLogLeaderEpochStateTest.handleSegmentWithDeleteSegmentStartedState")
@pytest.mark.clause("RemoteLogSegmentLifecycleTest.testCacheSegmentWithDeleteSegmentStartedState")
def test_segment_with_deletion_started_is_known_and_not_read() -> None:
    one, two = copy_of(1, 10, 100), copy_of(2, 101, 200)
    known = after(one, two, state=DELETING)
    assert (listed(known), garbage(known)) == ([], {one.segment_id, two.segment_id})
    assert owner(known, 0, 50) is None


@pytest.mark.clause("RemoteLogLeaderEpochStateTest.handleSegmentWithDeleteSegmentFinishedState")
@pytest.mark.clause("RemoteLogSegmentLifecycleTest.testCacheSegmentsWithDeleteSegmentFinishedState")
def test_deleted_segment_is_not_known() -> None:
    known = after(copy_of(1, 10, 100), state=DELETED)
    assert listed(known) == []
    assert garbage(known) == set()
    assert len(known) == 0


@pytest.mark.clause(
    "RemoteLogSegmentLifecycleTest.testRemoteLogSegmentLifeCycle",
    "RemoteLogManagerTest.testFetchRemoteLogSegmentMetadata",
)
def test_highest_offsets_by_leader_epoch() -> None:
    zero = copy_of(1, 0, 100, (0, 0), (1, 20), (2, 80))
    known = after(zero, state=STARTED)
    assert owner(known, 1, 40) is None
    assert [known.highest_offset(epoch) for epoch in range(3)] == [None, None, None]
    known.apply(step(zero, FINISHED))
    one, two = copy_of(2, 101, 200, (2, 101)), copy_of(3, 201, 300, (2, 201), (3, 240))
    three = copy_of(4, 250, 400, (3, 250), (4, 370))
    for segment in (one, two, three):
        known.apply(segment)
        known.apply(step(segment, FINISHED))
    for epoch, offset, segment in ((1, 40, zero), (2, 110, one), (3, 240, two), (3, 250, three), (4, 375, three)):
        assert owner(known, epoch, offset) == segment.segment_id
    for epoch, offset in ((1, 110), (4, 401), (5, 301)):
        assert owner(known, epoch, offset) is None
    known.apply(step(zero, DELETING))
    assert owner(known, 0, 10) is None
    known.apply(step(zero, DELETED))
    assert owner(known, 0, 10) is None
    assert [known.highest_offset(epoch) for epoch in range(6)] == [None, None, 239, 369, 400, None]


@pytest.mark.clause("RemoteLogManagerTest.testFindHighestRemoteOffsetOnEmptyRemoteStorage")
def test_empty_tier_lists_nothing() -> None:
    assert RemoteLogMetadataCache().listed_until([(0, 0), (1, 500)], 0) == 0


@pytest.mark.clause(
    "RemoteLogManagerTest.testFindHighestRemoteOffset",
    "RemoteLogManagerTest.testFindHighestRemoteOffsetWithUncleanLeaderElection",
)
@pytest.mark.parametrize(("lineage", "end"), [([(0, 0), (1, 500)], 201), ([(0, 0), (1, 150), (2, 300)], 150)])
def test_listed_offsets_end_at_divergence(lineage: list[tuple[int, int]], end: int) -> None:
    known = after(copy_of(1, 0, 99), copy_of(2, 100, 200))
    assert known.listed_until(lineage, 0) == end
    assert known.listed_until(lineage, 120) == end


def test_late_finish_of_older_copy_does_not_replace_newer_one() -> None:
    older, newer = copy_of(1, 0, 100), copy_of(2, 50, 150)
    known = RemoteLogMetadataCache()
    for event in (older, newer, step(newer, FINISHED), step(older, FINISHED)):
        assert known.apply(event) is ErrorCode.none
    assert (owner(known, 0, 49), owner(known, 0, 50)) == (older.segment_id, newer.segment_id)


def test_finished_segment_cannot_be_abandoned() -> None:
    """The leader that gives it up does not know that it finished."""
    segment = copy_of(1, 0, 100)
    known = after(segment)
    assert known.apply(step(segment, DELETING, expected_state=STARTED)) is ErrorCode.invalid_request
    assert listed(known) == [segment]
    assert known.apply(step(segment, DELETING, expected_state=FINISHED)) is ErrorCode.none
