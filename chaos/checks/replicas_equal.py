"""replicas-equal: below its high watermark each replica holds the very batches that were committed, byte for byte.

A new leader must hold all of them, whatever its own high watermark still is: what is committed never vanishes.
"""

from chaos.checks.replica_check import Copy, Held, ReplicaCheck, Replicated
from chaos.checks.replica_view import read_batches


class ReplicasEqual(ReplicaCheck):
    guarantee = "replicas-equal"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if partition.excused or (partition.ever_excused and not copy.leads):
            return
        another = now.leader_epoch > before.leader_epoch or now.incarnation != before.incarnation
        newly_leads = another and now.leader_epoch == partition.leader_epoch >= 0
        if newly_leads and now.end_offset < partition.committed_end:
            self.violated(
                at_us,
                f"{partition.name}: node {copy.node_id} leads in epoch {now.leader_epoch} with a log that ends at "
                f"{now.end_offset}, below {partition.committed_end}, which is committed",
            )
        self._compare(at_us, partition, copy, now, partition.committed_end if newly_leads else now.high_watermark)

    def quiet(self, at_us: int) -> None:
        """All that each replica holds, from its beginning."""
        for partition in self.replicas.partitions.values():
            for copy in partition.copies.values():
                if copy.log is not None and not partition.ever_excused:
                    copy.equal_to = 0
                    self._compare(at_us, partition, copy, copy.held, copy.held.high_watermark)

    def _compare(self, at_us: int, partition: Replicated, copy: Copy, now: Held, end: int) -> None:
        end = min(end, partition.committed_end, now.end_offset)
        begin = max(copy.equal_to, now.start_offset)
        if begin >= end or copy.log is None:
            return
        copy.equal_to = end
        for batch in read_batches(copy.log, begin, end):
            committed = partition.committed.get(batch.base_offset)
            if committed != batch:
                there = "no batch" if committed is None else committed.named
                self.violated(
                    at_us, f"{partition.name} on node {copy.node_id} has {batch.named} where {there} is committed"
                )
                return
