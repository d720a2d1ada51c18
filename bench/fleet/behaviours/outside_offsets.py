"""Offsets kept outside the cluster, each with the metadata epoch under which it was read (spec M-13).

Stands for a database that a consumer writes its results to together with how far it came. What an owner of an earlier
generation still brings is refused, as such a database would by a condition on its update.
"""

from dataclasses import dataclass, field

from bench.fleet.behaviours.protocol import TopicPartition
from reference_broker.client.offset_requests import CommittedOffset, OffsetToCommit


@dataclass(slots=True)
class OutsideStore:
    """One group's. ``generations``: in which each partition was last stored."""

    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    generations: dict[TopicPartition, int] = field(default_factory=dict)

    def store(self, where: TopicPartition, offset: OffsetToCommit, generation: int) -> bool:
        """False: a later owner has stored something already."""
        if generation < self.generations.get(where, generation):
            return False
        self.offsets[where] = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata_epoch)
        self.generations[where] = generation
        return True

    def load(self, where: TopicPartition) -> CommittedOffset:
        """Offset -1: nothing is stored."""
        return self.offsets.get(where, CommittedOffset(-1))
