"""The committed offsets of one partition, compared with a naive model that reads the whole log each time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.groups.committed_offsets import Change, CommitOffset, CommittedOffsets, OffsetKey
from reference_broker.groups.tests.naive_offsets import Commit, Ending, Event, Removal, read_below
from reference_broker.ports.slicing import DECIDED_OFFSETS_PER_SLICE
from reference_broker.records.batch import NO_PRODUCER_ID

KEYS = [OffsetKey(group, topic, index) for group in "gh" for topic in "tu" for index in (0, 1)]
PRODUCERS = (5, 6)
BOUNDARY = 4


class Made(NamedTuple):
    """A batch. None removes an offset."""

    producer: int | None
    offsets: list[tuple[OffsetKey, int | None]]


class Ended(NamedTuple):
    producer: int
    is_commit: bool


OFFSETS = st.integers(0, 99)


def batches(offsets: st.SearchStrategy[int | None]) -> st.SearchStrategy[list[tuple[OffsetKey, int | None]]]:
    one = st.tuples(st.sampled_from(KEYS), offsets)
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda made: made[0])


STEPS = st.lists(
    st.one_of(
        st.builds(Made, st.none(), batches(st.none() | OFFSETS)),
        st.builds(Made, st.sampled_from(PRODUCERS), batches(OFFSETS)),
        st.builds(Ended, st.sampled_from(PRODUCERS), st.booleans()),
        st.integers(0, 5),
    ),
    max_size=30,
)
"""A number is how far the high watermark moves."""


def change(key: OffsetKey, offset: int | None, at: int) -> Change:
    return key, None if offset is None else CommitOffset(key.topic, key.partition, offset, 0, "", at)


def played(steps: Sequence[Made | Ended | int]) -> Iterator[tuple[CommittedOffsets, list[Event], int]]:
    """Yield the offsets, the log and the high watermark after each step."""
    offsets = CommittedOffsets()
    log: list[Event] = []
    end = high_watermark = 0
    for step in steps:
        if isinstance(step, int):
            high_watermark = min(end, high_watermark + step)
            while offsets.is_behind(high_watermark):
                list(offsets.advance_high_watermark(high_watermark, most=1))
        elif isinstance(step, Ended):
            end += 1
            offsets.add_end_transaction_marker(end, step.producer, is_commit=step.is_commit)
            log.append(Ending(end, step.producer, step.is_commit))
        else:
            end += len(step.offsets)
            producer_id = NO_PRODUCER_ID if step.producer is None else step.producer
            offsets.add_unreplicated(end, [change(key, offset, end) for key, offset in step.offsets], producer_id)
            for key, offset in step.offsets:
                log.append(Removal(end, key) if offset is None else Commit(end, key, offset, step.producer))
        yield offsets, log, high_watermark


@pytest.mark.thorough
@given(STEPS)
def test_visible_offsets_are_those_below_high_watermark(steps: list[Made | Ended | int]) -> None:
    for offsets, log, high_watermark in played(steps):
        offsets.validate()
        seen = read_below(high_watermark, log)
        assert offsets.is_waiting == any(event.end > high_watermark for event in log)
        assert offsets.count == len(seen.visible)
        for key in KEYS:
            found = offsets.find(key)
            assert (None if found is None else found.offset) == seen.visible.get(key, (0, None))[1]
            assert (key in offsets.pending_of(key.group)) == (key in seen.unstable())
        for group in "gh":
            listed = {OffsetKey(group, topic, index) for topic, found in offsets.of(group).items() for index in found}
            assert listed == {key for key in seen.visible if key.group == group}
        for topic in "tu":
            assert sorted(offsets.groups_of(topic)) == sorted({key.group for key in seen.visible if key.topic == topic})


@pytest.mark.thorough
@given(STEPS)
def test_unreplicated_commits_are_included_in_checks_of_removals_and_commits(steps: list[Made | Ended | int]) -> None:
    for offsets, log, high_watermark in played(steps):
        seen = read_below(high_watermark, log)
        waiting = [event for event in log if event.end > high_watermark and not isinstance(event, Ending)]
        commits = [event for event in waiting if isinstance(event, Commit)]
        pending = seen.unstable() | {event.key for event in commits if event.producer is not None}
        plain = {event.key: event for event in waiting if isinstance(event, Removal) or event.producer is None}
        coming = {key for key, event in plain.items() if isinstance(event, Commit)}
        going = plain.keys() - coming
        ends = {key: plain[key].end for key in going}
        for key in KEYS:
            newest, latest = plain.get(key), offsets.latest(key)
            visible = seen.visible.get(key, (99, None))
            written = newest.offset if isinstance(newest, Commit) else visible[1] if newest is None else None
            assert (None if latest is None else latest.offset) == written
            assert offsets.is_pending(key) == (key in pending)
            assert offsets.has_commit(key) == (written is not None or key in pending)
            assert offsets.is_older(key, BOUNDARY) == (newest is None and key not in pending and visible[0] <= BOUNDARY)
        for group in "gh":
            there = {key for key in (seen.visible.keys() - going) | coming | pending if key.group == group}
            assert offsets.has_any(group) == bool(there)
            assert offsets.has_pending(group) == any(key.group == group for key in pending)
            assert set(offsets.keys_of(group)) >= there
        for topic in "tu":
            hidden = {key for key in coming | pending if key.topic == topic}
            assert set(offsets.hidden_of([topic])) == hidden
            assert (topic in offsets.topics()) == bool(hidden or offsets.groups_of(topic))
        pending_after = {
            event.key for event in commits if event.producer is not None and event.end > ends.get(event.key, 0)
        }
        undecided = (seen.unstable() - going) | pending_after
        assert set(offsets.all_groups()) == {key.group for key in (seen.visible.keys() - going) | coming | undecided}


@given(STEPS, st.integers(0, 30))
def test_is_older_excludes_commits_after_boundary(steps: list[Made | Ended | int], boundary: int) -> None:
    """``is_older`` counts waiting and pending commits when a topic or a group is deleted."""
    for offsets, log, _ in played([step for step in steps if not isinstance(step, Ended)]):
        whole = read_below(len(log) + 99, log)
        for key in KEYS:
            ends = [at for (_, each), (at, _) in whole.pending.items() if each == key]
            ends += [whole.visible[key][0]] if key in whole.visible else []
            assert offsets.is_older(key, boundary, counts_waiting=True) == (bool(ends) and max(ends) <= boundary)


@pytest.mark.clause("M-8")
def test_group_whose_removal_is_on_its_way_has_no_offsets() -> None:
    """A coordinator that loads a log, of which it does not know yet what is replicated, does not bring it back."""
    offsets, key = CommittedOffsets(), KEYS[0]
    offsets.add_unreplicated(1, [change(key, 1, 0)])
    offsets.add_unreplicated(2, [change(key, 1, 0)], producer_id=7)
    assert offsets.all_groups() == (key.group,)
    offsets.add_unreplicated(3, [(key, None)])
    assert offsets.all_groups() == ()
    list(offsets.advance_high_watermark(2))
    assert offsets.all_groups() == ()
    offsets.add_unreplicated(4, [change(key, 2, 0)], producer_id=7)
    assert offsets.all_groups() == (key.group,)


def test_changes_are_yielded_in_log_order() -> None:
    offsets = CommittedOffsets()
    first, second = change(KEYS[0], 1, 0), change(KEYS[1], 2, 1)
    offsets.add_unreplicated(1, [first])
    offsets.add_unreplicated(2, [second])
    assert list(offsets.advance_high_watermark(0)) == []
    assert list(offsets.advance_high_watermark(2)) == [first, second]


@pytest.mark.clause("OffsetMetadataManagerTest.testReplayTransactionEndMarkerWithCommit")
def test_commit_marker_yields_changes_and_abort_marker_none() -> None:
    offsets = CommittedOffsets()
    first, second = change(KEYS[0], 1, 0), change(KEYS[1], 2, 0)
    offsets.add_unreplicated(1, [first], 5)
    offsets.add_unreplicated(2, [second], 6)
    assert list(offsets.advance_high_watermark(2)) == []
    offsets.add_end_transaction_marker(3, 5, is_commit=True)
    offsets.add_end_transaction_marker(4, 6, is_commit=False)
    assert list(offsets.advance_high_watermark(3)) == [first]
    assert list(offsets.advance_high_watermark(4)) == []
    assert offsets.count == 1


@pytest.mark.clause("OffsetMetadataManagerTest.testReplayTransactionEndMarkerKeepsTheMostRecentCommittedOffset")
def test_marker_does_not_replace_later_plain_commit() -> None:
    offsets = CommittedOffsets()
    offsets.add_unreplicated(1, [change(KEYS[0], 100, 0)], 5)
    offsets.add_unreplicated(2, [change(KEYS[0], 101, 0)])
    offsets.add_end_transaction_marker(3, 5, is_commit=True)
    list(offsets.advance_high_watermark(3))
    found = offsets.find(KEYS[0])
    assert found is not None
    assert (found.offset, offsets.count) == (101, 1)


@pytest.mark.clause("OffsetMetadataManagerTest.testReplayWithTombstoneAndPendingTransactionalOffsets")
def test_tombstone_drops_pending_commits_of_key() -> None:
    offsets = CommittedOffsets()
    offsets.add_unreplicated(1, [change(KEYS[0], 100, 0), change(KEYS[1], 100, 0)], 5)
    offsets.add_unreplicated(2, [change(KEYS[0], 7, 0)], 6)
    offsets.add_unreplicated(3, [change(KEYS[0], None, 3)])
    list(offsets.advance_high_watermark(3))
    assert list(offsets.pending_of("g")) == [KEYS[1]]
    offsets.add_end_transaction_marker(4, 5, is_commit=True)
    offsets.add_end_transaction_marker(5, 6, is_commit=True)
    assert list(offsets.advance_high_watermark(5)) == [change(KEYS[1], 100, 0)]


def test_long_transaction_completes_in_slices_and_later_changes_wait() -> None:
    offsets = CommittedOffsets()
    many = DECIDED_OFFSETS_PER_SLICE + 1
    for index in range(many):
        offsets.add_unreplicated(index + 1, [change(OffsetKey("g", "t", index), 1, 0)], 5)
    offsets.add_end_transaction_marker(many + 1, 5, is_commit=True)
    offsets.add_unreplicated(many + 2, [change(OffsetKey("g", "t", many - 1), 2, 0)])
    assert len(list(offsets.advance_high_watermark(many + 2))) == DECIDED_OFFSETS_PER_SLICE
    assert offsets.is_behind(many + 2)
    assert [commit.offset for _, commit in offsets.advance_high_watermark(many + 2) if commit is not None] == [1, 2]
    assert not offsets.is_behind(many + 2)
