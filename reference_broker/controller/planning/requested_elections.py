"""Elections on request: preferred leaders, or unclean leaders for partitions without one (ElectLeaders, KIP-460).

Who asks for an unclean election accepts the loss, so that a replica in no directory is elected if no other can be.
The setting unclean.leader.election.enable does not do that, since a person may still bring back its records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import UNITS_PER_ENTRY, Change, Situation
from reference_broker.controller.planning.leader_election import Election
from reference_broker.controller.planning.partition_changes import NO_LEADER_CHANGE, PartitionChanges
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.image import NO_LEADER, MetadataImage, TopicImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from reference_broker.wire.errors import ErrorCode

NOT_NEEDED = Refusal(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
NO_PREFERRED = Refusal(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
NO_ELIGIBLE = Refusal(ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available.")

WantedPartitions: TypeAlias = Sequence[tuple[str, Sequence[int]]]
"""(topic, indexes of its partitions)."""
PartitionOutcome: TypeAlias = tuple[int, Refusal | None]
"""(index of a partition, why it got no new leader or None)."""
ElectionOutcomes: TypeAlias = Sequence[tuple[str, Sequence[PartitionOutcome]]]


@dataclass(slots=True)
class RequestedElections(Change[ElectionOutcomes | Refusal]):
    """``wanted`` is None for all partitions. Then those that need no election have no outcome."""

    name = "elect leaders"
    atomic = False

    election: Election
    wanted: WantedPartitions | None
    found: list[tuple[str, list[PartitionOutcome]]] = field(default_factory=list)

    def plan(self, situation: Situation) -> Planning:
        latest = situation.latest
        changes, records = PartitionChanges.of(latest), list[MetadataRecord]()
        for name, indexes in self._asked(latest):
            found: list[PartitionOutcome] = []
            self.found.append((name, found))
            for index in indexes:
                elected = _elect(changes, latest.topics.get(name), name, index, self.election)
                if isinstance(elected, PartitionChangeRecord):
                    records.append(elected)
                    found.append((index, None))
                elif self.wanted is not None or elected is not NOT_NEEDED:
                    found.append((index, elected))
                if situation.spend(UNITS_PER_ENTRY if elected is not NOT_NEEDED else 1):
                    yield
        return records

    def outcome(self, refused: Refusal | None) -> ElectionOutcomes | Refusal:
        return refused or self.found

    def _asked(self, latest: MetadataImage) -> Iterable[tuple[str, Sequence[int]]]:
        if self.wanted is not None:
            return self.wanted
        return [(topic.name, range(len(topic.partitions))) for topic in latest.topics.values()]


def _elect(
    changes: PartitionChanges, topic: TopicImage | None, name: str, index: int, election: Election
) -> PartitionChangeRecord | Refusal:
    if topic is None:
        return Refusal(ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return Refusal(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
    partition = topic.partitions[index]
    if election is Election.PREFERRED and partition.leader == partition.replicas[0]:
        return NOT_NEEDED
    if election is Election.UNCLEAN and partition.leader != NO_LEADER:
        return NOT_NEEDED
    wanted = Election.GIVING_UP if election is Election.UNCLEAN else election
    record = changes.change(topic, index, election=wanted)
    if record is None or record.leader == NO_LEADER_CHANGE:
        return NO_PREFERRED if election is Election.PREFERRED else NO_ELIGIBLE
    return record
