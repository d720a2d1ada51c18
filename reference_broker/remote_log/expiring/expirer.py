"""Deletes remote segments of one partition that this node leads: what retention lets go, and garbage (KIP-405, P-11).

Garbage are copies that were given up, segments whose offsets newer ones own, and objects that no event tells of: a
former leader may store one after its copy was removed. Where events are lost, what they told of stays. What this node
does counts only while no newer leader is known (``Fence``). If the topic has no tier any more, everything goes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference_broker.log.reading import OffsetOutOfRange
from reference_broker.ports.disk import DiskError
from reference_broker.ports.node_ports import Done, Slices, StorePorts, run_slices
from reference_broker.ports.store import Delete, ListObjects, StoredObject, StoreFailure
from reference_broker.remote_log.copying.slots import Slots
from reference_broker.remote_log.expiring.removal import Removal
from reference_broker.remote_log.expiring.retention import SEGMENTS_PER_SLICE, LeaderLog, Shares, Sliced, due
from reference_broker.remote_log.fence import Fence, Proven
from reference_broker.remote_log.lineage import lineage_of
from reference_broker.remote_log.metadata.events import LeaderEpochStarts, RemoteSegment
from reference_broker.remote_log.metadata.partition_segments import PartitionSegments
from reference_broker.remote_log.metadata.remote_log_metadata import RemoteLogMetadata
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.remote_log.objects import folder_of, name_of
from reference_broker.replication.durable import sync_led_then
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode, error_name

SWEEP_INTERVAL_US = 3_600_000_000
"""A leader looks for objects that no event tells of when it begins to lead, and then every hour."""
KEYS_A_DELETE = 500
OBJECTS_PER_SLICE = 500
"""To look at the names of so many takes some 3 ms."""
SWEEPS_TO_CLEAR = 2
"""The second one finds what was on its way to the store at the first one."""


@dataclass(frozen=True, slots=True)
class ExpiringSetting:
    """What all expirers of a node share."""

    node_id: int
    ports: StorePorts
    metadata: RemoteLogMetadata
    metrics: RemoteLogMetrics
    slots: Slots


class Expirer:
    """``copied_now`` returns the ID of the segment that is being copied here: it is no garbage."""

    def __init__(
        self,
        setting: ExpiringSetting,
        partition: Partition,
        fence: Fence,
        copied_now: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._setting = setting
        self._partition = partition
        self._fence = fence
        self._copied_now = copied_now
        self._epoch = -1
        """The leader epoch in which the work goes on."""
        self._generation: object = None
        """Of what is known, also in which the work goes on."""
        self._sweeps_at_us = 0
        self._sweeps = 0
        """How often it was swept since the topic has no tier any more."""
        self._is_tiered = True
        """Whether the topic had a tier when the work began."""
        self._queue: deque[RemoteSegment] = deque()
        self._is_busy = False
        """It waits: for its turn, or for the end of a step."""
        self._has_slot = False
        self._is_closed = False
        self._has_noted_loss = False
        self._told = (0, 0, 0, 0)
        """What it adds to the gauges: segments and bytes that there are, segments and bytes that are to go."""

    def close(self) -> None:
        """This node leads the partition no more. The step that is under way may still happen. No other one follows."""
        self._is_closed = True
        if self._has_slot:
            self._end()
        self._tell(0, 0, 0, 0)

    @property
    def is_clearing(self) -> bool:
        """It deletes what is listed, because the topic has no tier any more or had none when this began."""
        return self._is_busy and not self._is_tiered

    @property
    def is_cleared(self) -> bool:
        """The topic has no tier any more, and nothing of it is there."""
        return self._sweeps >= SWEEPS_TO_CLEAR and not len(self._known)

    def look(self) -> None:
        """Deletes what is due, one segment after the other, if nothing is under way already. What fails is tried again
        at the next look."""
        if self._partition.log.config.remote_storage_enable:
            self._sweeps = 0
        else:
            self._leave_the_tier()
        if not self._is_busy and not self._is_closed and self._is_known:
            self._is_busy, self._generation = True, self._known.generation
            self._setting.slots.take(self._begin)

    def _leave_the_tier(self) -> None:
        """What only the tier has is no part of the log any more, as in Kafka."""
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
    def _known(self) -> PartitionSegments:
        return self._metadata.of(self._partition.topic_id, self._partition.index)

    def _begin(self) -> None:
        """It is this partition's turn."""
        self._has_slot = True
        if self._is_closed or not self._is_known or self._known.generation is not self._generation:
            self._end()
            return
        is_tiered = self._partition.log.config.remote_storage_enable
        if self._epoch != self._partition.leader_epoch or self._is_tiered != is_tiered:
            self._epoch, self._is_tiered = self._partition.leader_epoch, is_tiered
            self._sweeps = self._sweeps_at_us = 0
        if self._fence.is_up:
            self._collect()
        else:
            self._fence.put_up(self._when_proven(self._collect))

    def _may_go_on(self) -> bool:
        """Ends the work if the partition is led in another epoch, is watched no more, or all that is known is new."""
        is_as_before = self._is_known and self._known.generation is self._generation
        if self._has_slot and not (is_as_before and self._partition.leader_epoch == self._epoch):
            self._end()
        return self._has_slot

    def _tell(self, *now: int) -> None:
        metrics, before = self._setting.metrics, self._told
        metrics.metadata_count.value += now[0] - before[0]
        metrics.size_bytes.value += now[1] - before[1]
        metrics.delete_lag_segments.value += now[2] - before[2]
        metrics.delete_lag_bytes.value += now[3] - before[3]
        self._told = (now[0], now[1], now[2], now[3])

    def _count(self) -> None:
        """Brings the gauges up to date."""
        known, queue = self._known, self._queue
        listed_bytes = sum(each.size_bytes for each in known.listed())
        self._tell(len(known), listed_bytes, len(queue), sum(each.size_bytes for each in queue))

    def _end(self, reason: str = "") -> None:
        self._is_busy = self._has_slot = False
        self._queue.clear()
        self._setting.slots.give_back()
        if reason:
            self._setting.metrics.delete_errors.value += 1
            self._setting.ports.note(
                "expiring_failed", ("partition", self._partition.log.directory), ("reason", reason)
            )

    def _when_proven(self, then: Done) -> Proven:
        """What is told whether events of this leader count: then ``then`` is called."""

        def proven(error: Error) -> None:
            if not self._may_go_on():
                return
            if error is ErrorCode.none:
                then()
            else:
                self._end(f"the metadata does not show what was written: {error_name(error)}")

        return proven

    # --- segments ---------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        run_slices(self._setting.ports, self._find_due())

    def _find_due(self) -> Slices:
        """Garbage goes first, then what retention lets go. The log's start is durable before."""
        log, known = self._partition.log, self._known
        copied_now, listed = self._copied_now(), tuple(known.listed())
        self._queue.extend(each for each in known.unfinished() if each.segment_id != copied_now)
        if not self._is_tiered:
            self._queue.extend(listed)
            self._count()
            sync_led_then(self._setting.ports, [self._partition], self._next)
            return
        lineage = lineage_of(log)
        shares, config = Shares(lineage), log.config
        local_only = yield from self._local_only_bytes(listed, lineage)
        if not self._may_go_on():
            return
        of_log = LeaderLog(log.log_start_offset, lineage, local_only, config.retention_ms, config.retention_bytes)
        found = yield from due(listed, of_log, self._setting.ports.now().wall_ms)
        if not self._may_go_on():
            return
        start = found.log_start_offset
        if self._lacks_events:
            self._note_loss()
        elif start >= log.local_log_start_offset or known.segment_at(lineage, start) is not None:
            pass
        elif start not in known.told:
            self._note_loss()
        else:  # A former leader deleted more than this log knows. Nobody can read what lies before the next segment.
            gone = {each.segment_id for each in found.segments}
            first = yield from shares.first([each for each in listed if each.segment_id not in gone], start)
            start = log.local_log_start_offset if first is None else min(first, log.local_log_start_offset)
        if self._may_go_on():
            self._queue.extend(found.segments)
            self._count()
            self._start_log_at(start)

    def _start_log_at(self, start: int) -> None:
        log = self._partition.log
        if start <= log.log_start_offset:
            self._next()
            return
        try:
            log.delete_records_before(start)
        except (DiskError, OffsetOutOfRange) as failure:
            self._end(str(failure))
            return
        self._partition.changed()
        sync_led_then(self._setting.ports, [self._partition], self._next)

    @property
    def _lacks_events(self) -> bool:
        """Says whether the log begins with records that are not here, and no event ever told of a copy of the first
        one."""
        log = self._partition.log
        return log.log_start_offset < log.local_log_start_offset and log.log_start_offset not in self._known.told

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

    def _local_only_bytes(self, listed: Sequence[RemoteSegment], lineage: LeaderEpochStarts) -> Sliced[int]:
        """How many bytes only the log has. Segments before the first one that is listed do not count: they are older,
        so they would go first."""
        log, known = self._partition.log, self._known
        first = yield from Shares(lineage).first(listed, log.log_start_offset)
        if first is None:
            return log.size_bytes
        local = tuple(zip(log.segments, [*log.bases[1:], log.log_end_offset], strict=False))
        size_bytes = 0
        for number, (each, end) in enumerate(local, 1):
            is_listed = None not in (known.segment_at(lineage, each.base_offset), known.segment_at(lineage, end - 1))
            if end > first and not is_listed:
                size_bytes += each.size_bytes
            if number % SEGMENTS_PER_SLICE == 0:
                yield
        return size_bytes

    def _next(self) -> None:
        if not self._may_go_on():
            return
        if not self._is_tiered and self._partition.log.config.remote_storage_enable:
            self._end()  # The tier is back. What is still listed stays.
            return
        if not self._queue:
            self._count()
            self._sweep_if_due()
            return
        segment = self._known.get(self._queue.popleft().segment_id)
        if segment is None:
            self._next()
            return
        self._setting.metrics.delete_requests.value += 1
        setting = self._setting
        removal = Removal(setting.ports, setting.metadata, setting.node_id, self._epoch, self._may_go_on)
        removal.remove(segment, lambda reason: self._end(reason) if reason else self._next())

    # --- objects that no event tells of -----------------------------------------------------------------------------

    def _sweep_if_due(self) -> None:
        ports, partition = self._setting.ports, self._partition
        if ports.now().mono_us < self._sweeps_at_us:
            self._end()
            return
        folder = folder_of(partition.topic, partition.topic_id, partition.index)
        ports.store(ListObjects(folder), self._found, self._store_failed)

    def _found(self, objects: tuple[StoredObject, ...]) -> None:
        """An object whose segment is not known here may be of a newer leader. Then that has written before it stored
        the object, so an event that is written now is read back with an error."""
        keys = [each.key for each in objects]
        self._sort_out(
            keys, lambda unknown: self._fence.prove(self._when_proven(lambda: self._sort_out(unknown, self._delete)))
        )

    def _sort_out(self, keys: Sequence[str], then: Callable[[list[str]], None]) -> None:
        """Gives ``then`` those whose segments are not known. In slices. If the log has records before its local start
        that are not listed, events were lost, and what may hold these records stays."""
        unknown, log = list[str](), self._partition.log
        lineage = lineage_of(log)

        def may_be_missed(offset: int) -> bool:
            at = max(offset, log.log_start_offset)
            return at < log.local_log_start_offset and self._known.segment_at(lineage, at) is None

        def look() -> Slices:
            for number, key in enumerate(keys, 1):
                name = name_of(key)
                if name is not None and self._known.get(name.segment_id) is None:
                    if may_be_missed(name.start_offset):
                        self._note_loss()
                    else:
                        unknown.append(key)
                if number % OBJECTS_PER_SLICE == 0:
                    yield
                    if not self._may_go_on():
                        return

        def looked() -> None:
            if not self._may_go_on():
                return
            if unknown:
                then(unknown)
            else:
                self._swept()

        run_slices(self._setting.ports, look(), looked)

    def _delete(self, keys: list[str]) -> None:
        if not self._may_go_on():
            return
        if not keys:
            self._swept()
            return
        some, rest = tuple(keys[:KEYS_A_DELETE]), keys[KEYS_A_DELETE:]
        self._setting.ports.store(Delete(some), lambda _: self._delete(rest), self._store_failed)

    def _store_failed(self, failure: StoreFailure) -> None:
        if self._may_go_on():
            self._end(f"{failure.kind}: {failure.reason}")

    def _swept(self) -> None:
        self._sweeps += not self._is_tiered
        self._sweeps_at_us = self._setting.ports.now().mono_us + SWEEP_INTERVAL_US
        self._end()
