from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.events import Event
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class ClosedSegmentsStored(Check):
    """closed-segments-stored: after the heal each closed segment that may be copied is in the remote tier (P-8, P-14),
    and what is there is deleted locally.

    KIP-405: a segment may be copied if it is not the active one, and lies wholly below the last stable offset and the
    high watermark. What snapshots of producers its log has does not matter (P-14). The oldest segments whose copies are
    listed are deleted while the local log is larger than ``local.retention.bytes`` by at least one of them.

    ``World`` asks ``reached`` after the heal, and calls ``overdue`` if the time is over before that.
    """

    guarantee = "closed-segments-stored"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._nodes: dict[int, Node] = {}

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        self._nodes[node.broker.node_id] = node

    def reached(self) -> bool:
        return next(self._missing(), None) is None

    def overdue(self, at_us: int, after_us: int) -> None:
        for node_id, partition, base, end, what in self._missing():
            self.violated(
                at_us,
                f"{partition.log.directory} from {base} to {end} on leader {node_id} is {what} "
                f"{after_us // 1_000_000} s after all was healed",
            )

    def _missing(self) -> Iterator[tuple[int, Partition, int, int, str]]:
        """Yields the leader, the first and next offset of a segment, and how it is not as it is due."""
        for node_id, node in self._nodes.items():
            remote_log = node.broker.remote_log
            if remote_log is None:
                continue
            for partition in node.broker.partitions.by_name.values():
                log = partition.log
                if not log.config.is_copied:
                    continue
                known = remote_log.metadata.of(partition.topic_id, partition.index)
                listed = [(each.start_offset, each.end_offset + 1) for each in known.listed()]
                stable_end = min(log.high_watermark, log.last_stable_offset)
                kept = log.config.local_retention_bytes
                excess = sum(each.size_bytes for each in log.segments) - kept if kept >= 0 else -1
                for segment, (base, end) in zip(log.segments, pairwise(log.bases), strict=False):
                    self.looked_at += 1
                    excess -= segment.size_bytes
                    if end <= stable_end and not _covers(listed, max(base, log.log_start_offset), end):
                        yield node_id, partition, base, end, "not in the tier"
                    elif end <= stable_end and excess >= 0:
                        yield node_id, partition, base, end, "still beside its copy, beyond local.retention.bytes,"


def _covers(listed: list[tuple[int, int]], offset: int, end: int) -> bool:
    for first, after in sorted(listed):
        if first <= offset < after:
            offset = after
    return offset >= end
