"""The remote segments of one partition, as the events in ``__remote_log_metadata`` describe them (Kafka's
RemoteLogMetadataCache).

Only the newest leader of the partition adds or removes anything (P-11). An event with an older leader epoch than the
newest that any event had changes nothing. Of two segments that contain an offset of a leader epoch, the one whose copy
began later owns it, whichever was finished first. A finished segment is *listed* (Kafka's listRemoteLogSegments) as
long as it owns an offset. Once lost or removed, an offset or a segment never comes back.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, TypeAlias

from reference_broker.remote_log.metadata.events import (
    NEXT_DELETE_STATES,
    NEXT_SEGMENT_STATES,
    LeaderEpochStarts,
    RemoteLogEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from reference_broker.wire.errors import Error, ErrorCode


class OwnedRange(NamedTuple):
    """Offsets that one remote segment owns."""

    start: int
    end: int
    """Exclusive."""
    owner: bytes
    """The segment's ID."""


class OffsetOwners:
    """Ranges that do not overlap, in order. No range is empty."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[OwnedRange] = []

    def __iter__(self) -> Iterator[OwnedRange]:
        return iter(self._ranges)

    @property
    def end(self) -> int | None:
        """One past the last offset that is owned. None: nothing is."""
        return self._ranges[-1].end if self._ranges else None

    def find(self, offset: int) -> OwnedRange | None:
        """Return the range that holds the offset."""
        at = bisect_right(self._ranges, offset, key=_start) - 1
        owned = self._ranges[at] if at >= 0 else None
        return owned if owned is not None and offset < owned.end else None

    def add(self, new: OwnedRange, is_newer: Callable[[bytes], bool]) -> set[bytes]:
        """Give ``new.owner`` those offsets of the range that no newer segment owns. ``is_newer`` returns whether an
        owner is newer. Return the owners of all ranges that overlap. Some may own nothing any more."""
        low, high = self._touched(new)
        overlapping = self._ranges[low:high]
        left, right, kept = [], [], []
        for each in overlapping:
            if is_newer(each.owner):  # Decision offset-owner
                kept.append(each)
                continue
            if each.start < new.start:
                left.append(each._replace(end=new.start))
            if each.end > new.end:
                right.append(each._replace(start=new.end))
        self._ranges[low:high] = [*left, *_filled(new, kept), *right]
        return {each.owner for each in overlapping}

    def remove(self, old: OwnedRange) -> None:
        """Take away what ``old.owner`` owns of the range."""
        low, high = self._touched(old)
        self._ranges[low:high] = [each for each in self._ranges[low:high] if each.owner != old.owner]

    def owns(self, owned: OwnedRange) -> bool:
        """Return whether ``owned.owner`` owns an offset of the range."""
        low, high = self._touched(owned)
        return any(each.owner == owned.owner for each in self._ranges[low:high])

    def _touched(self, over: OwnedRange) -> tuple[int, int]:
        """Return which ranges overlap: from the first index to before the second one."""
        low = bisect_right(self._ranges, over.start, key=_end)
        return low, bisect_left(self._ranges, over.end, key=_start)


def _filled(new: OwnedRange, kept: Iterable[OwnedRange]) -> Iterable[OwnedRange]:
    """Yield the kept ranges, with the new owner's offsets between them."""
    at = new.start
    for each in kept:
        if at < each.start:
            yield new._replace(start=at, end=each.start)
        yield each
        at = each.end
    if at < new.end:
        yield new._replace(start=at)


def _start(owned: OwnedRange) -> int:
    return owned.start


def _end(owned: OwnedRange) -> int:
    return owned.end


class CopiedOffsets:
    """Ranges that neither overlap nor touch, in order. Segments follow one another, so there is mostly one."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Add ``start <= offset < end`` and merge it with the ranges that it overlaps or touches."""
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()


MAX_SEGMENTS_EXAMINED: Final = 200
"""Bounds the work of one ``listed_until``, about 1 ms."""
_NO_END = 1 << 63
_ListKey = tuple[int, int, int, bytes]


class RemoteLogMetadataCache:
    """The remote segments of one partition. Only ``apply`` and ``forget`` change them."""

    def __init__(self) -> None:
        self.generation = object()
        """Another object after each ``forget``. What was found in one generation does not hold in the next."""
        self.removals = 0
        """Number of segments whose deletion has begun. They may have been listed."""
        self.newest_epoch = -1
        """The newest leader epoch of any event. Events of older ones are fenced."""
        self.last_attempt = 0
        """The last copy that began in ``newest_epoch``. An event with this number or a lower one is a repeated one."""
        self.copied = CopiedOffsets()
        """The offsets of all copies that were ever finished. If a log has other remote records, events were lost."""
        self.delete_state: RemotePartitionDeleteState | None = None
        """The state of the partition's deletion, None if it is not deleted. A deleted one gets no further copy."""
        self._known: dict[bytes, RemoteLogSegmentMetadata] = {}
        """Every segment that may have objects, by its ID."""
        self._owners: dict[int, OffsetOwners] = {}
        """The owners of its offsets, by leader epoch."""
        self._listed: list[_ListKey] = []
        """The listed segments, by their first offset."""

    # --- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: RemoteLogEvent) -> Error:
        """Apply the next event of the partition. Return NONE if its effect holds now, also if it did before.

        FENCED_LEADER_EPOCH: its writer does not lead the partition any more. RESOURCE_NOT_FOUND: the segment is not
        known (any more). INVALID_REQUEST: the step is not in the table of states, the segment is not in the state that
        its writer knew, or the partition is deleted. With an error nothing has changed, except that a newer leader
        epoch is known.
        """
        if isinstance(event, RemotePartitionDeleteMetadata):
            return self._delete(event)
        if event.uploader_epoch < self.newest_epoch:  # Decision segment-event
            return ErrorCode.fenced_leader_epoch
        if event.uploader_epoch > self.newest_epoch:
            self.newest_epoch, self.last_attempt = event.uploader_epoch, 0
        return self._begin(event) if isinstance(event, RemoteLogSegmentMetadata) else self._update(event)

    def _begin(self, segment: RemoteLogSegmentMetadata) -> Error:
        if segment.segment_id in self._known:
            return ErrorCode.none
        if segment.attempt <= self.last_attempt:  # Decision copy-attempt
            return ErrorCode.resource_not_found
        self.last_attempt = segment.attempt
        if self.delete_state is not None or segment.state not in NEXT_SEGMENT_STATES[None]:
            return ErrorCode.invalid_request
        self._known[segment.segment_id] = segment
        return ErrorCode.none

    def _update(self, update: RemoteLogSegmentMetadataUpdate) -> Error:
        current = self._known.get(update.segment_id)
        if current is None:
            return ErrorCode.resource_not_found
        if update.state is current.state:
            return ErrorCode.none
        if update.expected_state not in (None, current.state):  # Decision segment-state
            return ErrorCode.invalid_request
        is_finished = update.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        # Decision finished-copy
        if is_finished and (self.delete_state is not None or update.uploader_epoch != current.uploader_epoch):
            return ErrorCode.invalid_request
        if update.state not in NEXT_SEGMENT_STATES[current.state]:
            return ErrorCode.invalid_request
        segment = replace(
            current, state=update.state, broker_id=update.broker_id, event_timestamp_ms=update.event_timestamp_ms
        )
        self._known[segment.segment_id] = segment
        if is_finished:
            self.copied.add(segment.start_offset, segment.next_offset)
            self._own(segment)
        elif update.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            self._disown(segment)
        elif update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del self._known[segment.segment_id]
        return ErrorCode.none

    def _delete(self, event: RemotePartitionDeleteMetadata) -> Error:
        if event.state not in NEXT_DELETE_STATES[self.delete_state]:
            return ErrorCode.invalid_request
        self.delete_state = event.state
        if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._clear()
        return ErrorCode.none

    def forget(self) -> None:
        """Drop everything: the topic has lost events."""
        self.generation = object()
        self.newest_epoch, self.last_attempt, self.delete_state = -1, 0, None
        self.copied.clear()
        self._clear()

    def _clear(self) -> None:
        self._known.clear()
        self._owners.clear()
        self._listed.clear()

    def _own(self, segment: RemoteLogSegmentMetadata) -> None:
        insort(self._listed, _list_key(segment))
        overlapping = {segment.segment_id}
        for epoch, start, end in segment.epoch_ranges():
            owners = self._owners.setdefault(epoch, OffsetOwners())
            overlapping |= owners.add(
                OwnedRange(start, end, segment.segment_id), lambda other: self._is_newer(other, segment)
            )
        for each in overlapping:
            if not self._owns_any(self._known[each]):
                self._unlist(self._known[each])

    def _disown(self, segment: RemoteLogSegmentMetadata) -> None:
        self.removals += 1
        self._unlist(segment)
        for epoch, start, end in segment.epoch_ranges():
            if epoch in self._owners:
                self._owners[epoch].remove(OwnedRange(start, end, segment.segment_id))
                if self._owners[epoch].end is None:
                    del self._owners[epoch]

    def _is_newer(self, other: bytes, than: RemoteLogSegmentMetadata) -> bool:
        segment = self._known[other]
        return (segment.uploader_epoch, segment.attempt) > (than.uploader_epoch, than.attempt)

    def _owns_any(self, segment: RemoteLogSegmentMetadata) -> bool:
        return any(
            epoch in self._owners and self._owners[epoch].owns(OwnedRange(start, end, segment.segment_id))
            for epoch, start, end in segment.epoch_ranges()
        )

    def _unlist(self, segment: RemoteLogSegmentMetadata) -> None:
        key = _list_key(segment)
        at = bisect_left(self._listed, key)
        if at < len(self._listed) and self._listed[at] == key:
            del self._listed[at]

    # --- what is listed -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of segments that may have objects."""
        return len(self._known)

    def get(self, segment_id: bytes) -> RemoteLogSegmentMetadata | None:
        """Return the segment in its last state, unless it is not known or all its objects are gone."""
        return self._known.get(segment_id)

    def listed(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the segments that are read, by their first offset. They may overlap, and may be of leader epochs that
        the log does not have any more."""
        return (self._known[segment_id] for *_, segment_id in tuple(self._listed))

    def is_listed(self, segment_id: bytes) -> bool:
        segment = self._known.get(segment_id)
        return segment is not None and self._owns_any(segment)

    def unfinished(self) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return the segments that may have objects and are not listed, in the order of their first events: copies in
        progress or abandoned, deletions in progress, and segments whose offsets newer ones own. Their objects are
        garbage, except those of a copy in progress."""
        listed = {segment_id for *_, segment_id in self._listed}
        return tuple(each for each in self._known.values() if each.segment_id not in listed)

    def segment_for(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the listed segment that has this offset under this leader epoch, which is that of the record at the
        offset, as the leader's log knows it."""
        owners = self._owners.get(leader_epoch)
        owned = None if owners is None else owners.find(offset)
        return None if owned is None else self._known[owned.owner]

    def segment_at(self, lineage: LeaderEpochStarts, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the listed segment that has this offset in a log with these leader epochs (``log.leader_epochs``)."""
        owned = self._owned_at(lineage, offset)
        return None if owned is None else self._known[owned.owner]

    def after(self, segment: RemoteLogSegmentMetadata, lineage: LeaderEpochStarts) -> RemoteLogSegmentMetadata | None:
        """Return the listed segment with the offset that follows ``segment``, in a log with these leader epochs."""
        return self.segment_at(lineage, segment.next_offset)

    def highest_offset(self, leader_epoch: int) -> int | None:
        """Return the highest offset of the leader epoch that is listed."""
        owners = self._owners.get(leader_epoch)
        return None if owners is None or owners.end is None else owners.end - 1

    def listed_until(self, lineage: LeaderEpochStarts, offset: int) -> int:
        """Return the first offset from ``offset`` on that is not listed, in a log with these leader epochs. After
        MAX_SEGMENTS_EXAMINED segments it returns an offset that may itself be listed: continue there."""
        for _ in range(MAX_SEGMENTS_EXAMINED):
            owned = self._owned_at(lineage, offset)
            if owned is None:
                break
            offset = min(owned.end, _end_of_epoch_at(lineage, offset))
        return offset

    def _owned_at(self, lineage: LeaderEpochStarts, offset: int) -> OwnedRange | None:
        at = bisect_left(lineage, offset + 1, key=lambda each: each[1]) - 1
        owners = self._owners.get(lineage[at][0]) if at >= 0 else None
        return None if owners is None else owners.find(offset)

    def validate(self) -> None:
        """Assert the invariants. It checks everything that is kept, so only tests and the simulator call it."""
        owning = {owner.owner for owners in self._owners.values() for owner in owners}
        assert owning == {segment_id for *_, segment_id in self._listed}, "listed segments and owners differ"
        for owners in self._owners.values():
            assert all(one.end <= other.start for one, other in pairwise(owners)), "two segments own an offset"
        for segment_id in owning:
            assert self._known[segment_id].state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED, (
                "an unfinished segment is read"
            )


def _list_key(segment: RemoteLogSegmentMetadata) -> _ListKey:
    return segment.start_offset, segment.uploader_epoch, segment.attempt, segment.segment_id


def _end_of_epoch_at(lineage: LeaderEpochStarts, offset: int) -> int:
    at = bisect_left(lineage, offset + 1, key=lambda each: each[1])
    return lineage[at][1] if at < len(lineage) else _NO_END


Applied: TypeAlias = Callable[[Error], None]
"""Called once with the result of an event."""


class RemoteLogMetadata(Protocol):
    """Kafka's RemoteLogMetadataManager. ``topic.py`` implements it with ``__remote_log_metadata``."""

    def watch(self, topic_id: bytes, topic: str, partition: int) -> None:
        """Begin to follow the partition's remote segments. Each call needs an ``unwatch``."""
        ...

    def unwatch(self, topic_id: bytes, partition: int) -> None:
        """End a ``watch``. After the last one the partition's segments are forgotten. A partition that is not watched
        is no error."""
        ...

    def is_ready(self, topic_id: bytes, partition: int) -> bool:
        """Return whether all events are applied that the leader of the topic's partition had when watching began. A
        leader that was replaced, or is new, may have fewer than another: only ``write`` is certain."""
        ...

    def of(self, topic_id: bytes, partition: int) -> RemoteLogMetadataCache:
        """Return the segments of a partition. It is the same object from ``watch`` until ``unwatch``, and changes as
        events come. A partition that is not watched has none."""
        ...

    def write(self, event: RemoteLogEvent, done: Applied) -> None:
        """Write an event about a partition. ``done`` is called once, in an event of its own, when the
        event is replicated and applied here, with the error of ``RemoteLogMetadataCache.apply``. Only NONE allows the
        next step. ``apply`` stores a RemoteLogSegmentMetadata with its ``attempt``.

        REQUEST_TIMED_OUT: it was not read back within ``remote.log.metadata.consume.wait.ms``. It may be applied later,
        so a copier retries with a new segment ID. NOT_LEADER_OR_FOLLOWER: the partition is not watched.
        UNKNOWN_TOPIC_OR_PARTITION: the topic does not exist. With any other error nothing was written.
        """
        ...

    def image_changed(self) -> None:
        """The cluster's metadata changed: the topic may be there, or be led by others."""
        ...
