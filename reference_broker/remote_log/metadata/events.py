"""What is written to ``__remote_log_metadata``: a segment that is being copied, a change of its state, the deletion of
a partition. Each is a value; ``codec.py`` has their bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from reference_broker.remote_log.metadata.states import DeleteState, SegmentState

LeaderEpochStarts: TypeAlias = Sequence[tuple[int, int]]
"""Leader epochs with the offsets at which they began. Both rise strictly."""

NO_ATTEMPT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """One copy of a segment (RemoteLogSegmentMetadata). A copy that is tried again has another ``segment_id``."""

    topic_id: bytes
    """16 bytes."""
    topic: str
    partition: int
    segment_id: bytes
    """16 bytes, random."""
    start_offset: int
    end_offset: int
    """The last offset of the segment, inclusive."""
    max_timestamp_ms: int
    broker_id: int
    """Who wrote the last event of it."""
    event_timestamp_ms: int
    """When the last event of it was written."""
    size_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    """The leader epochs of the segment's records, each with its first offset in the segment."""
    uploader_epoch: int
    """The leader epoch of the partition in which it is copied. It travels in CustomMetadata."""
    has_transaction_index: bool
    """Whether it has an object with aborted transactions."""
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    attempt: int = NO_ATTEMPT
    """Which copy of ``uploader_epoch`` this is, from 1 on. ``RemoteLogMetadata.write`` sets it with the first event. It
    travels in CustomMetadata, so that an event that is in the topic twice counts once."""
    metadata_offset: int = 0
    """How far its writer knew the cluster's metadata. Whoever knows more, and not the topic, knows that it is deleted.
    ``RemoteLogMetadata.write`` sets it. It travels in CustomMetadata."""

    @property
    def next_offset(self) -> int:
        return self.end_offset + 1

    def validate(self) -> None:
        """Raises ValueError if the fields do not fit together."""
        if not 0 <= self.start_offset <= self.end_offset:
            raise ValueError(f"a segment has offsets {self.start_offset} to {self.end_offset}")
        if not self.leader_epochs or self.leader_epochs[0][1] > self.start_offset:
            raise ValueError(f"leader epochs {self.leader_epochs} do not cover a segment from {self.start_offset}")
        if any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairwise(self.leader_epochs)):
            raise ValueError(f"leader epochs {self.leader_epochs} do not rise")

    def epoch_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yields each leader epoch that has records here, its first offset and one past its last offset here."""
        ends = [start for _, start in self.leader_epochs[1:]] + [self.next_offset]
        for (epoch, start), end in zip(self.leader_epochs, ends, strict=True):
            first, last = max(start, self.start_offset), min(end, self.next_offset)
            if first < last:
                yield epoch, first, last


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUpdate:
    """A segment's next state (RemoteLogSegmentMetadataUpdate)."""

    topic_id: bytes
    topic: str
    partition: int
    segment_id: bytes
    broker_id: int
    event_timestamp_ms: int
    uploader_epoch: int
    """The leader epoch of who writes this. An older one than the newest that is known changes nothing."""
    state: SegmentState
    known_as: SegmentState | None = None
    """The state that its writer knows. If it is another one by then, this changes nothing: a copy whose end was written
    late is not taken for a copy that was given up. None says that any state will do. It travels in CustomMetadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDelete:
    """A step of the deletion of a partition (RemotePartitionDeleteMetadata)."""

    topic_id: bytes
    topic: str
    partition: int
    broker_id: int
    event_timestamp_ms: int
    state: DeleteState


RemoteLogEvent: TypeAlias = RemoteSegment | SegmentUpdate | PartitionDelete


def update_of(
    segment: RemoteSegment, state: SegmentState, broker_id: int, uploader_epoch: int, wall_ms: int
) -> SegmentUpdate:
    """The event that brings ``segment`` from the state that it has to ``state``, written by this broker as leader of
    the given epoch."""
    return SegmentUpdate(
        topic_id=segment.topic_id,
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=broker_id,
        event_timestamp_ms=wall_ms,
        uploader_epoch=uploader_epoch,
        state=state,
        known_as=segment.state,
    )
