"""The record that changes one partition's in-sync replicas and leader (Kafka's PartitionChangeBuilder).

The leader epoch grows with each record that names a leader: a change of leader, and below metadata.version 12
(3.6-IV0, KAFKA-15021) also a smaller ISR under the same leader. The partition epoch grows with every record.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.leader_election import Acceptable, Election, active_brokers, elect
from reference_broker.metadata.features import metadata_version
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import PartitionChangeRecord

RECOVERED, RECOVERING = 0, 1
"""LeaderRecoveryState (KIP-704): RECOVERING after an unclean election, until the new leader says otherwise."""

LEADER_CHANGE_NOT_NEEDED_FROM = 12
LEADER_RECOVERY_FROM = 3
"""metadata.version: 3.6-IV0 and 3.2-IV0."""

NO_LEADER_CHANGE = -2
NO_STATE_CHANGE = -1

UNCLEAN_KEY = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class PartitionChanges:
    """``acceptable`` says who may lead. ``version`` is the metadata.version."""

    acceptable: Acceptable
    version: int

    @staticmethod
    def of(image: MetadataImage, without: int = NO_LEADER, and_with: int = NO_LEADER) -> "PartitionChanges":
        """Judges by the brokers of ``image``, when ``without`` is about to leave or ``and_with`` to come."""
        return PartitionChanges(active_brokers(image, without, and_with).__contains__, metadata_version(image))

    def change(
        self,
        topic_id: bytes,
        index: int,
        partition: PartitionImage,
        *,
        isr: tuple[int, ...] | None = None,
        election: Election = Election.ONLINE,
        recovery_state: int | None = None,
    ) -> PartitionChangeRecord | None:
        """Returns None if nothing changes. ``isr`` is the new ISR, or None if it stays. An empty one keeps the last
        member in the ISR, and the partition has no leader."""
        target = partition.isr if isr is None else isr
        elected = elect(partition, target, self.acceptable, election)
        leader = NO_LEADER_CHANGE if elected.leader == partition.leader else elected.leader
        state = partition.leader_recovery_state if recovery_state is None else recovery_state
        if elected.unclean and leader != NO_LEADER_CHANGE:
            target = (leader,)
            if self.version >= LEADER_RECOVERY_FROM:
                state = RECOVERING
        new_isr = target if target and target != partition.isr else None
        if leader == NO_LEADER_CHANGE and new_isr is not None and self._bumps(partition.isr, new_isr):
            leader = partition.leader
        changed_state = NO_STATE_CHANGE if state == partition.leader_recovery_state else state
        if leader == NO_LEADER_CHANGE and new_isr is None and changed_state == NO_STATE_CHANGE:
            return None
        return PartitionChangeRecord(
            partition_id=index, topic_id=topic_id, isr=new_isr, leader=leader, leader_recovery_state=changed_state
        )

    def leaving(
        self, topic: TopicImage, indexes: range, election: Election, broker_id: int, *, single_stay: bool = False
    ) -> Iterator[PartitionChangeRecord]:
        """Takes a broker out of the ISR and the leadership of some partitions. With ``single_stay``, partitions without
        other replicas stay as they are."""
        topic_id = topic.topic_id
        for index in indexes:
            partition = topic.partitions[index]
            if broker_id in partition.isr and not (single_stay and len(partition.replicas) == 1):
                isr = tuple(replica for replica in partition.isr if replica != broker_id)
                record = self.change(topic_id, index, partition, isr=isr, election=election)
                if record is not None:
                    yield record

    def coming(
        self, topic: TopicImage, indexes: range, election: Election, broker_id: int
    ) -> Iterator[PartitionChangeRecord]:
        """Elects leaders for partitions without one, now that the broker is there. A partition without other replicas
        that the broker still leads begins a new leader epoch, because it may have lost records that were read."""
        topic_id = topic.topic_id
        for index in indexes:
            partition = topic.partitions[index]
            if partition.leader == NO_LEADER:
                record = self.change(topic_id, index, partition, election=election)
                if record is not None:
                    yield record
            elif partition.leader == broker_id:
                yield PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=broker_id)

    def _bumps(self, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return self.version < LEADER_CHANGE_NOT_NEEDED_FROM and any(replica not in after for replica in before)


def election_of(image: MetadataImage, config: BrokerConfig, topic: str) -> Election:
    """The election that is allowed when all in-sync replicas are gone, by the topic's setting or else the
    controller's."""
    own = image.topic_configs(topic).get(UNCLEAN_KEY)
    unclean = config.unclean_leader_election_enable if own is None else own.strip().lower() == "true"
    return Election.UNCLEAN if unclean else Election.ONLINE
