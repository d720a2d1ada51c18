"""Requests of leaders, brokers and operators for existing partitions.

- ``IsrChange``: a leader changes in-sync replicas (AlterPartition; KIP-497, KIP-704, KIP-841, KIP-903).
- ``RequestedElections``: preferred leaders, or unclean leaders for partitions without one (ElectLeaders, KIP-460). A
  request for an unclean election accepts the loss, so that a replica in no directory is elected if no other can be. The
  setting unclean.leader.election.enable does not do that, since a person may still bring back its records.
- ``DirectoryChange``: a broker reports the log directories of its replicas (AssignReplicasToDirs, KIP-858). This broker
  has one directory. It reports only replicas whose log is damaged, which are in no directory (DirectoryId.LOST), and
  those that are whole again. A replica in no directory is offline: it leaves the ISR, and it is not elected until it
  has joined an ISR again, or until its broker reports a directory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.planning.brokers import stale_epoch
from reference_broker.controller.planning.partition_changes import (
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    Election,
    PartitionChangeBuilder,
    election_of,
)
from reference_broker.controller.write_operations import (
    UNITS_PER_ENTRY,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
)
from reference_broker.metadata.delta import changed_partition
from reference_broker.metadata.features import knows_directories
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

NO_CHECK = -1
"""A broker epoch of -1 is not compared."""


@dataclass(frozen=True, slots=True)
class RequestedIsr:
    """The ISR that a leader requests for one partition."""

    index: int
    leader_epoch: int
    """The leader epoch that the leader knows, as is ``partition_epoch``."""
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker ID, broker epoch) of each replica."""
    recovery_state: int


RequestedIsrs: TypeAlias = Sequence[tuple[bytes | None, Sequence[RequestedIsr]]]
"""(topic ID, the partitions of that topic)."""
IsrOutcomes: TypeAlias = Sequence[Sequence[PartitionImage | ErrorCode]]
"""For each partition of each topic in the request, its new state or why it was not changed."""


@dataclass(slots=True)
class IsrChange(ControllerWriteOperation[IsrOutcomes | ApiError]):
    """The in-sync replicas that the broker ``leader_id`` requests at once."""

    name = "alter partitions"
    atomic = False

    leader_id: int
    broker_epoch: int
    requested: RequestedIsrs
    stale: ApiError | None = None
    results: list[list[PartitionImage | ErrorCode]] = field(default_factory=list)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        records: list[MetadataRecord] = []
        self.stale = stale_epoch(context.latest, self.leader_id, self.broker_epoch)
        if self.stale is not None:
            return records
        changes = PartitionChangeBuilder.of(context.latest)
        for topic_id, partitions in self.requested:
            topic = None if topic_id is None else context.latest.topic_by_id(topic_id)
            of_topic: list[PartitionImage | ErrorCode] = []
            self.results.append(of_topic)
            for requested in partitions:
                of_topic.append(self._change(context.latest, changes, topic, requested, records))
                if context.spend(UNITS_PER_ENTRY):
                    yield
        return records

    def outcome(self, refused: ApiError | None) -> IsrOutcomes | ApiError:
        return refused or self.stale or self.results

    def _change(
        self,
        latest: MetadataImage,
        changes: PartitionChangeBuilder,
        topic: TopicImage | None,
        requested: RequestedIsr,
        records: list[MetadataRecord],
    ) -> PartitionImage | ErrorCode:
        """Return the partition as it will be, and add the record for that to ``records``."""
        if topic is None:
            return ErrorCode.unknown_topic_id
        if not 0 <= requested.index < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        partition = topic.partitions[requested.index]
        problem = self._stale_state(partition, requested) or _bad_isr(latest, partition, requested)
        if problem is not None:
            return problem
        isr = tuple(broker_id for broker_id, _ in requested.isr)
        record = changes.change(topic, requested.index, isr=isr, recovery_state=requested.recovery_state)
        if record is None:
            return partition
        records.append(record)
        return changed_partition(partition, record)

    def _stale_state(self, partition: PartitionImage, requested: RequestedIsr) -> ErrorCode | None:
        """Return the error of a request that is older than the partition, or newer, which means that this controller is
        no longer active."""
        # Decision isr-change-ahead
        if requested.leader_epoch > partition.leader_epoch or requested.partition_epoch > partition.partition_epoch:
            return ErrorCode.not_controller
        if requested.leader_epoch < partition.leader_epoch:  # Decision isr-change-fenced
            return ErrorCode.fenced_leader_epoch
        if self.leader_id != partition.leader:
            return ErrorCode.invalid_request
        if requested.partition_epoch < partition.partition_epoch:  # Decision isr-change-stale
            return ErrorCode.invalid_update_version
        return None


def _bad_isr(image: MetadataImage, partition: PartitionImage, requested: RequestedIsr) -> ErrorCode | None:
    isr, state = [broker_id for broker_id, _ in requested.isr], requested.recovery_state
    if not isr or len(dict.fromkeys(isr)) != len(isr) or any(replica not in partition.replicas for replica in isr):
        return ErrorCode.invalid_request
    if partition.leader not in isr or state not in (RECOVERED, RECOVERING):
        return ErrorCode.invalid_request
    if state == RECOVERING and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        return ErrorCode.invalid_request
    for broker_id, broker_epoch in requested.isr:
        broker = image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:  # Decision isr-member-eligible
            return ErrorCode.ineligible_replica
        if broker_epoch not in (NO_CHECK, broker.broker_epoch):  # Decision isr-member-epoch
            return ErrorCode.ineligible_replica
    return None


NOT_NEEDED = ApiError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
NO_PREFERRED = ApiError(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
NO_ELIGIBLE = ApiError(ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available.")

RequestedPartitions: TypeAlias = Sequence[tuple[str, Sequence[int]]]
"""(topic, indexes of its partitions)."""
PartitionOutcome: TypeAlias = tuple[int, ApiError | None]
"""(index of a partition, why it got no new leader or None)."""
ElectionOutcomes: TypeAlias = Sequence[tuple[str, Sequence[PartitionOutcome]]]


@dataclass(slots=True)
class RequestedElections(ControllerWriteOperation[ElectionOutcomes | ApiError]):
    """ElectLeaders: elections of preferred leaders, or unclean ones."""

    name = "elect leaders"
    atomic = False

    election: Election
    requested: RequestedPartitions | None
    """None for all partitions. Partitions that need no election have no outcome then."""
    results: list[tuple[str, list[PartitionOutcome]]] = field(default_factory=list)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        latest = context.latest
        changes, records = PartitionChangeBuilder.of(latest), list[MetadataRecord]()
        for name, indexes in self._requested(latest):
            of_topic: list[PartitionOutcome] = []
            self.results.append((name, of_topic))
            for index in indexes:
                elected = _elect(changes, latest.topics.get(name), name, index, self.election)
                if isinstance(elected, PartitionChangeRecord):
                    records.append(elected)
                    of_topic.append((index, None))
                elif self.requested is not None or elected is not NOT_NEEDED:
                    of_topic.append((index, elected))
                if context.spend(UNITS_PER_ENTRY if elected is not NOT_NEEDED else 1):
                    yield
        return records

    def outcome(self, refused: ApiError | None) -> ElectionOutcomes | ApiError:
        return refused or self.results

    def _requested(self, latest: MetadataImage) -> Iterable[tuple[str, Sequence[int]]]:
        if self.requested is not None:
            return self.requested
        return [(topic.name, range(len(topic.partitions))) for topic in latest.topics.values()]


def _elect(
    changes: PartitionChangeBuilder, topic: TopicImage | None, name: str, index: int, election: Election
) -> PartitionChangeRecord | ApiError:
    if topic is None:
        return ApiError(ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return ApiError(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
    partition = topic.partitions[index]
    if election is Election.PREFERRED and partition.leader == partition.replicas[0]:
        return NOT_NEEDED
    if election is Election.UNCLEAN and partition.leader != NO_LEADER:
        return NOT_NEEDED
    requested = Election.UNCLEAN_WITHOUT_DIRECTORY if election is Election.UNCLEAN else election
    record = changes.change(topic, index, election=requested)
    if record is None or record.leader == NO_LEADER_CHANGE:
        return NO_PREFERRED if election is Election.PREFERRED else NO_ELIGIBLE
    return record


RequestedDirectories: TypeAlias = Sequence[tuple[bytes, bytes, Sequence[int]]]
"""(directory ID, topic ID, partition indexes)."""

_UNKNOWN_DIRECTORIES = ApiError(ErrorCode.unsupported_version, "Directory assignment is not supported yet.")


@dataclass(slots=True)
class DirectoryChange(ControllerWriteOperation[Sequence[Sequence[ErrorCode]] | ApiError]):
    """The outcome has one error code for each partition of ``requested``, in its order."""

    name = "assign replicas to directories"
    atomic = False

    broker_id: int
    broker_epoch: int
    requested: RequestedDirectories
    problem: ApiError | None = None
    results: list[list[ErrorCode]] = field(default_factory=list)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        records: list[MetadataRecord] = []
        latest = context.latest
        self.problem = stale_epoch(latest, self.broker_id, self.broker_epoch)
        if self.problem is None and not knows_directories(latest):
            self.problem = _UNKNOWN_DIRECTORIES
        if self.problem is not None:
            return records
        changes, online = PartitionChangeBuilder.of(latest), latest.brokers[self.broker_id].log_dirs
        for directory, topic_id, indexes in self.requested:
            topic = latest.topic_by_id(topic_id)
            election = Election.ONLINE if topic is None else election_of(latest, context.config, topic.name)
            of_topic: list[ErrorCode] = []
            self.results.append(of_topic)
            for index in indexes:
                problem = self._problem(topic, index)
                of_topic.append(problem or ErrorCode.none)
                if problem is None and topic is not None:
                    isr = topic.partitions[index].isr
                    if directory not in online:  # Decision replica-directory-online
                        isr = tuple(replica for replica in isr if replica != self.broker_id)
                    home = (self.broker_id, directory)
                    record = changes.change(topic, index, isr=isr, election=election, home=home)
                    records += () if record is None else (record,)
                if context.spend(UNITS_PER_ENTRY):
                    yield
        return records

    def outcome(self, refused: ApiError | None) -> Sequence[Sequence[ErrorCode]] | ApiError:
        return refused or self.problem or self.results

    def _problem(self, topic: TopicImage | None, index: int) -> ErrorCode | None:
        if topic is None:
            return ErrorCode.unknown_topic_id
        if not 0 <= index < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        if self.broker_id not in topic.partitions[index].replicas:
            return ErrorCode.not_leader_or_follower
        return None
