"""isr-honest: each in-sync replica holds all that is committed.

The check looks when the newest leader's high watermark moves, and when the metadata adds a replica to the in-sync ones.
"""

from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Copy, Held, Replicated
from reference_broker.metadata.image import PartitionImage


class IsrHonest(ReplicaCheck):
    guarantee = "isr-honest"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        moved = now.high_watermark > before.high_watermark and before.incarnation == now.incarnation
        if moved and now.leader_epoch == partition.state.leader_epoch:
            for member in partition.state.isr:
                what = f"the high watermark of leader {copy.node_id}"
                self._holds(at_us, partition, member, now.high_watermark, what)

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        for member in now.isr:
            if member not in before.isr:
                self._holds(at_us, partition, member, partition.committed_end, "committed when it joined")

    def _holds(self, at_us: int, partition: Replicated, member: int, offset: int, what: str) -> None:
        copy = partition.copies.get(member)
        if partition.excused or partition.ever_excused or member in partition.tainted or copy is None:
            return
        if copy.held.end_offset < offset:
            self.violated(
                at_us,
                f"{partition.name}: in-sync replica {member} ends at {copy.held.end_offset}, below {offset}, {what}",
            )
