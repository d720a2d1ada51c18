"""Copies the segments of one partition that this node leads, one at a time.

``Copy`` decides the next step. Before each step this node checks that it still leads the partition in the same leader
epoch. A copy that fails is retried after a pause, as a new segment; ``expiring`` removes what the failed one left.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial

from reference_broker.coordination.scheduling import Slots
from reference_broker.log.producer_replay import Recreated
from reference_broker.log.retention import TierableSegment
from reference_broker.log.timestamp_lookup import Overtaken
from reference_broker.metadata.identifiers import random_uuid, uuid_text
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import RandomSource, StorePorts, later
from reference_broker.ports.slicing import Sliced, run_slices
from reference_broker.ports.store import StoreFailure
from reference_broker.records.batch import InvalidRecords
from reference_broker.remote_log.copying.copy import ENDED, Copy, EpochsUnknown, Stage, preparation
from reference_broker.remote_log.fence import Fence
from reference_broker.remote_log.metadata.events import SegmentState, lineage_of, update_of
from reference_broker.remote_log.metadata.partition_segments import RemoteLogMetadata
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode, error_name


@dataclass(frozen=True, slots=True)
class CopierContext:
    """What all copiers of a node share."""

    node_id: int
    ports: StorePorts
    metadata: RemoteLogMetadata
    metrics: RemoteLogMetrics
    slots: Slots
    random: RandomSource
    first_pause_ms: int
    longest_pause_ms: int


class Copier:
    """Copies closed segments of one partition that this node leads.

    The manager calls ``copy_due_segments`` at its interval, and ``close`` when another node leads the partition.
    """

    def __init__(self, around: CopierContext, partition: Partition, fence: Fence) -> None:
        self._around = around
        self._fence = fence
        self._partition = partition
        self._log = partition.log
        self.copy: Copy | None = None
        """The copy in progress."""
        self.copied_end = 0
        """All local records below this offset are in listed remote segments."""
        self._metadata_generation: object = None
        """Generation of the segment metadata from which ``copied_end`` was computed."""
        self._due: deque[TierableSegment] = deque()
        self._is_busy = False
        """Whether it waits for the fence, a slot, a step, or the end of a pause."""
        self._is_closed = False
        self._pause_ms = 0
        self._lag = (0, 0)
        """Its part of the gauges: bytes and segments."""

    def close(self) -> None:
        """Stop copying: this node no longer leads the partition, or it is no longer tiered. The step in progress may
        still be carried out, and no other one follows."""
        self._is_closed = True
        self._set_lag(0, 0)

    def copy_due_segments(self) -> None:
        """Copy due segments, one after the other, unless a copy is in progress."""
        if self._is_busy or self._is_closed or not self._log.config.is_copied:
            return
        if not self._fence.is_up:
            self._is_busy = True
            self._fence.raise_fence(self._proven)
        elif not self._find_copied_end():
            self._is_busy = True
            later(self._around.ports, 0, self._go_on)
        elif self._next() is not None:
            self._is_busy = True
            self._around.slots.take(self._begin)

    def _proven(self, error: Error) -> None:
        if error is ErrorCode.none or self._is_closed:
            self._go_on()
        else:
            self._retry_after_pause(f"the metadata does not show what was written: {error_name(error)}")

    def _find_copied_end(self) -> bool:
        """Update the copied end offset, also that of the log. Returns False if it needs another slice."""
        log, known = self._log, self._around.metadata.of(self._partition.topic_id, self._partition.index)
        if self._metadata_generation is not known.generation:
            self._metadata_generation, self.copied_end = known.generation, 0
        lineage, start = lineage_of(log), max(self.copied_end, log.local_log_start_offset)
        self.copied_end = log.copied_end_offset = known.listed_until(lineage, start)
        return self.copied_end == start or known.segment_at(lineage, self.copied_end) is None

    def _next(self) -> TierableSegment | None:
        """The next segment to copy, or None if there is none or the copied end offset is not yet known."""
        log = self._log
        if not self._find_copied_end():
            return None
        end = max(self.copied_end, log.local_log_start_offset)
        while self._due and self._due[0].next_offset <= end:
            self._due.popleft()
        if self._due and self._due[0].base_offset > end:
            self._due.clear()  # What comes before was listed, and no longer is.
        if not self._due:
            self._due.extend(log.tierable(log.last_stable_offset, log.high_watermark, self.copied_end))
        return self._due[0] if self._due else None

    # --- the steps of a copy ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a copy in the slot that this partition got."""
        may_copy = not self._is_closed and self._log.config.is_copied and self._fence.is_up
        local = self._next() if may_copy else None
        if local is None:
            self._end()
            self.copy_due_segments()
            return
        self.copy = copy = Copy(local, self._partition.leader_epoch)
        self._around.metrics.copy_requests.value += 1
        run_slices(self._around.ports, self._prepare(copy))

    def _prepare(self, copy: Copy) -> Sliced[None]:
        around = self._around
        segment_id = random_uuid(around.random)
        try:
            prepared = yield from preparation(
                self._partition, copy.local, around.ports.now(), around.node_id, segment_id
            )
        except (Overtaken, EpochsUnknown, InvalidRecords, DiskError) as failure:
            self._advance(copy.failed(str(failure)))
        else:
            if prepared.recreated is not None:
                self._note_recreated(copy.local, prepared.recreated, prepared.segment.event_timestamp_ms)
            self._advance(copy.with_objects(prepared))

    def _note_recreated(self, local: TierableSegment, recreated: Recreated, now_ms: int) -> None:
        self._around.ports.note(
            "producer_snapshot_recreated",
            ("partition", self._log.directory),
            ("offset", local.next_offset),
            ("from_offset", recreated.from_offset),
            ("read_bytes", recreated.read_bytes),
            ("now_ms", now_ms),
        )

    def _advance(self, copy: Copy) -> None:
        """Take the next step, if this node still leads the partition in the leader epoch of the copy."""
        if copy.stage not in ENDED and (self._is_closed or self._partition.leader_epoch != copy.leader_epoch):
            copy = copy.resigned()
        self.copy = copy
        around = self._around
        match copy.stage:
            case Stage.BEGINNING:
                around.metadata.write(copy.segment, partial(self._written, copy))
            case Stage.STORING:
                around.ports.store(
                    copy.next_object, lambda _: self._advance(copy.done()), partial(self._not_stored, copy)
                )
            case Stage.FINISHING:
                finished, wall_ms = SegmentState.COPY_SEGMENT_FINISHED, around.ports.now().wall_ms
                update = update_of(copy.segment, finished, around.node_id, copy.leader_epoch, wall_ms)
                around.metadata.write(update, partial(self._written, copy))
            case Stage.LISTED:
                self._listed(copy)
            case Stage.FAILED:
                self._failed(copy)
            case Stage.RESIGNED:
                self._end()
                self.copy_due_segments()

    def _written(self, copy: Copy, error: Error) -> None:
        if error is ErrorCode.none:
            self._advance(copy.done())
        else:
            self._advance(copy.failed(f"the metadata of the segment was not written: {error_name(error)}"))

    def _not_stored(self, copy: Copy, failure: StoreFailure) -> None:
        self._advance(copy.failed(f"{copy.next_object.key}: {failure.kind}: {failure.reason}"))

    # --- the end of a copy --------------------------------------------------------------------------------------------

    def _listed(self, copy: Copy) -> None:
        around, local = self._around, copy.local
        around.metrics.copied_bytes.value += local.size_bytes
        around.ports.note(
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
            self._find_copied_end()
            self._set_lag(*self._uncopied())
            if self.copied_end < local.next_offset:
                self._retry_after_pause("a segment that was copied is not listed")
            else:
                self._pause_ms = 0
                self.copy_due_segments()

    def _failed(self, copy: Copy) -> None:
        self._end()
        if not self._is_closed:
            self._around.metrics.copy_errors.value += 1
            self._retry_after_pause(copy.reason)

    def _end(self) -> None:
        self.copy = None
        self._is_busy = False
        self._around.slots.give_back()

    def _retry_after_pause(self, reason: str) -> None:
        around = self._around
        self._pause_ms = min(max(2 * self._pause_ms, around.first_pause_ms), around.longest_pause_ms)
        self._is_busy = True
        around.ports.note("copy_failed", ("partition", self._log.directory), ("reason", reason))
        later(around.ports, self._pause_ms * 1000, self._go_on)

    def _go_on(self) -> None:
        self._is_busy = False
        self.copy_due_segments()

    # --- the lag ------------------------------------------------------------------------------------------------------

    def count_lag(self) -> None:
        """Update the gauges."""
        if not self._is_closed:
            self._set_lag(*(self._uncopied() if self._log.config.is_copied else (0, 0)))

    def _uncopied(self) -> tuple[int, int]:
        """The bytes and the number of closed segments that are not listed."""
        segments = self._log.segments
        closed = segments.items[segments.index_of(self.copied_end) : -1]
        return sum(each.size_bytes for each in closed), len(closed)

    def _set_lag(self, size_bytes: int, segments: int) -> None:
        metrics = self._around.metrics
        metrics.copy_lag_bytes.value += size_bytes - self._lag[0]
        metrics.copy_lag_segments.value += segments - self._lag[1]
        self._lag = size_bytes, segments
