"""stable-isr: a replica stays in sync while no fault touches it, the leader or the controller's view.

A follower that has nothing to fetch stays in sync, however long that lasts (F-22).
"""

from typing import Self

from chaos.checks.replica_check import PartitionImage, ReplicaCheck, Replicated, ReplicaView
from chaos.checks.surroundings import Surroundings


class StableIsr(ReplicaCheck):
    """``settled_us`` is the longest that a follower may lag, plus the time that a registration or election may take."""

    guarantee = "stable-isr"

    def __init__(self, view: ReplicaView, settled_us: int) -> None:
        super().__init__(view)
        self._settled_us = settled_us

    @classmethod
    def made(cls, around: Surroundings) -> Self:
        return cls(around.replicas, around.settings.in_sync_us)

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        trouble, since_us = self.replicas.trouble, at_us - self._settled_us
        for member in before.isr:
            if member in now.isr or any(trouble.node_since(node, since_us) for node in now.replicas):
                continue
            if any(trouble.touches_since(node, since_us) for node in (member, before.leader, now.leader)):
                continue
            self.violated(
                at_us,
                f"{partition.name}: replica {member} left the in-sync replicas {before.isr} of leader {before.leader}, "
                f"although no fault had touched it for {self._settled_us // 1000} ms",
            )
