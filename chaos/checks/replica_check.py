"""Base of the checks that look at the partitions with several replicas."""

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
        """A node's replica is not what it was; ``partition`` knows of it already."""

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:
        """Some node has published this state of the partition, newer than all that were seen."""

    def quiet(self, at_us: int) -> None:
        """The run is over: all faults are healed, and the nodes had their time."""


__all__ = ["Copy", "Held", "PartitionImage", "ReplicaCheck", "ReplicaView", "Replicated"]
