"""stable-isr: a replica stays in sync while no fault touches it, its leader, or a link of theirs.

A follower that has nothing to fetch stays in sync, however long that lasts (F-22).
"""

from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Replicated
from reference_broker.metadata.image import PartitionImage


class StableIsr(ReplicaCheck):
    guarantee = "stable-isr"

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        trouble, in_sync_us = self.replicas.trouble, self.around.settings.in_sync_us
        since_us = at_us - in_sync_us
        for member in before.isr:
            # Physical: who was dead, paused or cut off could not fetch, serve or be heard (F-22).
            judged = (member, before.leader, now.leader)
            if member in now.isr or any(trouble.touches_since(node, since_us) for node in judged):
                continue
            self.violated(
                at_us,
                f"{partition.name}: replica {member} left the in-sync replicas {before.isr} of leader {before.leader}, "
                f"although no fault had touched it for {in_sync_us // 1000} ms",
            )
