"""Copies the segments of one led partition: one at a time (Kafka's RLMCopyTask).

COPY_SEGMENT_STARTED is written to ``__remote_log_metadata`` first, so that no object that a crash leaves behind goes
unnoticed. Then the segment's objects are stored, one after the other, and then COPY_SEGMENT_FINISHED is written.
``NEXT_STAGES`` is this as a table. Before each step this node checks that it still leads the partition in the same
leader epoch. A failure ends the copy, and after a pause the next one has another segment ID; ``expiring`` deletes what
the failed or abandoned one left.

``CopiedEnd`` finds up to which offset a log is copied, on the leader and on its followers.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Final

from reference_broker.coordination.scheduling import Slots
from reference_broker.log.checkpoints import encoded_rows
from reference_broker.log.producer_replay import RecreatedSnapshot
from reference_broker.log.producer_state import SnapshotDamaged, decode_snapshot
from reference_broker.log.retention import TierableSegment
from reference_broker.log.timestamp_lookup import Overtaken
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.identifiers import random_uuid, uuid_text
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Now, RandomSource, StorePorts, later
from reference_broker.ports.slicing import Sliced, run_slices
from reference_broker.ports.store import Put, PutFile, StoreFailure
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.leader_epoch_fencing import LeaderEpochFencing
from reference_broker.remote_log.metadata.events import (
    LeaderEpochStarts,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    lineage_of,
    update_of,
)
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadata
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode, error_name


class CopyStage(Enum):
    """The next step of a copy. In the last three stages the copy has ended."""

    COLLECTING = auto()
    """Collect what is to be stored: index files, producer snapshot, leader epochs."""
    WRITING_COPY_STARTED = auto()
    """Write COPY_SEGMENT_STARTED to ``__remote_log_metadata`` and read it back."""
    STORING = auto()
    """Store the first of the remaining objects."""
    WRITING_COPY_FINISHED = auto()
    """Write COPY_SEGMENT_FINISHED and read it back."""
    FINISHED = auto()
    """Every replica may read the segment in the tier, and delete its own."""
    FAILED = auto()
    ABANDONED = auto()
    """This node does not lead the partition any more in the leader epoch of the copy."""


NEXT_STAGES: Final[Mapping[CopyStage, tuple[CopyStage, ...]]] = {
    CopyStage.COLLECTING: (CopyStage.WRITING_COPY_STARTED, CopyStage.FAILED, CopyStage.ABANDONED),
    CopyStage.WRITING_COPY_STARTED: (CopyStage.STORING, CopyStage.FAILED, CopyStage.ABANDONED),
    CopyStage.STORING: (CopyStage.STORING, CopyStage.WRITING_COPY_FINISHED, CopyStage.FAILED, CopyStage.ABANDONED),
    CopyStage.WRITING_COPY_FINISHED: (CopyStage.FINISHED, CopyStage.FAILED, CopyStage.ABANDONED),
    CopyStage.FINISHED: (),
    CopyStage.FAILED: (),
    CopyStage.ABANDONED: (),
}

ENDED: Final = (CopyStage.FINISHED, CopyStage.FAILED, CopyStage.ABANDONED)


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The data of a segment that a copy stores (Kafka's LogSegmentData)."""

    segment: RemoteLogSegmentMetadata
    """As in COPY_SEGMENT_STARTED."""
    objects: tuple[Put | PutFile, ...]
    """In the order in which they are stored."""
    recreated: RecreatedSnapshot | None = None
    """The producer snapshot among them if the log lacked it."""


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """One attempt to copy a segment."""

    local: TierableSegment
    """The segment of the local log."""
    leader_epoch: int
    """The leader epoch in which it began. In another one it is abandoned."""
    stage: CopyStage = CopyStage.COLLECTING
    data: LogSegmentData | None = None
    """None while it is being collected."""
    stored: int = 0
    """Number of objects in the store, the first ones of ``data``."""
    reason: str = ""
    """The reason why it failed."""

    @property
    def segment(self) -> RemoteLogSegmentMetadata:
        """The remote segment, once its data is collected."""
        assert self.data is not None, "the data is not collected yet"
        return self.data.segment

    @property
    def next_object(self) -> Put | PutFile:
        """The object to store now."""
        assert self.stage is CopyStage.STORING, f"nothing is stored while {self.stage.name}"
        assert self.data is not None, "the data is not collected yet"
        return self.data.objects[self.stored]

    def with_data(self, data: LogSegmentData) -> "SegmentCopy":
        """Return the copy after COLLECTING."""
        return replace(self._at(CopyStage.WRITING_COPY_STARTED), data=data)

    def done(self) -> "SegmentCopy":
        """Return the copy after its stage, one of the next three: an event was read back, or an object stored."""
        if self.stage is CopyStage.WRITING_COPY_STARTED:
            return self._at(CopyStage.STORING)
        if self.stage is CopyStage.WRITING_COPY_FINISHED:
            return self._at(CopyStage.FINISHED)
        assert self.data is not None, "the data is not collected yet"
        stored = self.stored + 1
        is_last = stored == len(self.data.objects)
        return replace(self._at(CopyStage.WRITING_COPY_FINISHED if is_last else CopyStage.STORING), stored=stored)

    def failed(self, reason: str) -> "SegmentCopy":
        return replace(self._at(CopyStage.FAILED), reason=reason)

    def abandoned(self) -> "SegmentCopy":
        return self._at(CopyStage.ABANDONED)

    def _at(self, stage: CopyStage) -> "SegmentCopy":
        assert stage in NEXT_STAGES[self.stage], f"{stage.name} cannot follow on {self.stage.name}"
        return replace(self, stage=stage)


@dataclass(frozen=True, slots=True)
class CopierContext:
    """The part that all copiers of a node share."""

    node_id: int
    ports: StorePorts
    metadata: RemoteLogMetadata
    metrics: RemoteLogMetrics
    slots: Slots
    random: RandomSource
    first_pause_ms: int
    longest_pause_ms: int


class CopierActivity(Enum):
    """What a copier does or waits for. Only an idle one starts something new."""

    IDLE = auto()
    FENCING = auto()
    """It waits until leader epoch fencing is established."""
    SEARCHING = auto()
    """It searches for the copied end offset, which takes several events."""
    AWAITING_SLOT = auto()
    COPYING = auto()
    PAUSED = auto()
    """It waits before it retries after a failure."""


class Copier:
    """Copies closed segments of one partition that this node leads.

    The manager calls ``copy_due_segments`` at its interval, and ``close`` when another node leads the partition.
    """

    def __init__(
        self, context: CopierContext, partition: Partition, fencing: LeaderEpochFencing, copied_end: "CopiedEnd"
    ) -> None:
        self._context = context
        self._copied_end = copied_end
        self._fencing = fencing
        self._partition = partition
        self._log = partition.log
        self.copy: SegmentCopy | None = None
        """The copy in progress."""
        self._due: deque[TierableSegment] = deque()
        self._activity = CopierActivity.IDLE
        self._is_closed = False
        self._pause_ms = 0
        self._lag = (0, 0)
        """The part of this partition in the gauges: bytes and segments."""

    def close(self) -> None:
        """Stop copying: this node no longer leads the partition, or it is no longer tiered. The step in progress may
        still be carried out, and no other one follows."""
        self._is_closed = True
        self._set_lag(0, 0)

    def copy_due_segments(self) -> None:
        """Copy due segments, one after the other, unless a copy is in progress."""
        if self._activity is not CopierActivity.IDLE or self._is_closed or not self._log.config.is_remote_copy_enabled:
            return
        if not self._fencing.is_established:  # Decision copier-fence
            self._activity = CopierActivity.FENCING
            self._fencing.establish(self._fencing_established)
        elif not self._copied_end.advance():
            self._activity = CopierActivity.SEARCHING
            later(self._context.ports, 0, self._go_on)
        elif self._next() is not None:  # Decision segment-to-copy
            self._activity = CopierActivity.AWAITING_SLOT
            self._context.slots.take(self._begin)

    def _fencing_established(self, error: Error) -> None:
        if error is ErrorCode.none or self._is_closed:
            self._go_on()
        else:
            self._retry_after_pause(f"the metadata does not show what was written: {error_name(error)}")

    def _next(self) -> TierableSegment | None:
        """Return the next segment to copy, or None if there is none or the copied end offset is not yet known."""
        log = self._log
        if not self._copied_end.advance():
            return None
        end = max(log.copied_end_offset, log.local_log_start_offset)
        while self._due and self._due[0].next_offset <= end:
            self._due.popleft()
        if self._due and self._due[0].base_offset > end:
            self._due.clear()  # A segment before it was listed, and no longer is.
        if not self._due:
            self._due.extend(log.tierable(log.last_stable_offset, log.high_watermark, log.copied_end_offset))
        return self._due[0] if self._due else None

    # --- the steps of a copy ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a copy in the slot that this partition got."""
        may_copy = not self._is_closed and self._log.config.is_remote_copy_enabled and self._fencing.is_established
        local = self._next() if may_copy else None
        if local is None:  # Decision copy-in-slot
            self._end()
            self.copy_due_segments()
            return
        self._activity = CopierActivity.COPYING
        self.copy = copy = SegmentCopy(local, self._partition.leader_epoch)
        self._context.metrics.copy_requests.value += 1
        run_slices(self._context.ports, self._collect(copy))

    def _collect(self, copy: SegmentCopy) -> Sliced[None]:
        context = self._context
        segment_id = random_uuid(context.random)
        try:  # Decision copy-preparation
            data = yield from collect_segment_data(
                self._partition, copy.local, context.ports.now(), context.node_id, segment_id
            )
        except (Overtaken, EpochsUnknown, InvalidRecords, DiskError) as failure:
            self._advance(copy.failed(str(failure)))
        else:
            if data.recreated is not None:
                self._note_recreated(copy.local, data.recreated, data.segment.event_timestamp_ms)
            self._advance(copy.with_data(data))

    def _note_recreated(self, local: TierableSegment, recreated: RecreatedSnapshot, now_ms: int) -> None:
        self._context.ports.note(
            "producer_snapshot_recreated",
            ("partition", self._log.directory),
            ("offset", local.next_offset),
            ("from_offset", recreated.from_offset),
            ("read_bytes", recreated.read_bytes),
            ("now_ms", now_ms),
        )

    def _advance(self, copy: SegmentCopy) -> None:
        """Take the next step, if this node still leads the partition in the leader epoch of the copy."""
        # Decision copy-leadership
        if copy.stage not in ENDED and (self._is_closed or self._partition.leader_epoch != copy.leader_epoch):
            copy = copy.abandoned()
        self.copy = copy
        context = self._context
        match copy.stage:
            case CopyStage.WRITING_COPY_STARTED:
                context.metadata.write(copy.segment, partial(self._written, copy))
            case CopyStage.STORING:
                # ``ports.store`` is ``StoreCalls.request`` (``core/effect_ports.py``): the put becomes an effect.
                context.ports.store(
                    copy.next_object, lambda _: self._advance(copy.done()), partial(self._not_stored, copy)
                )
            case CopyStage.WRITING_COPY_FINISHED:
                finished, wall_ms = RemoteLogSegmentState.COPY_SEGMENT_FINISHED, context.ports.now().wall_ms
                update = update_of(copy.segment, finished, context.node_id, copy.leader_epoch, wall_ms)
                context.metadata.write(update, partial(self._written, copy))
            case CopyStage.FINISHED:
                self._finished(copy)
            case CopyStage.FAILED:
                self._failed(copy)
            case CopyStage.ABANDONED:
                self._end()
                self.copy_due_segments()

    def _written(self, copy: SegmentCopy, error: Error) -> None:
        if error is ErrorCode.none:  # Decision copy-event
            self._advance(copy.done())
        else:
            self._advance(copy.failed(f"the metadata of the segment was not written: {error_name(error)}"))

    def _not_stored(self, copy: SegmentCopy, failure: StoreFailure) -> None:
        self._advance(copy.failed(f"{copy.next_object.key}: {failure.kind}: {failure.reason}"))

    # --- the end of a copy --------------------------------------------------------------------------------------------

    def _finished(self, copy: SegmentCopy) -> None:
        context, local = self._context, copy.local
        context.metrics.copied_bytes.value += local.size_bytes
        context.ports.note(
            "segment_copied",
            ("partition", self._log.directory),
            ("base_offset", local.base_offset),
            ("next_offset", local.next_offset),
            ("size_bytes", local.size_bytes),
            ("leader_epoch", copy.leader_epoch),
            ("segment_id", uuid_text(copy.segment.segment_id)),
            ("began_ms", copy.segment.event_timestamp_ms),
        )
        self._end()
        if not self._is_closed:
            self._copied_end.advance()
            self._set_lag(*self._uncopied())
            if self._log.copied_end_offset < local.next_offset:  # Decision copied-segment
                self._retry_after_pause("a segment that was copied is not listed")
            else:
                self._pause_ms = 0
                self.copy_due_segments()

    def _failed(self, copy: SegmentCopy) -> None:
        self._end()
        if not self._is_closed:
            self._context.metrics.copy_errors.value += 1
            self._retry_after_pause(copy.reason)

    def _end(self) -> None:
        self.copy = None
        self._activity = CopierActivity.IDLE
        self._context.slots.give_back()

    def _retry_after_pause(self, reason: str) -> None:
        context = self._context
        self._pause_ms = min(max(2 * self._pause_ms, context.first_pause_ms), context.longest_pause_ms)
        self._activity = CopierActivity.PAUSED
        context.ports.note("copy_failed", ("partition", self._log.directory), ("reason", reason))
        later(context.ports, self._pause_ms * 1000, self._go_on)

    def _go_on(self) -> None:
        self._activity = CopierActivity.IDLE
        self.copy_due_segments()

    # --- the lag ------------------------------------------------------------------------------------------------------

    def count_lag(self) -> None:
        """Update the gauges."""
        if not self._is_closed:
            self._set_lag(*(self._uncopied() if self._log.config.is_remote_copy_enabled else (0, 0)))

    def _uncopied(self) -> tuple[int, int]:
        """Return the bytes and the number of closed segments that are not copied."""
        segments = self._log.segments
        closed = segments.items[segments.index_of(self._log.copied_end_offset) : -1]
        return sum(each.size_bytes for each in closed), len(closed)

    def _set_lag(self, size_bytes: int, segments: int) -> None:
        metrics = self._context.metrics
        metrics.copy_lag_bytes.value += size_bytes - self._lag[0]
        metrics.copy_lag_segments.value += segments - self._lag[1]
        self._lag = size_bytes, segments


@dataclass(slots=True, eq=False)
class CopiedEnd:
    """Search for ``copied_end_offset`` of one replica's log: all its records below are in listed remote segments.

    A leader calls ``advance`` once former leaders are fenced. A follower, which fences nobody, calls
    ``advance_unfenced``.
    """

    log: UnifiedLog
    metadata: RemoteLogMetadata
    topic_id: bytes
    index: int
    generation: object = None
    """Generation of the segment metadata in which the offset was found."""
    removals: int = 0
    """Number of removals from the segment metadata at the last ``advance_unfenced``."""

    def reset(self) -> None:
        """Restart the search at the start of the log."""
        self.log.note_copied(0)

    def reset_if_discarded(self) -> None:
        """Reset if the segment metadata was discarded, because events were lost."""
        generation = self.metadata.of(self.topic_id, self.index).generation
        if self.generation is not generation:
            self.generation = generation
            self.reset()

    def advance(self) -> bool:
        """Go on with the search. Return False if it needs another slice."""
        self.reset_if_discarded()
        log, segments = self.log, self.metadata.of(self.topic_id, self.index)
        lineage, start = lineage_of(log), max(log.copied_end_offset, log.local_log_start_offset)
        log.note_copied(segments.listed_until(lineage, start))
        return log.copied_end_offset == start or segments.segment_at(lineage, log.copied_end_offset) is None

    def advance_unfenced(self, leader_epoch: int) -> None:
        """Go on with the search once an event of the current leader is applied, since no former leader can revoke it
        then. The current leader may remove any segment, so the search begins again after a removal."""
        segments = self.metadata.of(self.topic_id, self.index)
        if self.removals != segments.removals:
            self.removals = segments.removals
            self.reset()
        # Decision followers-copied-end
        if self.metadata.is_ready(self.topic_id, self.index) and segments.newest_epoch >= leader_epoch:
            self.advance()


class EpochsUnknown(Exception):  # noqa: N818 - says what was found
    """The log does not know the leader epochs of all records of a segment, so nobody could find them in the tier."""


def collect_segment_data(
    partition: Partition, local: TierableSegment, now: Now, node_id: int, segment_id: bytes
) -> Sliced[LogSegmentData]:
    """Collect the data that a copy stores, in slices. A producer snapshot that is missing or damaged is recreated
    (P-8).

    If the log begins inside the segment, it has forgotten the leader epochs of the records before. Nobody reads these,
    so they count for the leader epoch at the log start. Raise Overtaken if the log loses records meanwhile,
    EpochsUnknown, InvalidRecords where a file is damaged, and DiskError.
    """
    log = partition.log
    log.files.write_index_files(local)
    snapshot, recreated = _whole_snapshot(log, local.next_offset), None
    if snapshot is None:  # Decision uploaded-snapshot
        recreated = yield from log.recreate_snapshot(now, local.next_offset)
        snapshot = recreated.snapshot
    lineage = lineage_of(log)
    start_offset = max(local.base_offset, log.log_start_offset)
    epochs = epochs_between(lineage, start_offset, local.next_offset)
    if not epochs or epochs[0][1] > start_offset:
        raise EpochsUnknown(f"no leader epoch is known at offset {start_offset}")
    segment = RemoteLogSegmentMetadata(
        topic_id=partition.topic_id,
        topic=partition.topic,
        partition=partition.index,
        segment_id=segment_id,
        start_offset=local.base_offset,
        end_offset=local.next_offset - 1,
        max_timestamp_ms=local.max_timestamp_ms,
        broker_id=node_id,
        event_timestamp_ms=now.wall_ms,
        size_bytes=local.size_bytes,
        leader_epochs=((epochs[0][0], local.base_offset), *epochs[1:]),
        uploader_epoch=partition.leader_epoch,
        has_transaction_index=bool(local.transaction_index_path),
    )
    files = [
        (ObjectKind.LOG, local.path, local.size_bytes),
        (ObjectKind.OFFSET_INDEX, local.offset_index_path, log.disk.size(local.offset_index_path)),
        (ObjectKind.TIME_INDEX, local.time_index_path, log.disk.size(local.time_index_path)),
    ]
    if local.transaction_index_path:
        size_bytes = log.disk.size(local.transaction_index_path)
        files.append((ObjectKind.TRANSACTION_INDEX, local.transaction_index_path, size_bytes))
    checkpoint = encoded_rows([f"{epoch} {start}" for epoch, start in lineage if start < local.next_offset])
    return LogSegmentData(
        segment,
        (
            *(PutFile(key_of(segment, kind), path, size_bytes) for kind, path, size_bytes in files),
            Put(key_of(segment, ObjectKind.PRODUCER_SNAPSHOT), snapshot),
            Put(key_of(segment, ObjectKind.LEADER_EPOCHS), checkpoint),
        ),
        recreated,
    )


def epochs_between(lineage: LeaderEpochStarts, offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of [offset, end_offset), each with its first offset there."""
    ends = [*(start for _, start in lineage[1:]), end_offset]
    return tuple(
        (epoch, max(start, offset))
        for (epoch, start), end in zip(lineage, ends, strict=True)
        if end > offset and start < end_offset
    )


def _whole_snapshot(log: UnifiedLog, offset: int) -> bytes | None:
    """Return the producer snapshot before an offset, or None if it is missing or damaged (P-12)."""
    snapshots = log.segments.snapshots
    if offset not in snapshots.offsets:
        return None
    path = snapshots.path(offset)
    if not log.disk.exists(path):  # It was deleted behind the broker's back.
        snapshots.delete(offset)
        return None
    data = log.disk.read(path, 0, log.disk.size(path))
    try:
        next(decode_snapshot(data), None)  # It checks the file before it yields any producer.
    except SnapshotDamaged:
        return None
    return data
