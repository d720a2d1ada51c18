"""Offsets outside the cluster, each with the metadata epoch under which it was read (spec M-13).

The store stands for a database to which a consumer writes its results together with its offset. It refuses what an
owner of an earlier generation still brings, as a database would with a condition on its update.
"""

from dataclasses import dataclass, field

from bench.fleet.behaviours.protocol import TopicPartition
from reference_broker.client.offset_requests import CommittedOffset, OffsetToCommit


@dataclass(slots=True)
class OutsideStore:
    """The offsets of one group. ``generations`` holds the generation in which each partition was last stored."""

    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    generations: dict[TopicPartition, int] = field(default_factory=dict)

    def store(self, where: TopicPartition, offset: OffsetToCommit, generation: int) -> bool:
        """Stores an offset. Returns False if a later owner has stored one already."""
        if generation < self.generations.get(where, generation):
            return False
        self.offsets[where] = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata_epoch)
        self.generations[where] = generation
        return True

    def load(self, where: TopicPartition) -> CommittedOffset:
        """Returns the stored offset, which is -1 if nothing is stored."""
        return self.offsets.get(where, CommittedOffset(-1))
