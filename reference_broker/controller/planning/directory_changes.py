"""A broker tells in which log directories its replicas are (AssignReplicasToDirs, KIP-858).

This broker has one directory. It tells only of replicas whose log is damaged, which are in no directory
(DirectoryId.LOST), and of those that are whole again. A replica in no directory is offline: it leaves the ISR, and it
is not elected until it has joined an ISR again, or until its broker tells of a directory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import UNITS_PER_ENTRY, Change, Situation
from reference_broker.controller.planning.leader_election import Election
from reference_broker.controller.planning.partition_changes import PartitionChanges, election_of
from reference_broker.controller.planning.registration import stale_epoch
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.features import knows_directories
from reference_broker.metadata.image import TopicImage
from reference_broker.metadata.records import MetadataRecord
from reference_broker.wire.errors import ErrorCode

WantedDirectories: TypeAlias = Sequence[tuple[bytes, bytes, Sequence[int]]]
"""(directory ID, topic ID, partition indexes)."""

_UNKNOWN_DIRECTORIES = Refusal(ErrorCode.unsupported_version, "Directory assignment is not supported yet.")


@dataclass(slots=True)
class DirectoryChange(Change[Sequence[Sequence[ErrorCode]] | Refusal]):
    """The outcome has one error code for each partition of ``wanted``, in its order."""

    name = "assign replicas to directories"
    atomic = False

    broker_id: int
    broker_epoch: int
    wanted: WantedDirectories
    problem: Refusal | None = None
    found: list[list[ErrorCode]] = field(default_factory=list)

    def plan(self, situation: Situation) -> Planning:
        records: list[MetadataRecord] = []
        latest = situation.latest
        self.problem = stale_epoch(latest, self.broker_id, self.broker_epoch)
        if self.problem is None and not knows_directories(latest):
            self.problem = _UNKNOWN_DIRECTORIES
        if self.problem is not None:
            return records
        changes, online = PartitionChanges.of(latest), latest.brokers[self.broker_id].log_dirs
        for directory, topic_id, indexes in self.wanted:
            topic = latest.topic_by_id(topic_id)
            election = Election.ONLINE if topic is None else election_of(latest, situation.config, topic.name)
            found: list[ErrorCode] = []
            self.found.append(found)
            for index in indexes:
                problem = self._problem(topic, index)
                found.append(problem or ErrorCode.none)
                if problem is None and topic is not None:
                    isr = topic.partitions[index].isr
                    if directory not in online:
                        isr = tuple(replica for replica in isr if replica != self.broker_id)
                    home = (self.broker_id, directory)
                    record = changes.change(topic, index, isr=isr, election=election, home=home)
                    records += () if record is None else (record,)
                if situation.spend(UNITS_PER_ENTRY):
                    yield
        return records

    def outcome(self, refused: Refusal | None) -> Sequence[Sequence[ErrorCode]] | Refusal:
        return refused or self.problem or self.found

    def _problem(self, topic: TopicImage | None, index: int) -> ErrorCode | None:
        if topic is None:
            return ErrorCode.unknown_topic_id
        if not 0 <= index < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        if self.broker_id not in topic.partitions[index].replicas:
            return ErrorCode.not_leader_or_follower
        return None
