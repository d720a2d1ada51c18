"""A leader changes the in-sync replicas of its partitions (AlterPartition, KIP-497, KIP-704, KIP-841, KIP-903)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import UNITS_PER_ENTRY, Change, Situation
from reference_broker.controller.planning.partition_changes import RECOVERED, RECOVERING, PartitionChanges
from reference_broker.controller.planning.registration import stale_epoch
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import MetadataRecord
from reference_broker.metadata.replay import changed_partition
from reference_broker.wire.errors import ErrorCode

NO_CHECK = -1
"""A broker epoch of -1 is not compared."""


@dataclass(frozen=True, slots=True)
class WantedIsr:
    """The ISR that a leader wants for one partition. ``isr`` holds (broker ID, broker epoch) for each replica.
    ``leader_epoch`` and ``partition_epoch`` are those that the leader knows."""

    index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovery_state: int


WantedIsrs: TypeAlias = Sequence[tuple[bytes | None, Sequence[WantedIsr]]]
"""(topic ID, the partitions of that topic)."""
IsrOutcomes: TypeAlias = Sequence[Sequence[PartitionImage | ErrorCode]]
"""For each partition of each topic in the request, its new state or why it was not changed."""


@dataclass(slots=True)
class IsrChange(Change[IsrOutcomes | Refusal]):
    """What the broker ``leader_id`` asks for in one request."""

    name = "alter partitions"
    atomic = False

    leader_id: int
    broker_epoch: int
    wanted: WantedIsrs
    stale: Refusal | None = None
    found: list[list[PartitionImage | ErrorCode]] = field(default_factory=list)

    def plan(self, situation: Situation) -> Planning:
        records: list[MetadataRecord] = []
        self.stale = stale_epoch(situation.latest, self.leader_id, self.broker_epoch)
        if self.stale is not None:
            return records
        changes = PartitionChanges.of(situation.latest)
        for topic_id, partitions in self.wanted:
            topic = None if topic_id is None else situation.latest.topic_by_id(topic_id)
            found: list[PartitionImage | ErrorCode] = []
            self.found.append(found)
            for wanted in partitions:
                found.append(self._change(situation.latest, changes, topic, wanted, records))
                if situation.spend(UNITS_PER_ENTRY):
                    yield
        return records

    def outcome(self, refused: Refusal | None) -> IsrOutcomes | Refusal:
        return refused or self.stale or self.found

    def _change(
        self,
        latest: MetadataImage,
        changes: PartitionChanges,
        topic: TopicImage | None,
        wanted: WantedIsr,
        records: list[MetadataRecord],
    ) -> PartitionImage | ErrorCode:
        """Returns the partition as it will be, and adds the record for that to ``records``."""
        if topic is None:
            return ErrorCode.unknown_topic_id
        if not 0 <= wanted.index < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        partition = topic.partitions[wanted.index]
        problem = self._stale_state(partition, wanted) or _bad_isr(latest, partition, wanted)
        if problem is not None:
            return problem
        isr = tuple(broker_id for broker_id, _ in wanted.isr)
        record = changes.change(topic, wanted.index, isr=isr, recovery_state=wanted.recovery_state)
        if record is None:
            return partition
        records.append(record)
        return changed_partition(partition, record)

    def _stale_state(self, partition: PartitionImage, wanted: WantedIsr) -> ErrorCode | None:
        """The error of a request that is older than the partition. If it is newer, this controller is no longer
        active."""
        if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
            return ErrorCode.not_controller
        if wanted.leader_epoch < partition.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if self.leader_id != partition.leader:
            return ErrorCode.invalid_request
        if wanted.partition_epoch < partition.partition_epoch:
            return ErrorCode.invalid_update_version
        return None


def _bad_isr(image: MetadataImage, partition: PartitionImage, wanted: WantedIsr) -> ErrorCode | None:
    isr, state = [broker_id for broker_id, _ in wanted.isr], wanted.recovery_state
    if not isr or len(dict.fromkeys(isr)) != len(isr) or any(replica not in partition.replicas for replica in isr):
        return ErrorCode.invalid_request
    if partition.leader not in isr or state not in (RECOVERED, RECOVERING):
        return ErrorCode.invalid_request
    if state == RECOVERING and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        return ErrorCode.invalid_request
    for broker_id, broker_epoch in wanted.isr:
        known = image.brokers.get(broker_id)
        if known is None or known.fenced or known.in_controlled_shutdown:
            return ErrorCode.ineligible_replica
        if broker_epoch not in (NO_CHECK, known.broker_epoch):
            return ErrorCode.ineligible_replica
    return None
