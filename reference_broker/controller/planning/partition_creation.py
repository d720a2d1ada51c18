"""CreatePartitions (KIP-195): plans further partitions of existing topics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.controller.planning.new_partitions import (
    DUPLICATE_TOPIC,
    Replicas,
    manual_problem,
    partition_records,
    too_many_partitions,
)
from reference_broker.controller.planning.replica_placement import placement
from reference_broker.controller.write_operations import (
    UNKNOWN_TOPIC,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
    outcomes_by_name,
)
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC, is_internal
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.metadata.records import PartitionRecord
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

FIXED = ApiError(
    ErrorCode.invalid_partitions,
    "The number of partitions of this topic is fixed: it determines the partition of each ID, so existing records "
    "would not be found.",
)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The partitions that a topic is to have."""

    name: str
    count: int
    """The number of partitions in the end."""
    assignments: tuple[tuple[int, ...], ...] | None = None
    """The replicas of each new partition, or None if the controller places them."""


@dataclass(frozen=True, slots=True)
class PlannedPartitions:
    """New partitions of a topic. ``records`` can be called once, because it uses up ``replicas``."""

    topic: TopicImage
    count: int
    """The number of partitions in the end."""
    replicas: Replicas

    def records(self, image: MetadataImage) -> Iterator[PartitionRecord]:
        return partition_records(self.topic.topic_id, len(self.topic.partitions), self.count, self.replicas, image)


PartitionOutcomes: TypeAlias = Mapping[str, PlannedPartitions | ApiError]
"""By name, in the order of the request."""


@dataclass(slots=True)
class PartitionCreation(ControllerWriteOperation[PartitionOutcomes]):
    """All good topics of one request grow at once, or none."""

    name = "create partitions"

    requested: Sequence[NewPartitions]
    validate_only: bool
    results: dict[str, PlannedPartitions | ApiError] = field(default_factory=dict)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        too_many = too_many_partitions(sum(_new_partitions(context, topic) for topic in self.requested))
        if too_many is not None:
            self.results = dict.fromkeys((topic.name for topic in self.requested), too_many)
            return ()
        for topic in self.requested:
            self.results[topic.name] = DUPLICATE_TOPIC if topic.name in self.results else _planned(context, topic)
            if context.spend(1 + len(topic.assignments or ())):
                yield
        good = [topic for topic in self.results.values() if isinstance(topic, PlannedPartitions)]
        return () if self.validate_only else chain.from_iterable(topic.records(context.latest) for topic in good)

    def outcome(self, refused: ApiError | None) -> PartitionOutcomes:
        return outcomes_by_name(self.results, (topic.name for topic in self.requested), refused)


def _new_partitions(context: PlanContext, requested: NewPartitions) -> int:
    topic = context.latest.topics.get(requested.name)
    return 0 if topic is None else max(requested.count - len(topic.partitions), 0)


def _planned(context: PlanContext, requested: NewPartitions) -> PlannedPartitions | ApiError:
    topic = context.latest.topics.get(requested.name)
    if topic is None:
        return UNKNOWN_TOPIC
    current = len(topic.partitions)
    if is_internal(requested.name) or requested.name == REMOTE_LOG_METADATA_TOPIC:
        return FIXED
    if requested.count == current:
        return ApiError(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
    if requested.count < current:
        return ApiError(
            ErrorCode.invalid_partitions,
            f"The topic {requested.name} currently has {current} partition(s); {requested.count} would not be an "
            "increase.",
        )
    replicas = _replicas(context, requested, topic)
    return replicas if isinstance(replicas, ApiError) else PlannedPartitions(topic, requested.count, replicas)


def _replicas(context: PlanContext, requested: NewPartitions, topic: TopicImage) -> Replicas | ApiError:
    factor, additional = len(topic.partitions[0].replicas), requested.count - len(topic.partitions)
    if requested.assignments is None:
        return placement(context.latest, factor, context.for_placement, topic.partitions)
    if len(requested.assignments) != additional:
        return ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {additional} additional partition(s), but only {len(requested.assignments)} "
            "assignment(s) were specified.",
        )
    for brokers in requested.assignments:
        problem = manual_problem(context.latest, brokers, factor)
        if problem is not None:
            return problem
    return iter(requested.assignments)
