"""The files beside a segment's records, when the segment is closed and at the end of a run.

Whatever can be derived from the batches of a segment equals a replay of them. The bytes are read without the broker's
code. Sources: Kafka's LogSegment (an entry of the offset index for the first batch behind ``index.interval.bytes``; the
largest timestamp in the time index once a segment is closed), ProducerStateManager, LeaderEpochFileCache; KIP-98,
KIP-101.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.checks.batches import BatchIdentity, producing_of
from chaos.checks.check import Check, CheckContext
from chaos.checks.history import History
from chaos.checks.log_folders import (
    ProducerRow,
    StoredSegment,
    index_contradictions,
    index_gaps,
    rows_of,
    segment_of,
    snapshot_rows,
)
from chaos.checks.producer_view import METADATA_LOG, LoggedProducer, LogProducers
from chaos.checks.producers import last_offset_of, may_differ
from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node

LEADER_EPOCHS = "leader-epoch-checkpoint"


@dataclass(slots=True)
class _Followed:
    """One log of a node, as last seen."""

    log: PartitionLog
    active: int
    """base offset of its active segment"""
    intervals: dict[int, int] = field(default_factory=dict)
    """by base offset of a segment: the largest ``index.interval.bytes`` while it was active"""
    producers: LogProducers | None = None
    """of which ``replay`` has the first ``replayed`` batches"""
    replay: LogProducers | None = None
    replayed: int = 0


class _SegmentCheck(Check):
    """Base of checks that look at a segment once it is closed."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._logs: dict[tuple[int, str], _Followed] = {}
        context.replicas.of_logs.append(self)

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[PartitionLog], thorough: bool) -> None:  # noqa: ARG002
        """Judge the segments that were closed since the last event that touched their logs."""
        for log in touched:
            if log.is_offline or not log.bases:
                continue
            key, active = (node.broker.node_id, log.directory), log.bases[-1]
            known = self._logs.get(key)
            if known is None:
                known = self._logs[key] = _Followed(log, active)
            is_same, known.log = known.log is log, log
            interval = log.config.index_interval_bytes
            if active > known.active:
                at = bisect_left(log.bases, known.active)
                for base, end in zip(log.bases[at:-1], log.bases[at + 1 :], strict=True):
                    known.intervals[base] = max(interval, known.intervals.get(base, 0))
                    self._closed(at_us, node, known, base, end, is_same)
                known.intervals = {base: known.intervals[base] for base in log.bases if base in known.intervals}
            known.active = active
            known.intervals[active] = max(interval, known.intervals.get(active, 0))

    def _closed(self, at_us: int, node: "Node", known: _Followed, base: int, end: int, is_same: bool) -> None:
        """Judge the segment [base, end). ``is_same``: the process that closed it was seen with the log before."""


class SideFilesMatch(_SegmentCheck):
    """log-consistent: the indexes, the timestamps and the leader epochs of a closed segment are those of its batches.

    A start may have rebuilt indexes with another ``index.interval.bytes``, so gaps between entries are judged by the
    largest one that was in force. Physical: a file whose bits a fault has flipped, or that cannot be read, shows
    nothing. At the end the index files of all closed segments are judged again, as far as they exist: a start may have
    deleted them, and a cleaner made others.
    """

    guarantee = "log-consistent"

    def _closed(self, at_us: int, node: "Node", known: _Followed, base: int, end: int, is_same: bool) -> None:  # noqa: ARG002
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
        for (node_id, directory), known in self._logs.items():
            log = known.log
            for base in log.bases[:-1] if not log.is_offline else ():
                files, segment = _segment_of(log, base)
                if segment.whole == segment.size:
                    for wrong in (*index_contradictions(files, segment), *_timestamp_contradictions(log, segment)):
                        self.violated(history.end_us, f"{directory} on node {node_id}, at the end: {wrong}")


def _segment_of(log: PartitionLog, base: int) -> tuple[dict[str, bytes], StoredSegment]:
    """Return a segment with the files beside it, and the file of leader epochs."""
    files = _files_of(log, *(f"{base:020}.{kind}" for kind in ("log", "index", "timeindex")), LEADER_EPOCHS)
    return files, segment_of(base, files.get(f"{base:020}.log", b""))


def _files_of(log: PartitionLog, *names: str) -> dict[str, bytes]:
    """Return files of the log's folder. One that cannot be read is not there."""
    found: dict[str, bytes] = {}
    with WatchedDisk.unwatched():
        for name in names:
            path = f"{log.directory}/{name}"
            try:
                if log.disk.exists(path):
                    found[name] = log.disk.read(path, 0, log.disk.size(path))
            except OSError:
                continue
    return found


def _epoch_contradictions(files: Mapping[str, bytes], segment: StoredSegment, log_start: int) -> Iterator[str]:
    """An epoch begins where its first batch is, or at the end of the batch before (the cleaner may have removed the
    records between). The epoch in force at the segment's first batch may have begun before. KIP-101: the epochs begin
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


def _timestamp_contradictions(log: PartitionLog, segment: StoredSegment) -> Iterator[str]:
    """Retention, rolls and lookups by time go by what the log knows of a segment's timestamps."""
    at = bisect_left(log.bases, segment.base)
    if segment.batches and at < len(log.bases) and log.bases[at] == segment.base:
        known, times = log.segments[at], [producing_of(each.data).largest_ms for each in segment.batches]
        wanted = max(times[0], -1), max(*times, -1), segment.size, segment.next_offset
        found = known.first_timestamp_ms, known.max_timestamp_ms, known.size_bytes, known.next_offset
        if found != wanted:
            yield f"its first and largest timestamp, its size and its end are taken for {found}, and are {wanted}"


class RollSnapshotsReplayed(_SegmentCheck):
    """producers-replayed: each roll leaves a snapshot with exactly the producers of a replay up to the new segment's
    first offset (P-2, P-10).

    P-7: a producer that may have expired may be missing. P-12: a damaged file is rebuilt and never loaded. Physical: a
    disk with faults may have refused the snapshot, and that of many producers is written later. X-11: a cleaner deletes
    snapshots.
    """

    guarantee = "producers-replayed"

    def _closed(self, at_us: int, node: "Node", known: _Followed, base: int, end: int, is_same: bool) -> None:  # noqa: ARG002
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
            is_due = is_same and not log.config.is_compacted and log.segments.snapshots.unfinished is None
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


def _replayed(known: _Followed, producers: LogProducers, end: int, idle_ms: int) -> Mapping[int, LoggedProducer]:
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
    found = LoggedProducer(row.epoch, batches, row.timestamp_ms, row.coordinator_epoch, row.begun)
    if found == wanted._replace(batches=last) and (row.last_offset >= 0) == bool(last):
        return ""
    is_idle = producer_id in producers.idle
    if (producers.is_whole and not is_idle) or not may_differ(producers, is_idle, found, wanted._replace(batches=last)):
        return f"the file has {row}, and a replay gives {wanted}"
    return ""
