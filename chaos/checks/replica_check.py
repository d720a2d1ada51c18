"""Base of the checks that look at partitions with several replicas."""

from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.replica_view import Copy, Held, Replicated
from reference_broker.metadata.image import PartitionImage

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings


class ReplicaCheck(Check):
    """A check overrides the methods for what it wants to see."""

    def __init__(self, around: "Surroundings") -> None:
        super().__init__(around)
        self.replicas = around.replicas
        self.replicas.checks.append(self)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        """Called when a node's replica has changed. ``partition`` knows of it already."""

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        """Called when a node has published a state of the partition that is newer than all seen before."""
