"""More partitions for topics that exist (CreatePartitions, KIP-195)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import Change, Situation, outcomes_by_name
from reference_broker.controller.planning.new_partitions import (
    Replicas,
    manual_problem,
    partition_records,
    too_many_partitions,
)
from reference_broker.controller.planning.replica_placement import placement
from reference_broker.controller.refusal import UNKNOWN_TOPIC, Refusal
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.metadata.records import PartitionRecord
from reference_broker.metadata.topic_names import REMOTE_LOG_METADATA_TOPIC, is_internal
from reference_broker.wire.errors import ErrorCode

DUPLICATE = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")
FIXED = Refusal(
    ErrorCode.invalid_partitions,
    "This topic keeps its number of partitions. Where something is kept follows from its ID and that number, so "
    "with another number nobody would find what is there.",
)


@dataclass(frozen=True, slots=True)
class WantedGrowth:
    """``count`` is the number of partitions in the end. ``assignments`` holds the replicas of each new partition, or is
    None if the controller places them."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedGrowth:
    """New partitions of ``topic``, up to ``count``. ``records`` can be called once, because it uses up ``replicas``."""

    topic: TopicImage
    count: int
    replicas: Replicas

    def records(self, image: MetadataImage) -> Iterator[PartitionRecord]:
        return partition_records(self.topic.topic_id, len(self.topic.partitions), self.count, self.replicas, image)


GrowthOutcomes: TypeAlias = Mapping[str, PlannedGrowth | Refusal]
"""By name, in the order of the request."""


@dataclass(slots=True)
class PartitionGrowth(Change[GrowthOutcomes]):
    """All good topics of one request grow at once, or none."""

    name = "create partitions"

    wanted: Sequence[WantedGrowth]
    validate_only: bool
    found: dict[str, PlannedGrowth | Refusal] = field(default_factory=dict)

    def plan(self, situation: Situation) -> Planning:
        too_many = too_many_partitions(sum(_new_partitions(situation, growth) for growth in self.wanted))
        if too_many is not None:
            self.found = dict.fromkeys((growth.name for growth in self.wanted), too_many)
            return ()
        for growth in self.wanted:
            self.found[growth.name] = DUPLICATE if growth.name in self.found else _planned(situation, growth)
            if situation.spend(1 + len(growth.assignments or ())):
                yield
        good = [growth for growth in self.found.values() if isinstance(growth, PlannedGrowth)]
        return () if self.validate_only else chain.from_iterable(growth.records(situation.latest) for growth in good)

    def outcome(self, refused: Refusal | None) -> GrowthOutcomes:
        return outcomes_by_name(self.found, (growth.name for growth in self.wanted), refused)


def _new_partitions(situation: Situation, wanted: WantedGrowth) -> int:
    topic = situation.latest.topics.get(wanted.name)
    return 0 if topic is None else max(wanted.count - len(topic.partitions), 0)


def _planned(situation: Situation, wanted: WantedGrowth) -> PlannedGrowth | Refusal:
    topic = situation.latest.topics.get(wanted.name)
    if topic is None:
        return UNKNOWN_TOPIC
    current = len(topic.partitions)
    if is_internal(wanted.name) or wanted.name == REMOTE_LOG_METADATA_TOPIC:
        return FIXED
    if wanted.count == current:
        return Refusal(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
    if wanted.count < current:
        return Refusal(
            ErrorCode.invalid_partitions,
            f"The topic {wanted.name} currently has {current} partition(s); {wanted.count} would not be an increase.",
        )
    replicas = _replicas(situation, wanted, topic)
    return replicas if isinstance(replicas, Refusal) else PlannedGrowth(topic, wanted.count, replicas)


def _replicas(situation: Situation, wanted: WantedGrowth, topic: TopicImage) -> Replicas | Refusal:
    factor, additional = len(topic.partitions[0].replicas), wanted.count - len(topic.partitions)
    if wanted.assignments is None:
        return placement(situation.latest, factor, situation.for_placement, topic.partitions)
    if len(wanted.assignments) != additional:
        return Refusal(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    for brokers in wanted.assignments:
        problem = manual_problem(situation.latest, brokers, factor)
        if problem is not None:
            return problem
    return iter(wanted.assignments)
