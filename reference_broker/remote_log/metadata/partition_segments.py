"""What is true of the remote segments of one partition: the events of ``__remote_log_metadata``, in the topic's order.

Only the newest leader of the partition adds or removes anything (P-11). An event that carries an older leader epoch
than the newest that any event carried changes nothing. Of two segments that hold an offset of a leader epoch, the one
that was begun later owns it, whichever was finished first. A finished segment is *listed* as long as it owns an offset.
What it lost or what was removed never comes back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from reference_broker.remote_log.metadata.events import (
    LeaderEpochStarts,
    PartitionDelete,
    RemoteLogEvent,
    RemoteSegment,
    SegmentUpdate,
)
from reference_broker.remote_log.metadata.offset_owners import OffsetOwners, Owned
from reference_broker.remote_log.metadata.states import (
    NEXT_DELETE_STATES,
    NEXT_SEGMENT_STATES,
    DeleteState,
    SegmentState,
)
from reference_broker.remote_log.metadata.told_offsets import ToldOffsets
from reference_broker.wire.errors import Error, ErrorCode

MOST_LOOKS: Final = 200
_NO_END = 1 << 63
_Place = tuple[int, int, int, bytes]


class PartitionSegments:
    """Changed by ``apply`` only."""

    def __init__(self) -> None:
        self.generation = object()
        """Another one after each ``forget``. What was found out in one of them says nothing about the next."""
        self.removals = 0
        """How many segments were taken from what is listed. So what was listed may be no more."""
        self.newest_epoch = -1
        """The newest leader epoch that any event carried. Events of older ones change nothing."""
        self.last_attempt = 0
        """The last copy that was begun in ``newest_epoch``. One that is not later was told before."""
        self.told = ToldOffsets()
        """Of all copies that were begun, also of those that are gone. If a log had other remote records, their events
        are missing here."""
        self.delete_state: DeleteState | None = None
        """How far the deletion of the partition has come. While it is not None no copy is begun or finished."""
        self._known: dict[bytes, RemoteSegment] = {}
        """Every segment that may have objects, by its ID."""
        self._owners: dict[int, OffsetOwners] = {}
        """By leader epoch."""
        self._listed: list[_Place] = []

    # --- events -----------------------------------------------------------------------------------------------------

    def apply(self, event: RemoteLogEvent) -> Error:
        """Takes the next event of the partition. Returns NONE if what it says holds now, also if it did before.

        FENCED_LEADER_EPOCH: its writer does not lead the partition any more. RESOURCE_NOT_FOUND: the segment is not
        known (any more). INVALID_REQUEST: the step is not in the table of states, the segment is not in the state that
        its writer knew, or the partition is deleted. With an error nothing has changed, except that a newer leader
        epoch is known.
        """
        if isinstance(event, PartitionDelete):
            return self._delete(event)
        if event.uploader_epoch < self.newest_epoch:
            return ErrorCode.fenced_leader_epoch
        if event.uploader_epoch > self.newest_epoch:
            self.newest_epoch, self.last_attempt = event.uploader_epoch, 0
        return self._begin(event) if isinstance(event, RemoteSegment) else self._update(event)

    def _begin(self, segment: RemoteSegment) -> Error:
        if segment.segment_id in self._known:
            return ErrorCode.none
        if segment.attempt <= self.last_attempt:
            return ErrorCode.resource_not_found
        self.last_attempt = segment.attempt
        if self.delete_state is not None or segment.state not in NEXT_SEGMENT_STATES[None]:
            return ErrorCode.invalid_request
        self._known[segment.segment_id] = segment
        self.told.add(segment.start_offset, segment.next_offset)
        return ErrorCode.none

    def _update(self, update: SegmentUpdate) -> Error:
        known = self._known.get(update.segment_id)
        if known is None:
            return ErrorCode.resource_not_found
        if update.state is known.state:
            return ErrorCode.none
        if update.known_as not in (None, known.state):
            return ErrorCode.invalid_request
        is_finished = update.state is SegmentState.COPY_SEGMENT_FINISHED
        if is_finished and (self.delete_state is not None or update.uploader_epoch != known.uploader_epoch):
            return ErrorCode.invalid_request
        if update.state not in NEXT_SEGMENT_STATES[known.state]:
            return ErrorCode.invalid_request
        segment = replace(
            known, state=update.state, broker_id=update.broker_id, event_timestamp_ms=update.event_timestamp_ms
        )
        self._known[segment.segment_id] = segment
        if is_finished:
            self._own(segment)
        elif update.state is SegmentState.DELETE_SEGMENT_STARTED:
            self._disown(segment)
        elif update.state is SegmentState.DELETE_SEGMENT_FINISHED:
            del self._known[segment.segment_id]
        return ErrorCode.none

    def _delete(self, event: PartitionDelete) -> Error:
        if event.state not in NEXT_DELETE_STATES[self.delete_state]:
            return ErrorCode.invalid_request
        self.delete_state = event.state
        if event.state is DeleteState.DELETE_PARTITION_FINISHED:
            self._clear()
        return ErrorCode.none

    def forget(self) -> None:
        """Begins anew: the topic has lost events."""
        self.generation = object()
        self.newest_epoch, self.last_attempt, self.delete_state = -1, 0, None
        self.told.clear()
        self._clear()

    def _clear(self) -> None:
        self._known.clear()
        self._owners.clear()
        self._listed.clear()

    def _own(self, segment: RemoteSegment) -> None:
        insort(self._listed, _place(segment))
        met = {segment.segment_id}
        for epoch, start, end in segment.epoch_ranges():
            owners = self._owners.setdefault(epoch, OffsetOwners())
            met |= owners.add(Owned(start, end, segment.segment_id), lambda other: self._is_newer(other, segment))
        for each in met:
            if not self._owns_any(self._known[each]):
                self._unlist(self._known[each])

    def _disown(self, segment: RemoteSegment) -> None:
        self.removals += 1
        self._unlist(segment)
        for epoch, start, end in segment.epoch_ranges():
            if epoch in self._owners:
                self._owners[epoch].remove(Owned(start, end, segment.segment_id))
                if self._owners[epoch].end is None:
                    del self._owners[epoch]

    def _is_newer(self, other: bytes, than: RemoteSegment) -> bool:
        known = self._known[other]
        return (known.uploader_epoch, known.attempt) > (than.uploader_epoch, than.attempt)

    def _owns_any(self, segment: RemoteSegment) -> bool:
        return any(
            epoch in self._owners and self._owners[epoch].owns(Owned(start, end, segment.segment_id))
            for epoch, start, end in segment.epoch_ranges()
        )

    def _unlist(self, segment: RemoteSegment) -> None:
        place = _place(segment)
        at = bisect_left(self._listed, place)
        if at < len(self._listed) and self._listed[at] == place:
            del self._listed[at]

    # --- what is listed ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many segments may have objects."""
        return len(self._known)

    def get(self, segment_id: bytes) -> RemoteSegment | None:
        """Returns the segment in its last state, unless it is not known or all its objects are gone."""
        return self._known.get(segment_id)

    def listed(self) -> Iterator[RemoteSegment]:
        """Yields the segments that are read, by their first offset. They may overlap, and may be of leader epochs that
        the log does not have any more."""
        return (self._known[segment_id] for *_, segment_id in tuple(self._listed))

    def is_listed(self, segment_id: bytes) -> bool:
        known = self._known.get(segment_id)
        return known is not None and self._owns_any(known)

    def unfinished(self) -> tuple[RemoteSegment, ...]:
        """Returns the segments that may have objects and are not listed, in the order in which they were begun: copies
        that go on or were given up, deletions that have begun, and segments whose offsets newer ones own. Their objects
        are garbage, except those of a copy that goes on now."""
        listed = {segment_id for *_, segment_id in self._listed}
        return tuple(each for each in self._known.values() if each.segment_id not in listed)

    def segment_for(self, leader_epoch: int, offset: int) -> RemoteSegment | None:
        """Returns the listed segment that has this offset under this leader epoch, which is that of the record at the
        offset, as the leader's log knows it."""
        owners = self._owners.get(leader_epoch)
        found = None if owners is None else owners.find(offset)
        return None if found is None else self._known[found.owner]

    def segment_at(self, lineage: LeaderEpochStarts, offset: int) -> RemoteSegment | None:
        """The same, with the leader epochs of a log (``log.leader_epochs``) to find the epoch in."""
        found = self._owned_at(lineage, offset)
        return None if found is None else self._known[found.owner]

    def after(self, segment: RemoteSegment, lineage: LeaderEpochStarts) -> RemoteSegment | None:
        """Returns the listed segment with the offset that follows ``segment``, in a log with these leader epochs."""
        return self.segment_at(lineage, segment.next_offset)

    def highest_offset(self, leader_epoch: int) -> int | None:
        """Returns the highest offset of the leader epoch that is listed."""
        owners = self._owners.get(leader_epoch)
        return None if owners is None or owners.end is None else owners.end - 1

    def listed_until(self, lineage: LeaderEpochStarts, offset: int) -> int:
        """Returns the first offset from ``offset`` on that is not listed, in a log with these leader epochs. What lies
        between is listed without gaps. It looks at MOST_LOOKS segments, which takes some 1 ms: the result may itself be
        listed. So go on there."""
        for _ in range(MOST_LOOKS):
            found = self._owned_at(lineage, offset)
            if found is None:
                break
            offset = min(found.end, _end_of_epoch_at(lineage, offset))
        return offset

    def _owned_at(self, lineage: LeaderEpochStarts, offset: int) -> Owned | None:
        at = bisect_left(lineage, offset + 1, key=lambda each: each[1]) - 1
        owners = self._owners.get(lineage[at][0]) if at >= 0 else None
        return None if owners is None else owners.find(offset)

    def validate(self) -> None:
        """Asserts what is true after each event. It looks at all that is kept, so only tests and the simulator ask."""
        owning = {each.owner for owners in self._owners.values() for each in owners}
        assert owning == {segment_id for *_, segment_id in self._listed}, "listed segments and owners differ"
        for owners in self._owners.values():
            assert all(one.end <= other.start for one, other in pairwise(owners)), "two segments own an offset"
        for segment_id in owning:
            assert self._known[segment_id].state is SegmentState.COPY_SEGMENT_FINISHED, "an unfinished segment is read"


def _place(segment: RemoteSegment) -> _Place:
    return segment.start_offset, segment.uploader_epoch, segment.attempt, segment.segment_id


def _end_of_epoch_at(lineage: LeaderEpochStarts, offset: int) -> int:
    at = bisect_left(lineage, offset + 1, key=lambda each: each[1])
    return lineage[at][1] if at < len(lineage) else _NO_END
