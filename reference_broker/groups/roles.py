"""The roles of this node's partitions, told to replication first and then to the group coordinator."""

from dataclasses import dataclass

from reference_broker.groups.coordinator import GroupCoordinator
from reference_broker.log.partition_log import PartitionLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.replication.partition_roles import PartitionRoles
from reference_broker.replication.partitions import Partition


@dataclass(frozen=True, slots=True)
class CoordinatedRoles:
    """Implements ``replication.partition_roles.PartitionRoles``.

    Replication comes first. What a coordinator writes needs a leader's state, and whoever waits for a record of a lost
    partition is told so before the groups of that partition are dropped.
    """

    replication: PartitionRoles
    groups: GroupCoordinator

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        self.replication.leads(partition, state)
        self.groups.leads(partition)

    def resigns(self, partition: Partition) -> None:
        self.replication.resigns(partition)
        self.groups.resigns(partition)

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: PartitionLog) -> None:
        self.replication.follows(topic, index, state, log)

    def rests(self, topic_id: bytes, index: int) -> None:
        self.replication.rests(topic_id, index)

    def reconfigured(self, partition: Partition) -> None:
        self.replication.reconfigured(partition)

    def forgets(self, log: PartitionLog) -> None:
        self.replication.forgets(log)
