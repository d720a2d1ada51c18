"""The metadata of a partition's events, compared with a model that tracks every offset by itself.

The model is P-11 in the plainest words: only the newest leader adds or removes; of two copies with an offset the one
that started later has it; a removed copy does not come back; a duplicate event counts once.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_broker.remote_log.metadata.events import (
    RemoteLogEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadataCache
from reference_broker.remote_log.metadata.tests.remote_events import (
    DELETED,
    DELETING,
    FINISHED,
    STARTED,
    copy_of,
    deletion,
    segment_id,
    step,
)
from reference_broker.wire.errors import ErrorCode

OFFSETS = 7
EPOCHS = 2


@dataclass
class Model:
    """``states`` has every copy ever started. ``holder`` says which copy an offset under a leader epoch is read
    from."""

    newest: int = -1
    last_attempt: int = 0
    deleted: list[RemotePartitionDeleteState] = field(default_factory=list)
    copies: dict[bytes, RemoteLogSegmentMetadata] = field(default_factory=dict)
    states: dict[bytes, RemoteLogSegmentState] = field(default_factory=dict)
    started: list[bytes] = field(default_factory=list)
    holder: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def take(self, event: RemoteLogEvent) -> bool:
        """Apply the event. Return whether it is valid now."""
        if isinstance(event, RemotePartitionDeleteMetadata):
            return self._deletion(event.state)
        if event.uploader_epoch < self.newest:
            return False
        if event.uploader_epoch > self.newest:
            self.newest, self.last_attempt = event.uploader_epoch, 0
        return self._copy(event) if isinstance(event, RemoteLogSegmentMetadata) else self._step(event)

    def _deletion(self, state: RemotePartitionDeleteState) -> bool:
        done = self.deleted[-1:]
        if done == [state]:
            return True
        if int(state) != len(self.deleted):
            return False
        self.deleted.append(state)
        if state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self.states = dict.fromkeys(self.states, DELETED)
            self.holder.clear()
        return True

    def _copy(self, event: RemoteLogSegmentMetadata) -> bool:
        if self.states.get(event.segment_id, DELETED) is not DELETED:
            return True
        if event.attempt <= self.last_attempt:
            return False
        self.last_attempt = event.attempt
        if self.deleted:
            return False
        self.copies[event.segment_id] = event
        self.states[event.segment_id] = STARTED
        self.started.append(event.segment_id)
        return True

    def _step(self, event: RemoteLogSegmentMetadataUpdate) -> bool:
        state = self.states.get(event.segment_id, DELETED)
        if state is DELETED:
            return False
        if event.state is state:
            return True
        copy = self.copies[event.segment_id]
        if event.expected_state is not None and event.expected_state is not state:
            return False
        if event.state is FINISHED:
            if state is not STARTED or self.deleted or event.uploader_epoch != copy.uploader_epoch:
                return False
            for place in places_of(copy):
                other = self.holder.get(place)
                if other is None or self.started.index(other) < self.started.index(copy.segment_id):
                    self.holder[place] = copy.segment_id
        elif event.state is DELETING and state in (STARTED, FINISHED):
            self.holder = {place: each for place, each in self.holder.items() if each != copy.segment_id}
        elif event.state is not DELETED or state is not DELETING:
            return False
        self.states[event.segment_id] = event.state
        return True


def places_of(copy: RemoteLogSegmentMetadata) -> list[tuple[int, int]]:
    """Return each offset of a copy with its leader epoch."""
    return [
        (max(epoch for epoch, start in copy.leader_epochs if start <= offset), offset)
        for offset in range(copy.start_offset, copy.end_offset + 1)
    ]


class Events(RuleBasedStateMachine):
    """Leaders come and go, copy, delete and die. Former leaders continue. Events are repeated at any later time."""

    @initialize()
    def begin(self) -> None:
        self.segments = RemoteLogMetadataCache()
        self.model = Model()
        self.events: list[RemoteLogEvent] = []
        self.leader = 0
        self.number = 0

    def apply(self, event: RemoteLogEvent) -> None:
        self.events.append(event)
        held = self.model.take(event)
        assert (self.segments.apply(event) is ErrorCode.none) is held, f"{event}"

    @rule(data=st.data(), start=st.integers(0, OFFSETS - 1), length=st.integers(1, 4))
    def copy(self, data: st.DataObject, start: int, length: int) -> None:
        """A leader, mostly the present one, starts a copy of records of one or two leader epochs."""
        by = data.draw(st.sampled_from([self.leader, self.leader, max(0, self.leader - 1)]))
        first = start // 3 if data.draw(st.booleans()) else data.draw(st.integers(0, EPOCHS - 1))
        change = data.draw(st.integers(start + 1, start + length + 2))
        epochs = ((first, start), (first + 1, change)) if change < start + length else ((first, start),)
        self.number += 1
        is_newer = by > self.segments.newest_epoch
        attempt = 1 if is_newer else self.segments.last_attempt + 1
        self.apply(copy_of(self.number, start, start + length - 1, *epochs, by=by, attempt=attempt))

    @precondition(lambda self: self.model.started)
    @rule(data=st.data(), state=st.sampled_from([FINISHED, FINISHED, FINISHED, DELETING, DELETED, STARTED]))
    def next_state(self, data: st.DataObject, state: RemoteLogSegmentState) -> None:
        copy = self.model.copies[data.draw(st.sampled_from(self.model.started[-4:]))]
        by = data.draw(st.sampled_from([copy.uploader_epoch, self.leader]))
        expected_state = data.draw(st.sampled_from([None, None, STARTED, FINISHED]))
        self.apply(step(copy, state, by=by, expected_state=expected_state))

    @precondition(lambda self: self.events)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """Repeat an event, as after a lost response."""
        before = seen(self.segments)
        event = data.draw(st.sampled_from(self.events))
        self.apply(event)
        if not isinstance(event, RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata):
            assert seen(self.segments) == before, "a copy that was reported twice counts twice"

    @rule()
    def new_leader(self) -> None:
        self.leader += 1

    @precondition(lambda self: self.number > 6)
    @rule(state=st.sampled_from(RemotePartitionDeleteState))
    def delete(self, state: RemotePartitionDeleteState) -> None:
        self.apply(deletion(state))

    @invariant()
    def is_read_as_the_model_says(self) -> None:
        segments, model = self.segments, self.model
        segments.validate()
        for epoch in range(EPOCHS + 1):
            owned = [offset for offset in range(2 * OFFSETS) if (epoch, offset) in model.holder]
            assert segments.highest_offset(epoch) == max(owned, default=None)
            for offset in range(2 * OFFSETS):
                segment = segments.segment_for(epoch, offset)
                assert (segment and segment.segment_id) == model.holder.get((epoch, offset))
        listed = [each.segment_id for each in segments.listed()]
        assert sorted(listed) == sorted(set(model.holder.values()))
        alive = {each for each, state in model.states.items() if state is not DELETED}
        assert {each.segment_id for each in segments.unfinished()} == alive - set(listed)
        assert len(segments) == len(alive)
        for number in range(1, self.number + 1):
            known = segments.get(segment_id(number))
            assert (known.state if known else DELETED) is model.states.get(segment_id(number), DELETED)

    @invariant()
    def a_log_finds_its_own_epochs(self) -> None:
        """Check a log whose epochs each started at three times their number."""
        lineage = [(epoch, 3 * epoch) for epoch in range(EPOCHS + 1)]
        at = 2
        while (min(at // 3, EPOCHS), at) in self.model.holder:
            at += 1
        assert self.segments.listed_until(lineage, 2) == at
        for offset in range(2 * OFFSETS):
            segment = self.segments.segment_at(lineage, offset)
            assert (segment and segment.segment_id) == self.model.holder.get((min(offset // 3, EPOCHS), offset))


def seen(segments: RemoteLogMetadataCache) -> object:
    return [*segments.listed()], segments.unfinished()


TestEvents = pytest.mark.thorough(Events.TestCase)
TestEvents.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
