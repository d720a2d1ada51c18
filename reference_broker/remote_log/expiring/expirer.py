"""Deletes remote segments of one partition that this node leads: expired ones and garbage (Kafka's RLMExpirationTask;
KIP-405, P-11).

``due`` decides what has expired, by the settings of the topic and the leader's log. Garbage are copies that were
abandoned, segments whose offsets newer ones own, and objects of no event: a former leader may store one after its copy
was removed. Where events are lost, the objects that they named stay. What this node does counts only while no newer
leader is known (``LeaderEpochFencing``). If the topic has no tier any more, everything is deleted.

The deletion of a segment is written to the metadata before and after its objects are deleted. A deletion that was begun
is continued, so a crash leaves nothing.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

from reference_broker.coordination.scheduling import Slots
from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.ports.coroutines import Wait, run_coroutine
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Done, StorePorts
from reference_broker.ports.slicing import REMOTE_OBJECTS_PER_SLICE, REMOTE_SEGMENTS_PER_SLICE, Sliced, run_slices
from reference_broker.ports.store import Delete, ListObjects, StoredObject, StoreFailure
from reference_broker.remote_log.leader_epoch_fencing import FencingCallback, LeaderEpochFencing
from reference_broker.remote_log.metadata.events import (
    LeaderEpochStarts,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    lineage_of,
    update_of,
)
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadata, RemoteLogMetadataCache
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.remote_log.objects import folder_of, keys_of, name_of
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import sync_led_then
from reference_broker.wire.errors import Error, ErrorCode, error_name

UNLIMITED: Final = -1
_NO_END: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """The leader's log as retention needs it."""

    log_start_offset: int
    lineage: LeaderEpochStarts
    """The leader epochs of the log with their start offsets."""
    local_only_bytes: int
    """Bytes of the log that are not copied yet."""
    retention_ms: int
    """-1 for no limit, as is ``retention_bytes``."""
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class Due:
    """Expired remote segments."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    """To be deleted in this order."""
    log_start_offset: int
    """The new start of the log. It comes before any deletion."""


def due(segments: Sequence[RemoteLogSegmentMetadata], log: LeaderLog, now_ms: int) -> Sliced[Due]:
    """Return what is due of the listed segments, which come by their first offset.

    A segment goes if it lies wholly before the log's start. Of those that hold records of this log the oldest go while
    they are too old, or while the log without them still has ``retention_bytes``. The first that stays keeps all that
    follow. A segment of leader epochs before those of this log goes, too. One that an unclean election cut off stays
    until then: the log may end before it.
    """
    shares, ends = Shares(log.lineage), list[int | None]()
    spare_bytes = log.local_only_bytes - log.retention_bytes
    for number, segment in enumerate(segments, 1):
        end = shares.end(segment)
        ends.append(end)
        spare_bytes += 0 if end is None else segment.size_bytes
        if number % REMOTE_SEGMENTS_PER_SLICE == 0:
            yield
    start, is_retaining = log.log_start_offset, False
    gone = []
    for number, (each, end) in enumerate(zip(segments, ends, strict=True), 1):
        if number % REMOTE_SEGMENTS_PER_SLICE == 0:
            yield
        if end is None:
            if each.next_offset <= log.log_start_offset or is_before(each, log.lineage):
                gone.append(each)
            continue
        is_unreachable = each.next_offset <= log.log_start_offset
        is_old = log.retention_ms != UNLIMITED and each.max_timestamp_ms <= now_ms - log.retention_ms
        is_too_much = log.retention_bytes != UNLIMITED and spare_bytes >= each.size_bytes
        if is_unreachable or (not is_retaining and (is_old or is_too_much)):  # Decision remote-segment
            gone.append(each)
            spare_bytes -= each.size_bytes
            start = max(start, end)
        else:
            is_retaining = True
    return Due(tuple(gone), start)


def is_before(segment: RemoteLogSegmentMetadata, lineage: LeaderEpochStarts) -> bool:
    """Return whether all leader epochs of the segment are before the first one of the log."""
    return bool(lineage) and segment.leader_epochs[-1][0] < lineage[0][0]


class Shares:
    """The offsets of remote segments that a log of these leader epochs has, too."""

    def __init__(self, lineage: LeaderEpochStarts) -> None:
        self._ranges = {one[0]: (one[1], other[1]) for one, other in pairwise([*lineage, (-1, _NO_END)])}

    def end(self, segment: RemoteLogSegmentMetadata) -> int | None:
        """Return one past the last offset that both have. None: there is no such offset."""
        return max((end for _, end in self._shared(segment)), default=None)

    def first(self, segments: Sequence[RemoteLogSegmentMetadata], offset: int) -> Sliced[int | None]:
        """Return the first offset from ``offset`` on that one of the segments shares with the log."""
        first: int | None = None
        for number, segment in enumerate(segments, 1):
            for start, end in self._shared(segment):
                if end > offset and (first is None or max(start, offset) < first):
                    first = max(start, offset)
            if number % REMOTE_SEGMENTS_PER_SLICE == 0:
                yield
        return first

    def _shared(self, segment: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int]]:
        for epoch, start, end in segment.epoch_ranges():
            first, last = self._ranges.get(epoch, (0, 0))
            if max(start, first) < min(end, last):
                yield max(start, first), min(end, last)


@dataclass(frozen=True, slots=True)
class SegmentRemoval:
    """Deletion of a remote segment: DELETE_SEGMENT_STARTED, the objects, DELETE_SEGMENT_FINISHED."""

    ports: StorePorts
    metadata: RemoteLogMetadata
    node_id: int
    leader_epoch: int
    """In which this node leads."""
    may_go_on: Callable[[], bool]
    """Called before each step."""

    def remove(self, segment: RemoteLogSegmentMetadata, ended: Callable[[str], None]) -> None:
        """Call ``ended`` with an empty text once the segment is gone, or if it is no longer in the state that it was
        in. Otherwise call it with the reason of the failure; the next check finds the rest. It is not called if
        ``may_go_on`` returns False."""
        run_coroutine(self._remove(segment, ended))

    async def _remove(self, segment: RemoteLogSegmentMetadata, ended: Callable[[str], None]) -> None:
        error: Error = ErrorCode.none
        if segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            error = await self._write(segment, segment.state, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        if not self.may_go_on():
            return
        if error is not ErrorCode.none:  # Decision remote-deletion
            is_over = error in (ErrorCode.resource_not_found, ErrorCode.invalid_request)
            ended("" if is_over else f"the begin of a deletion was not written: {error_name(error)}")
            return
        failure = await self._delete_objects(segment)
        if not self.may_go_on():
            return
        if failure is not None:
            ended(f"{failure.kind}: {failure.reason}")
            return
        started, finished = RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        error = await self._write(segment, started, finished)
        if not self.may_go_on():
            return
        is_over = error in (ErrorCode.none, ErrorCode.resource_not_found)
        ended("" if is_over else f"the end of a deletion was not written: {error_name(error)}")

    def _delete_objects(self, segment: RemoteLogSegmentMetadata) -> Wait[StoreFailure | None]:
        return Wait(lambda resume: self.ports.store(Delete(keys_of(segment)), lambda _: resume(None), resume))

    def _write(
        self, segment: RemoteLogSegmentMetadata, before: RemoteLogSegmentState, after: RemoteLogSegmentState
    ) -> Wait[Error]:
        now_ms = self.ports.now().wall_ms
        event = update_of(replace(segment, state=before), after, self.node_id, self.leader_epoch, now_ms)
        return Wait(partial(self.metadata.write, event))


SWEEP_INTERVAL_US = 3_600_000_000
"""A leader searches for objects without events when it begins to lead, and then every hour."""
KEYS_A_DELETE = 500
SWEEPS_TO_CLEAR = 2
"""The second sweep finds what was being stored during the first one."""


@dataclass(frozen=True, slots=True)
class ExpiringSetting:
    """The part that all expirers of a node share."""

    node_id: int
    ports: StorePorts
    metadata: RemoteLogMetadata
    metrics: RemoteLogMetrics
    slots: Slots


class Expirer:
    """Deletes the due segments of one partition. ``copied_now`` returns the ID of the segment that is being copied
    here, which is no garbage."""

    def __init__(
        self,
        setting: ExpiringSetting,
        partition: Partition,
        fencing: LeaderEpochFencing,
        copied_now: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._setting = setting
        self._partition = partition
        self._fencing = fencing
        self._copied_now = copied_now
        self._epoch = -1
        """The leader epoch in which the present deletions were found."""
        self._generation: object = None
        """The generation of the segment metadata in which they were found."""
        self._sweeps_at_us = 0
        """When to search the store for objects without events."""
        self._sweeps = 0
        """Number of sweeps since the topic has no tier any more."""
        self._is_tiered = True
        """Whether the topic had a tier when they were found."""
        self._queue: deque[RemoteLogSegmentMetadata] = deque()
        """Segments to delete."""
        self._is_busy = False
        """Whether the expirer waits for a slot, or for the end of a step."""
        self._has_slot = False
        self._is_closed = False
        self._has_noted_loss = False
        """Whether missing events were reported, which happens once."""
        self._gauged = (0, 0, 0, 0)
        """The share of this partition in the gauges: listed segments and bytes, segments and bytes to delete."""

    def close(self) -> None:
        """Stop, since this node no longer leads the partition. A step that is under way may still take effect."""
        self._is_closed = True
        if self._has_slot:
            self._end()
        self._set_gauges(0, 0, 0, 0)

    @property
    def is_clearing(self) -> bool:
        """Whether all listed segments are deleted, because the topic has no tier any more or had none at the
        beginning."""
        return self._is_busy and not self._is_tiered

    @property
    def is_cleared(self) -> bool:
        """Whether the topic has no tier any more, and no object of it is left."""
        return self._sweeps >= SWEEPS_TO_CLEAR and not len(self._known)

    def delete_due_segments(self) -> None:
        """Delete what is due, one segment after the other, unless that is under way already. Failures are retried at
        the next call."""
        if self._partition.log.config.remote_storage_enable:
            self._sweeps = 0
        else:
            self._drop_tiered_records()
        if not self._is_busy and not self._is_closed and self._is_known:
            self._is_busy, self._generation = True, self._known.generation
            self._setting.slots.take(self._begin)

    def _drop_tiered_records(self) -> None:
        """Advance the log start beyond the records that only the tier has, as Kafka does for
        ``remote.log.delete.on.disable``."""
        log = self._partition.log
        if self._is_closed or log.log_start_offset >= log.local_log_start_offset:
            return
        try:
            log.delete_records_before(log.local_log_start_offset)
        except (DiskError, OffsetOutOfRange) as failure:
            self._setting.ports.note("expiring_failed", ("partition", log.directory), ("reason", str(failure)))
        else:
            self._partition.changed()

    @property
    def _metadata(self) -> RemoteLogMetadata:
        return self._setting.metadata

    @property
    def _is_known(self) -> bool:
        return self._metadata.is_ready(self._partition.topic_id, self._partition.index)

    @property
    def _known(self) -> RemoteLogMetadataCache:
        return self._metadata.of(self._partition.topic_id, self._partition.index)

    def _begin(self) -> None:
        """Begin, since a slot is free."""
        self._has_slot = True
        if self._is_closed or not self._is_known or self._known.generation is not self._generation:
            self._end()
            return
        is_tiered = self._partition.log.config.remote_storage_enable
        if self._epoch != self._partition.leader_epoch or self._is_tiered != is_tiered:
            self._epoch, self._is_tiered = self._partition.leader_epoch, is_tiered
            self._sweeps = self._sweeps_at_us = 0
        if self._fencing.is_established:
            self._collect()
        else:
            self._fencing.establish(self._when_established(self._collect))

    def _may_go_on(self) -> bool:
        """Return whether the work may continue. End it if the leader epoch has changed, the partition is no longer
        watched, or its segment metadata was discarded."""
        is_as_before = self._is_known and self._known.generation is self._generation
        # Decision expiring-leadership
        if self._has_slot and not (is_as_before and self._partition.leader_epoch == self._epoch):
            self._end()
        return self._has_slot

    def _set_gauges(self, *now: int) -> None:
        metrics, before = self._setting.metrics, self._gauged
        metrics.metadata_count.value += now[0] - before[0]
        metrics.size_bytes.value += now[1] - before[1]
        metrics.delete_lag_segments.value += now[2] - before[2]
        metrics.delete_lag_bytes.value += now[3] - before[3]
        self._gauged = (now[0], now[1], now[2], now[3])

    def _update_gauges(self) -> None:
        segments, queue = self._known, self._queue
        listed_bytes = sum(each.size_bytes for each in segments.listed())
        self._set_gauges(len(segments), listed_bytes, len(queue), sum(each.size_bytes for each in queue))

    def _end(self, reason: str = "") -> None:
        self._is_busy = self._has_slot = False
        self._queue.clear()
        self._setting.slots.give_back()
        if reason:
            self._setting.metrics.delete_errors.value += 1
            self._setting.ports.note(
                "expiring_failed", ("partition", self._partition.log.directory), ("reason", reason)
            )

    def _when_established(self, then: Done) -> FencingCallback:
        """Return a callback of leader epoch fencing that calls ``then`` if events of this leader are valid."""

        def established(error: Error) -> None:
            if not self._may_go_on():
                return
            if error is ErrorCode.none:
                then()
            else:
                self._end(f"the metadata does not show what was written: {error_name(error)}")

        return established

    # --- segments -----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        run_slices(self._setting.ports, self._find_due())

    def _find_due(self) -> Sliced[None]:
        """Queue garbage first, then what has expired. The new log start is made durable before any deletion."""
        log, segments = self._partition.log, self._known
        copied_now, listed = self._copied_now(), tuple(segments.listed())
        self._queue.extend(
            each for each in segments.unfinished() if each.segment_id != copied_now and self._is_over(each)
        )
        if not self._is_tiered:
            self._queue.extend(listed)
            self._update_gauges()
            sync_led_then(self._setting.ports, [self._partition], self._next)
            return
        lineage = lineage_of(log)
        shares, config = Shares(lineage), log.config
        local_only = yield from self._local_only_bytes(listed, lineage)
        if not self._may_go_on():
            return
        of_log = LeaderLog(log.log_start_offset, lineage, local_only, config.retention_ms, config.retention_bytes)
        expired = yield from due(listed, of_log, self._setting.ports.now().wall_ms)
        if not self._may_go_on():
            return
        start = expired.log_start_offset
        if self._lacks_events:  # Decision tier-events
            self._note_loss()
        elif start >= log.local_log_start_offset or segments.segment_at(lineage, start) is not None:
            pass
        elif start not in segments.copied:
            self._note_loss()
        else:  # A former leader deleted more than this log knows. No record before the next segment can be read.
            gone = {segment.segment_id for segment in expired.segments}
            first = yield from shares.first([each for each in listed if each.segment_id not in gone], start)
            start = log.local_log_start_offset if first is None else min(first, log.local_log_start_offset)
        if self._may_go_on():
            self._queue.extend(expired.segments)
            self._update_gauges()
            self._start_log_at(start)

    def _is_over(self, unfinished: RemoteLogSegmentMetadata) -> bool:
        """Return whether a copy was abandoned, or is being deleted already. If its records are missing, it was finished
        and the event that said so is lost."""
        if unfinished.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return True
        if self._is_missing_from(unfinished.start_offset, lineage_of(self._partition.log)):  # Decision unfinished-copy
            self._note_loss()
            return False
        return True

    def _is_missing_from(self, offset: int, lineage: LeaderEpochStarts) -> bool:
        """Return whether records from ``offset`` on are neither here nor listed, though the log has not deleted
        them."""
        log = self._partition.log
        offset = max(offset, log.log_start_offset)
        return offset < log.local_log_start_offset and self._known.segment_at(lineage, offset) is None

    def _start_log_at(self, start: int) -> None:
        log = self._partition.log
        if start > log.log_start_offset:
            try:
                log.delete_records_before(start)
            except (DiskError, OffsetOutOfRange) as failure:
                self._end(str(failure))
                return
            self._partition.changed()
        elif log.is_start_durable:
            self._next()
            return
        # The log start may also have come from a client or from the former leader, and not be durable yet.
        sync_led_then(self._setting.ports, [self._partition], self._next)

    @property
    def _lacks_events(self) -> bool:
        """Whether the log begins with records that are not here, and no event reported a copy of the first one."""
        log = self._partition.log
        return log.log_start_offset < log.local_log_start_offset and log.log_start_offset not in self._known.copied

    def _note_loss(self) -> None:
        log = self._partition.log
        if not self._has_noted_loss:
            self._has_noted_loss = True
            self._setting.ports.note(
                "remote_log_events_missing",
                ("partition", log.directory),
                ("log_start_offset", log.log_start_offset),
                ("local_log_start_offset", log.local_log_start_offset),
            )

    def _local_only_bytes(self, listed: Sequence[RemoteLogSegmentMetadata], lineage: LeaderEpochStarts) -> Sliced[int]:
        """Return the number of bytes that only the log has. Segments before the first listed one do not count: they are
        older, so they would go first."""
        log, segments = self._partition.log, self._known
        first = yield from Shares(lineage).first(listed, log.log_start_offset)
        if first is None:
            return log.size_bytes
        local = tuple(zip(log.segments, [*log.bases[1:], log.log_end_offset], strict=False))
        size_bytes = 0
        for number, (each, end) in enumerate(local, 1):
            is_listed = None not in (
                segments.segment_at(lineage, each.base_offset),
                segments.segment_at(lineage, end - 1),
            )
            if end > first and not is_listed:
                size_bytes += each.size_bytes
            if number % REMOTE_SEGMENTS_PER_SLICE == 0:
                yield
        return size_bytes

    def _next(self) -> None:
        if not self._may_go_on():
            return
        if not self._is_tiered and self._partition.log.config.remote_storage_enable:
            self._end()  # The tier is back. What is still listed stays.
            return
        if not self._queue:
            self._update_gauges()
            self._sweep_if_due()
            return
        segment = self._known.get(self._queue.popleft().segment_id)
        if segment is None:
            self._next()
            return
        self._setting.metrics.delete_requests.value += 1
        setting = self._setting
        removal = SegmentRemoval(setting.ports, setting.metadata, setting.node_id, self._epoch, self._may_go_on)
        removal.remove(segment, lambda reason: self._end(reason) if reason else self._next())

    # --- objects without events ---------------------------------------------------------------------------------------

    def _sweep_if_due(self) -> None:
        ports, partition = self._setting.ports, self._partition
        if ports.now().mono_us < self._sweeps_at_us:
            self._end()
            return
        folder = folder_of(partition.topic, partition.topic_id, partition.index)
        ports.store(ListObjects(folder), self._found, self._store_failed)

    def _found(self, objects: tuple[StoredObject, ...]) -> None:
        run_slices(self._setting.ports, self._verify_unknown([each.key for each in objects]))

    def _verify_unknown(self, keys: Sequence[str]) -> Sliced[None]:
        """Delete the objects whose segments are not known, once this node is known to be the leader. A segment may be
        of a newer leader. That one has written its event before it stored the object, so an event that is written now
        is read back with an error."""
        unknown = yield from self._unknown(keys)
        if unknown:
            run = partial(run_slices, self._setting.ports)
            self._fencing.verify_leadership(self._when_established(lambda: run(self._delete_unknown(unknown))))

    def _delete_unknown(self, keys: Sequence[str]) -> Sliced[None]:
        unknown = yield from self._unknown(keys)
        if unknown:
            self._delete(unknown)

    def _unknown(self, keys: Sequence[str]) -> Sliced[list[str]]:
        """Return the keys whose segments are not known. If there are none, the sweep is over. If the log has records
        before its local start that are not listed, events were lost, and objects that may have these records stay."""
        unknown, lineage = list[str](), lineage_of(self._partition.log)
        for number, key in enumerate(keys, 1):
            name = name_of(key)
            if name is not None and self._known.get(name.segment_id) is None:
                if self._is_missing_from(name.start_offset, lineage):  # Decision object-without-event
                    self._note_loss()
                else:
                    unknown.append(key)
            if number % REMOTE_OBJECTS_PER_SLICE == 0:
                yield
                if not self._may_go_on():
                    return []
        if not self._may_go_on():
            return []
        if not unknown:
            self._swept()
        return unknown

    def _delete(self, keys: list[str]) -> None:
        if not self._may_go_on():
            return
        if not keys:
            self._swept()
            return
        batch, remaining = tuple(keys[:KEYS_A_DELETE]), keys[KEYS_A_DELETE:]
        self._setting.ports.store(Delete(batch), lambda _: self._delete(remaining), self._store_failed)

    def _store_failed(self, failure: StoreFailure) -> None:
        if self._may_go_on():
            self._end(f"{failure.kind}: {failure.reason}")

    def _swept(self) -> None:
        self._sweeps += not self._is_tiered
        self._sweeps_at_us = self._setting.ports.now().mono_us + SWEEP_INTERVAL_US
        self._end()
