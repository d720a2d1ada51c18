"""View of segments, which reports each when it is closed."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from chaos.checks.log.producer_view import LogProducers
from chaos.checks.replication.replica_view import ReplicaView
from reference_broker.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class ClosedSegment(NamedTuple):
    """The numbers that a log had of a segment when it was closed."""

    size_bytes: int
    first_ms: int
    largest_ms: int


@dataclass(slots=True)
class FollowedLog:
    """One log of a node, as last seen."""

    log: UnifiedLog
    active: int
    """base offset of its active segment"""
    intervals: dict[int, int] = field(default_factory=dict)
    """by base offset of a segment: the largest ``index.interval.bytes`` while it was active"""
    closed: dict[int, ClosedSegment] = field(default_factory=dict)
    """by base offset: the closed segments, as they were when they were closed"""
    cuts: int = 0
    """number of its last truncation"""
    cleaned_offset: int = 0
    clean_bytes: int = -1
    """size of the segments below ``cleaned_offset`` after the last pass of the cleaner, -1 if it is not known"""
    settings: list[tuple[int, int, float]] = field(default_factory=list)
    """when it was seen, ``min.compaction.lag.ms`` and ``min.cleanable.dirty.ratio``, oldest first"""
    producers: LogProducers | None = None
    """of which ``replay`` has the first ``replayed`` batches"""
    replay: LogProducers | None = None
    replayed: int = 0


class SegmentView:
    """The logs of all nodes, by node and directory, with their segments."""

    def __init__(self) -> None:
        self.logs: dict[tuple[int, str], FollowedLog] = {}
        self.on_closed: list[Callable[[int, Node, FollowedLog, int, int, bool], None]] = []
        """called when a segment was closed, with the time, the node, its log, the base offset, the end offset, and
        whether the process that closed it was seen with the log before"""
        self.on_followed: list[Callable[[int, Node, FollowedLog, bool], None]] = []
        """called with each log that an event changed, once its closed segments are reported. The last argument is that
        of ``on_closed``"""

    def follow(self, replicas: ReplicaView) -> None:
        """Follow the logs of the nodes from now on."""
        if self.logs_touched not in replicas.on_logs_touched:
            replicas.on_logs_touched.append(self.logs_touched)

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        """Report the segments that were closed since the last event that changed their logs."""
        node_id = node.broker.node_id
        for log in touched:
            bases = log.segments.bases
            if not bases or log.is_offline:
                continue
            key, active = (node_id, log.directory), bases[-1]
            known = self.logs.get(key)
            if known is None:
                known = self.logs[key] = FollowedLog(log, active)
            is_same, known.log = known.log is log, log
            interval = log.config.index_interval_bytes
            if active > known.active:
                at = bisect_left(bases, known.active)
                for base, end in zip(bases[at:-1], bases[at + 1 :], strict=True):
                    known.intervals[base] = max(interval, known.intervals.get(base, 0))
                    for closed in self.on_closed:
                        closed(at_us, node, known, base, end, is_same)
                known.intervals = {base: known.intervals[base] for base in bases if base in known.intervals}
            known.active = active
            if interval > known.intervals.get(active, -1):
                known.intervals[active] = interval
            for followed in self.on_followed:
                followed(at_us, node, known, is_same)
