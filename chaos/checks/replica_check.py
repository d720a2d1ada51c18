"""Base of the checks that look at partitions with several replicas."""

from typing import TYPE_CHECKING, Self

from chaos.checks.check import Check
from chaos.checks.replica_view import Copy, Held, Replicated, ReplicaView
from reference_broker.metadata.image import PartitionImage

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings


class ReplicaCheck(Check):
    """Each overrides what it wants to see."""

    def __init__(self, view: ReplicaView) -> None:
        super().__init__()
        self.replicas = view
        view.join(self)

    @classmethod
    def made(cls, around: "Surroundings") -> Self:
        return cls(around.replicas)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        """Called when a node's replica has changed. ``partition`` knows of it already."""

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        """Called when a node has published a state of the partition that is newer than all seen before."""

    def quiet(self, at_us: int) -> None:
        """Called when the run is over: all faults are healed, and the nodes had their time."""


__all__ = ["Copy", "Held", "PartitionImage", "ReplicaCheck", "ReplicaView", "Replicated"]
