from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.checks.batches import left_of_keys
from chaos.checks.compacted_log import Compacted
from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Copy, Held, PartitionKey, Replicated
from reference_broker.metadata.image import NO_LEADER

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings
    from reference_broker.core.node import Node


@dataclass(slots=True)
class _Seen:
    """A replica as last seen. ``leader`` is the node that it follows. ``furthest`` is the largest marker of the
    leader since then. Nobody can have told the replica more."""

    incarnation: int
    marker: int
    leader: int
    furthest: int


class TombstonesMarked(ReplicaCheck):
    """tombstones-marked: each tombstone at or above a log's marker is there, and no follower's marker overtakes its
    leader's (H-1, H-2).

    A tombstone also counts as there if a newer record of its key is committed, and the log holds that or has not
    reached it, since a reader comes to that record. It is judged where replicas heed markers: after each pass of a
    cleaner, when a replica begins to lead, and at the end.

    H-2: after a change of leader a follower's marker may be beyond that of the leader that it follows now, since it led
    itself, or followed another one. Then it must stand still. So a follower's marker is judged when it moves, and only
    by what the leader that it follows has had: an earlier leader's marker is no measure, also not for a pass of the
    cleaner that began under it. After a restart it may have to take more tombstones for gone than are (its file may be
    lost).
    """

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
            last, leader = seen.get(node_id), _followed(node, key)
            if copy.leads:
                for other in seen.values():
                    if other.leader == node_id:
                        other.furthest = max(other.furthest, marker)
            if leader == NO_LEADER and last is not None:
                leader = last.leader  # The last one has told how far it may go.
            if last is None or copy.leads or last.incarnation != copy.held.incarnation:
                seen[node_id] = _Seen(copy.held.incarnation, marker, leader, _marker_of(partition, leader))
                continue
            if leader != last.leader:
                last.leader, last.furthest = leader, _marker_of(partition, leader)
            if marker > max(last.marker, last.furthest):
                self.violated(
                    at_us,
                    f"{partition.name}: node {node_id} follows {leader} and moves its marker from {last.marker} to "
                    f"{marker}; that leader's was never beyond {last.furthest}",
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


def _followed(node: "Node", key: PartitionKey) -> int:
    """The leader that the node follows by its own metadata, or NO_LEADER."""
    followed = node.broker.partitions.followed.get(key)
    leader = None if followed is None else followed.leader_elsewhere
    return NO_LEADER if leader is None else leader


def _marker_of(partition: Replicated, leader: int) -> int:
    """The leader's marker, or 0 if it does not lead in its own view."""
    copy = partition.copies.get(leader)
    return 0 if copy is None or copy.log is None or not copy.leads else copy.log.horizon.offset


def _is_tombstone(compacted: Compacted, offset: int) -> bool:
    return compacted.records[offset].value is None and compacted.counts(offset)
