"""tombstones-marked: each tombstone at or above a log's marker is there, and no follower's marker overtakes its
leader's (H-1, H-2).

A tombstone also counts as there if a newer record of its key is committed, and the log holds that or has not reached
it, since a reader comes to that record. It is judged where replicas heed markers: after each pass of a cleaner, when a
replica begins to lead, and at the end.

H-2: a replica that led before may have removed more than the leader that it follows now. So a follower's marker is
judged when it moves, by what leaders have had since it began to follow. After a restart it may have to take more
tombstones for gone than are (its file may be lost).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.checks.compacted import Compacted
from chaos.checks.left_of_keys import left_of_keys
from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Copy, Held, PartitionKey, Replicated

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings
    from reference_broker.core.node import Node


@dataclass(slots=True)
class _Seen:
    """A replica as last seen. ``furthest`` is the largest marker that another replica has had as a leader since this
    process of the node began or last led. Nobody can have told it more."""

    incarnation: int
    marker: int
    furthest: int


class TombstonesMarked(ReplicaCheck):
    guarantee = "tombstones-marked"

    def __init__(self, around: "Surroundings") -> None:
        super().__init__(around)
        self._seen: dict[PartitionKey, dict[int, _Seen]] = {}
        """by partition and node"""

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        is_due = now.leader_epoch > before.leader_epoch or now.cleaned_offset != before.cleaned_offset
        if self.around.settings.tombstone_horizon and is_due:
            self._judge(at_us, partition, copy)

    def viewed(self, at_us: int, node: "Node") -> None:
        if not self.around.settings.tombstone_horizon:
            return
        node_id = node.broker.node_id
        for key, partition in self.replicas.partitions.items():
            copy = partition.copies.get(node_id)
            if partition.compacted is None or copy is None or copy.log is None:
                continue
            marker, seen = copy.log.horizon.offset, self._seen.setdefault(key, {})
            if copy.leads:
                for other in seen.values():
                    other.furthest = max(other.furthest, marker)
            last = seen.get(node_id)
            if last is None or copy.leads or last.incarnation != copy.held.incarnation:
                seen[node_id] = _Seen(copy.held.incarnation, marker, _furthest_led(partition, node_id))
                continue
            if marker > max(last.marker, last.furthest):
                self.violated(
                    at_us,
                    f"{partition.name}: node {node_id} follows and moves its marker from {last.marker} to {marker}; no "
                    f"leader's since was beyond {last.furthest}",
                )
            last.marker = marker

    def quiet(self, at_us: int) -> None:
        if self.around.settings.tombstone_horizon:
            for partition in self.replicas.partitions.values():
                for copy in partition.copies.values():
                    self._judge(at_us, partition, copy)

    def _judge(self, at_us: int, partition: Replicated, copy: Copy) -> None:
        compacted, log = partition.compacted, copy.log
        if compacted is None or log is None or partition.excused or partition.losses:
            return  # E-7: what was committed before a loss is not known any more.
        self.looked_at += 1
        held, marker = left_of_keys(log, copy.held.high_watermark), log.horizon.offset
        end = copy.held.high_watermark
        for offset in compacted.between(max(marker, copy.held.start_offset), end):
            lacks_it = _is_tombstone(compacted, offset) and held.get(compacted.records[offset].key, -1) < offset
            if lacks_it and compacted.last_of_key(offset) < end:
                self.violated(
                    at_us,
                    f"{partition.name} on node {copy.node_id} lacks the tombstone at offset {offset}, and its marker "
                    f"is {marker}",
                )
                return


def _furthest_led(partition: Replicated, node_id: int) -> int:
    """The largest marker of the other replicas that lead, each in its own view."""
    others = (each for each in partition.copies.values() if each.leads and each.node_id != node_id)
    return max((each.log.horizon.offset for each in others if each.log is not None), default=0)


def _is_tombstone(compacted: Compacted, offset: int) -> bool:
    return compacted.records[offset].value is None and compacted.counts(offset)
