"""Indexes and snapshots of closed segments: the files beside their records, when a segment is closed and at the end of
a run.

Whatever can be derived from the batches of a segment equals a replay of them. The bytes are read without the broker's
code. Sources: Kafka's LogSegment (an entry of the offset index for the first batch behind ``index.interval.bytes``; the
largest timestamp in the time index once a segment is closed), ProducerStateManager, LeaderEpochFileCache; KIP-98,
KIP-101.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from chaos.checks.check import CheckContext, Kind, SegmentCheck
from chaos.checks.history import History
from chaos.checks.log.batches import BatchIdentity, producing_of
from chaos.checks.log.log_folders import (
    ProducerRow,
    StoredSegment,
    index_contradictions,
    index_gaps,
    rows_of,
    segment_of,
    snapshot_rows,
)
from chaos.checks.log.producer_view import METADATA_LOG, LoggedProducer, LogProducers
from chaos.checks.log.producers import last_offset_of, may_differ
from chaos.checks.log.segment_view import ClosedSegment, FollowedLog
from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.core.events import Effect, Event, Request
from reference_broker.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node

LEADER_EPOCHS = "leader-epoch-checkpoint"


class SideFilesMatch(SegmentCheck):
    """log-consistent: the indexes, the timestamps and the leader epochs of a closed segment are those of its batches.

    A start may have rebuilt indexes with another ``index.interval.bytes``, so gaps between entries are judged by the
    largest one that was in force. Physical: a file whose bits a fault has flipped, or that cannot be read, is not
    judged. At the end the index files of all closed segments are judged again, if they exist: a start may have deleted
    them, and a cleaner may have written others.
    """

    guarantee = "log-consistent"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.segments.on_closed.append(self.closed)

    def closed(self, at_us: int, node: "Node", known: FollowedLog, base: int, end: int, is_same: bool) -> None:  # noqa: ARG002
        log = known.log
        files, segment = _segment_of(log, base)
        if not segment.batches or segment.whole < segment.size:
            return
        self.evidence += 1
        where = f"{log.directory} on node {node.broker.node_id}"
        for wrong in (
            *index_contradictions(files, segment),
            *(index_gaps(files, segment, known.intervals[base]) if is_same else ()),
            *_epoch_contradictions(files, segment, log.log_start_offset),
            *_timestamp_contradictions(log, segment),
        ):
            self.violated(at_us, f"{where}: the segment of {base} is closed, and {wrong}")

    def end(self, history: History) -> None:
        for (node_id, directory), known in self.segments.logs.items():
            log = known.log
            for base in log.bases[:-1] if not log.is_offline else ():
                files, segment = _segment_of(log, base)
                if segment.whole == segment.size:
                    for wrong in (*index_contradictions(files, segment), *_timestamp_contradictions(log, segment)):
                        self.violated(history.end_us, f"{directory} on node {node_id}, at the end: {wrong}")


def _segment_of(log: UnifiedLog, base: int) -> tuple[dict[str, bytes], StoredSegment]:
    """Return a segment with the files beside it, and the file of leader epochs."""
    files = _files_of(log, *(f"{base:020}.{kind}" for kind in ("log", "index", "timeindex")), LEADER_EPOCHS)
    return files, segment_of(base, files.get(f"{base:020}.log", b""))


def _files_of(log: UnifiedLog, *names: str) -> dict[str, bytes]:
    """Return files of the log's folder. One that cannot be read is not there."""
    files: dict[str, bytes] = {}
    with WatchedDisk.unwatched():
        for name in names:
            path = f"{log.directory}/{name}"
            try:
                if log.disk.exists(path):
                    files[name] = log.disk.read(path, 0, log.disk.size(path))
            except OSError:
                continue
    return files


def _epoch_contradictions(files: Mapping[str, bytes], segment: StoredSegment, log_start: int) -> Iterator[str]:
    """An epoch begins where its first batch is, or at the end of the batch before (the cleaner may have removed the
    records between). The epoch in force at the segment's first batch may have started before. KIP-101: the epochs begin
    at the log's start, which may lie in the middle of the segment. So nothing is known of the batches below it."""
    rows = rows_of(files, LEADER_EPOCHS)
    if rows is None:
        return
    known = [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows)]
    starts = [start for _, start in known]
    before: BatchIdentity | None = None
    for batch, _, _ in segment.batches:
        if batch.base_offset < log_start:
            continue
        at = bisect_right(starts, batch.base_offset) - 1
        is_first = before is None or batch.epoch != before.epoch
        earliest = -1 if before is None else before.last_offset + 1
        in_force = known[at][0] if at >= 0 else -1
        if in_force != batch.epoch or (is_first and starts[at] < earliest):
            yield f"{LEADER_EPOCHS} has {known}, which does not fit {batch.named}"
            return
        before = batch


def _timestamp_contradictions(log: UnifiedLog, segment: StoredSegment) -> Iterator[str]:
    """Retention, rolls and lookups by time go by what the log knows of a segment's timestamps."""
    at = bisect_left(log.bases, segment.base)
    if segment.batches and at < len(log.bases) and log.bases[at] == segment.base:
        known, times = log.segments[at], [producing_of(batch.data).largest_ms for batch in segment.batches]
        wanted = max(times[0], -1), max(*times, -1), segment.size, segment.next_offset
        in_memory = known.first_timestamp_ms, known.max_timestamp_ms, known.size_bytes, known.next_offset
        if in_memory != wanted:
            yield f"its first and largest timestamp, its size and its end are taken for {in_memory}, and are {wanted}"


MOVES_LOG_START = 21
"""API key of the requests with which clients move a log start."""
RECENTLY_US = 10_000_000
"""Longest time of a pass of the cleaner, which goes by the settings at its begin."""


class SegmentsKept(SegmentCheck):
    """log-consistent: no segment is deleted by retention or cleaned before it is due.

    Retention deletes the oldest segments, as long as the log without them still has ``retention.bytes``, or while their
    largest timestamp is older than ``retention.ms``; of a log in the tier (KIP-405) ``local.retention.bytes`` and
    ``local.retention.ms`` count. Segments below a log start that came from the leader, a client, or retention in the
    tier are deleted in any case.

    A pass of the cleaner ends before the active segment, and skips each segment with a record younger than
    ``min.compaction.lag.ms``. It begins only if more than ``min.cleanable.dirty.ratio`` of the bytes are dirty, or a
    record is older than ``max.compaction.lag.ms``. The check uses the settings of the last seconds, and the dirty bytes
    at the end of the pass, which are more than at its start. The segments that a start of the node finds are unknown
    and not judged. Neither is a log that was truncated fully, to begin behind the remote tier or at its leader's log
    start.
    """

    guarantee = "log-consistent"
    acts_on: ClassVar[tuple[Kind, ...]] = (MOVES_LOG_START,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.segments.on_closed.append(self.closed)
        self.segments.on_followed.append(self.followed)
        self._requested: dict[tuple[int, str], int] = {}
        """by node and directory of a log: the greatest offset before which clients have requested to delete records"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        """KIP-107: offset -1 is the high watermark, which is not beyond the log's end. A request may be carried out in
        slices, so the log start moves in this event or in a later one."""
        if type(event) is not Request or event.api_key != MOVES_LOG_START:
            return
        topics: Any = getattr(event.body, "topics", ())  # None has none: the body of a version that is not supported.
        for topic in topics:
            for partition in topic.partitions:
                key = node.broker.node_id, f"{topic.name}-{int(partition.partition_index)}"
                known, offset = self.segments.logs.get(key), int(partition.offset)
                if offset < 0 and known is not None:
                    offset = known.log.log_end_offset
                self._requested[key] = max(offset, self._requested.get(key, 0))

    def closed(self, at_us: int, node: "Node", known: FollowedLog, base: int, end: int, is_same: bool) -> None:  # noqa: ARG002
        segment = known.log.segments[bisect_left(known.log.bases, base)]
        if is_same:
            known.closed[base] = ClosedSegment(segment.size_bytes, segment.first_timestamp_ms, segment.max_timestamp_ms)

    def followed(self, at_us: int, node: "Node", known: FollowedLog, is_same: bool) -> None:
        log, closed = known.log, known.closed
        first, active = log.segments.bases[0], known.active
        if not is_same:
            known.clean_bytes, known.cleaned_offset = -1, log.cleaned_offset
            known.settings.clear()
        if closed and next(reversed(closed)) >= active:
            for base in [each for each in closed if each >= active]:
                del closed[base]
        if closed and next(iter(closed)) < first:
            gone = [base for base in closed if base < first]
            # KIP-630: the metadata log is deleted up to a snapshot, whatever is younger than it or fits.
            is_judged = not log.config.is_compacted and not log.directory.startswith(METADATA_LOG)
            if is_same and is_judged and log.durability.last_cut == known.cuts:
                self._judge_retention(at_us, node, known, gone)
            for base in gone:
                del closed[base]
        known.cuts = log.durability.last_cut
        if log.config.is_compacted:
            config = log.config
            known.settings.append((at_us, config.min_compaction_lag_ms, config.min_cleanable_dirty_ratio))
            while len(known.settings) > 1 and known.settings[1][0] < at_us - RECENTLY_US:
                del known.settings[0]
            if log.cleaned_offset != known.cleaned_offset:
                if log.cleaned_offset > known.cleaned_offset:
                    self._judge_pass(at_us, node, known)
                clean = bisect_left(log.bases, log.cleaned_offset)
                known.clean_bytes = sum(segment.size_bytes for segment in log.segments[:clean])
                known.cleaned_offset = log.cleaned_offset

    def _judge_retention(self, at_us: int, node: "Node", known: FollowedLog, gone: Sequence[int]) -> None:
        log, closed, config = known.log, known.closed, known.log.config
        wall_ms = node.broker.now.wall_ms
        most_bytes, most_ms = config.effective_local_retention_bytes, config.effective_local_retention_ms
        spare_bytes = log.size_bytes + sum(closed[base].size_bytes for base in gone) - most_bytes
        start, index = log.log_start_offset, int(log.directory.rpartition("-")[2])
        requested = self._requested.get((node.broker.node_id, log.directory), 0)
        # The leader's log start, that of the remote tier, or one within a segment, which retention never chooses.
        is_followed = (log.topic_id, index) in node.broker.partitions.followed
        has_other_cause = is_followed or config.remote_storage_enable or start != log.bases[0]
        for base, end in zip(gone, [*gone[1:], log.bases[0]], strict=True):
            self.evidence += 1
            is_spare = most_bytes >= 0 and closed[base].size_bytes <= spare_bytes
            is_old = 0 <= most_ms < wall_ms - closed[base].largest_ms
            spare_bytes -= closed[base].size_bytes
            if end <= start and (has_other_cause or end <= requested):
                continue
            if not (is_spare or is_old):
                self.violated(
                    at_us,
                    f"{log.directory} on node {node.broker.node_id} has deleted its segment from {base} to {end} of "
                    f"{closed[base].size_bytes} bytes, when {spare_bytes + closed[base].size_bytes} were too many, and "
                    f"its newest record was {wall_ms - closed[base].largest_ms} ms old",
                )

    def _judge_pass(self, at_us: int, node: "Node", known: FollowedLog) -> None:
        log, wall_ms = known.log, node.broker.now.wall_ms
        where = f"{log.directory} on node {node.broker.node_id} was cleaned from {known.cleaned_offset} to "
        where += f"{log.cleaned_offset}"
        self.evidence += 1
        if log.cleaned_offset > log.bases[-1]:
            self.violated(at_us, f"{where}, and its active segment begins at {log.bases[-1]}")
        lag_ms = min(lag for _, lag, _ in known.settings)
        dirty = {base: each for base, each in known.closed.items() if base >= known.cleaned_offset}
        for base, each in dirty.items():
            if lag_ms > 0 and base < log.cleaned_offset and each.largest_ms > wall_ms - lag_ms:
                self.violated(
                    at_us,
                    f"{where}, and the segment of {base} has a record that is {wall_ms - each.largest_ms} ms old; "
                    f"min.compaction.lag.ms is {lag_ms}",
                )
        dirty_bytes, ratio = sum(each.size_bytes for each in dirty.values()), min(each for _, _, each in known.settings)
        longest_ms = log.config.max_compaction_lag_ms
        is_overdue = any(0 < each.first_ms < wall_ms - longest_ms for each in dirty.values())
        begins_dirty = known.cleaned_offset in dirty
        if known.clean_bytes >= 0 and begins_dirty and not is_overdue:
            total = known.clean_bytes + dirty_bytes
            if dirty_bytes <= ratio * total:
                self.violated(at_us, f"{where}, when {dirty_bytes} of {total} bytes were dirty; the ratio is {ratio}")


class RollSnapshotsReplayed(SegmentCheck):
    """producers-replayed: each roll leaves a snapshot with exactly the producers of a replay up to the new segment's
    first offset (P-2, P-10).

    P-4: a start deletes snapshots at or below the log start, as Kafka does, so none is required there. P-7: a producer
    that may have expired may be missing. P-12: a damaged file is rebuilt and never loaded. Physical: a disk with faults
    may have refused the snapshot, and a snapshot of many producers is written later. X-11: a cleaner deletes snapshots.
    """

    guarantee = "producers-replayed"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.segments.on_closed.append(self.closed)

    def closed(self, at_us: int, node: "Node", known: FollowedLog, base: int, end: int, is_same: bool) -> None:  # noqa: ARG002
        log, node_id = known.log, node.broker.node_id
        if log.directory.startswith(METADATA_LOG):
            return
        producers = self.context.producers.logs.get((node_id, log.directory))
        if producers is None or producers.log is not log or producers.read_end < end:
            return
        idle_ms = self.context.producers.idle_ms(node_id, log)
        states = _replayed(known, producers, end, idle_ms)
        name, where = f"{end:020}.snapshot", f"{log.directory} on node {node_id}"
        data = _files_of(log, name).get(name)
        if data is None:
            is_due = is_same and end > log.log_start_offset and not log.config.is_compacted
            is_due = is_due and log.segments.snapshots.unfinished is None
            if is_due and states and not self.context.replicas.fault_times.node_since(node_id, at_us):
                self.violated(at_us, f"{where} has rolled to {end} without {name}")
            return
        rows = snapshot_rows(data)
        if rows is None:
            return
        self.evidence += 1
        for producer_id in {**dict.fromkeys(states), **dict.fromkeys(rows)}:
            wrong = _difference(producers, producer_id, rows.get(producer_id), states.get(producer_id), idle_ms)
            if wrong:
                self.violated(at_us, f"{where}: {name}: producer {producer_id}: {wrong}")


def _replayed(known: FollowedLog, producers: LogProducers, end: int, idle_ms: int) -> Mapping[int, LoggedProducer]:
    """Return the producers of all known batches below ``end``."""
    batches = producers.batches
    if known.producers is producers and known.replayed and batches[known.replayed - 1].offset >= end:
        known.producers = None
    if known.producers is not producers or known.replay is None:
        known.producers, known.replayed = producers, 0
        known.replay = LogProducers(producers.log, producers.topic_id, producers.index)
    while known.replayed < len(batches) and batches[known.replayed].offset < end:
        known.replay.apply(batches[known.replayed], idle_ms)
        known.replayed += 1
    return known.replay.states


def _difference(
    producers: LogProducers, producer_id: int, row: ProducerRow | None, wanted: LoggedProducer | None, idle_ms: int
) -> str:
    """Return how a producer in a snapshot differs from its replay, or nothing if it may."""
    if wanted is None:
        return "" if producers.known_from else f"the file has {row}, and the log has no batch of it"
    last = wanted.batches[-1:]
    if row is None:
        if wanted.open_from < 0 and (wanted.timestamp_ms <= idle_ms or producer_id in producers.idle):
            return ""
        is_gone = last_offset_of(producers, producer_id) < producers.log.local_log_start_offset
        return "" if is_gone and wanted.open_from < 0 else f"it is missing, and a replay gives {wanted}"
    batches = (
        (
            last[0]._replace(
                last_sequence=row.last_sequence, offset=row.last_offset - row.offset_delta, last_offset=row.last_offset
            ),
        )
        if last and row.last_offset >= 0
        else ()
    )
    stored = LoggedProducer(row.epoch, batches, row.timestamp_ms, row.coordinator_epoch, row.begun)
    if stored == wanted._replace(batches=last) and (row.last_offset >= 0) == bool(last):
        return ""
    is_idle = producer_id in producers.idle
    if (producers.is_whole and not is_idle) or not may_differ(
        producers, is_idle, stored, wanted._replace(batches=last)
    ):
        return f"the file has {row}, and a replay gives {wanted}"
    return ""
