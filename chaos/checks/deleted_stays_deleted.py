from typing import TYPE_CHECKING

from chaos.checks.batches import left_of_keys
from chaos.checks.compacted_log import Compacted
from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Copy, Held, Replicated

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class DeletedStaysDeleted(ReplicaCheck):
    """deleted-stays-deleted: no replica holds a record that a tombstone deleted, and neither that tombstone nor a newer
    record of the key (H-4 to H-6).

    A replica that was away while tombstones went would hold it for ever. It is judged where replicas heed their
    leader's marker: a follower begins anew before it takes what lies beyond a tombstone that it missed. So this holds
    at any time. It is looked at now and then, when a replica begins to lead, and at the end.

    X-11: a newer record that this replica has not reached may have superseded the tombstone where it copies.
    """

    guarantee = "deleted-stays-deleted"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if now.leader_epoch > before.leader_epoch:
            self._judge(at_us, partition, copy)

    def whole(self, at_us: int, incarnation: int, node: "Node") -> None:  # noqa: ARG002
        for partition in self.replicas.partitions.values():
            copy = partition.copies.get(node.broker.node_id)
            if copy is not None:
                self._judge(at_us, partition, copy)

    def quiet(self, at_us: int) -> None:
        for partition in self.replicas.partitions.values():
            for copy in partition.copies.values():
                self._judge(at_us, partition, copy)

    def _judge(self, at_us: int, partition: Replicated, copy: Copy) -> None:
        compacted, log = partition.compacted, copy.log
        if not self.around.settings.tombstone_horizon or compacted is None or log is None:
            return
        if partition.excused or partition.losses:
            return  # E-7: what was committed before a loss is not known any more.
        self.looked_at += 1
        end = min(copy.held.high_watermark, partition.committed_end)
        newest = _newest_below(compacted, end)
        for key, offset in left_of_keys(log, end).items():
            tombstone = newest.get(key, -1)
            is_deleted = tombstone > offset and compacted.records[tombstone].value is None
            if is_deleted and compacted.counts(offset) and compacted.next_of_key(tombstone) is None:
                self.violated(
                    at_us,
                    f"{partition.name} on node {copy.node_id} holds key {key!r} at offset {offset}, which the "
                    f"tombstone at {tombstone} deleted",
                )
                return


def _newest_below(compacted: Compacted, end: int) -> dict[bytes | None, int]:
    return {compacted.records[each].key: each for each in compacted.between(0, end) if compacted.counts(each)}
