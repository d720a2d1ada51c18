"""CreateTopics: validates new topics, and plans their records (Kafka's ReplicationControlManager).

Planning a topic costs some 30 us. Its records are made lazily, when the controller takes them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.consistency import check_topic
from reference_broker.configuration.setting import ConfigError
from reference_broker.configuration.topic_config import normalised
from reference_broker.controller.planning.new_partitions import (
    DUPLICATE_TOPIC,
    Replicas,
    manual_problem,
    partition_records,
    too_many_partitions,
)
from reference_broker.controller.planning.replica_placement import placement
from reference_broker.controller.write_operations import (
    UNITS_PER_ENTRY,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
    outcomes_by_name,
)
from reference_broker.metadata.identifiers import METADATA_TOPIC, name_problem, random_uuid
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord, MetadataRecord, TopicRecord
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

DEFAULT = -1
"""A partition count or replication factor of -1 stands for the controller's default."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that a client requests."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: tuple[tuple[str, str | None], ...] = ()
    assignments: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    """(partition index, replicas), or None if the controller places the replicas."""


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic that can be created."""

    name: str
    topic_id: bytes
    configs: Mapping[str, str]
    partitions: int
    replication_factor: int
    replicas: Replicas
    """An iterator, which ``records`` uses up. So ``records`` can be called once."""
    image: MetadataImage

    def records(self) -> Iterator[MetadataRecord]:
        """Yield the records in Kafka's order: topic, settings, partitions."""
        yield TopicRecord(name=self.name, topic_id=self.topic_id)
        for key, value in self.configs.items():
            yield ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=self.name, name=key, value=value)
        yield from partition_records(self.topic_id, 0, self.partitions, self.replicas, self.image)


TopicOutcomes: TypeAlias = Mapping[str, PlannedTopic | ApiError]
"""By name, in the order of the request."""


@dataclass(slots=True)
class TopicCreation(ControllerWriteOperation[TopicOutcomes]):
    """All good topics of one request are created at once, or none."""

    name = "create topics"

    requested: Sequence[NewTopic]
    validate_only: bool
    results: dict[str, PlannedTopic | ApiError] = field(default_factory=dict)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        too_many = too_many_partitions(sum(_requested_partitions(context.config, topic) for topic in self.requested))
        if too_many is not None:
            self.results = dict.fromkeys((topic.name for topic in self.requested), too_many)
            return ()
        planner = _Planner(context)
        times = Counter(topic.name for topic in self.requested)
        for name, topic in {topic.name: topic for topic in self.requested}.items():
            self.results[name] = DUPLICATE_TOPIC if times[name] > 1 else planner.plan(topic)
            if context.spend(UNITS_PER_ENTRY):
                yield
        good = [topic for topic in self.results.values() if isinstance(topic, PlannedTopic)]
        return () if self.validate_only else chain.from_iterable(topic.records() for topic in good)

    def outcome(self, refused: ApiError | None) -> TopicOutcomes:
        return outcomes_by_name(self.results, (topic.name for topic in self.requested), refused)


@dataclass(slots=True)
class _Planner:
    """Judges the topics of one request by the latest metadata, and by each other."""

    context: PlanContext
    unified: dict[str, str] | None = None
    """The topics with '.' or '_' in their names, by the name in metrics, in which '.' is '_' and two topics must not be
    the same. None before the first use."""

    def plan(self, requested: NewTopic) -> PlannedTopic | ApiError:
        config = self.context.config
        refusal = _bad_name(requested.name) or self._name_refusal(requested.name) or _bad_numbers(config, requested)
        if refusal is not None:
            return refusal
        configs = _checked_configs(self.context.config, requested)
        if isinstance(configs, ApiError):
            return configs
        placed = self._replicas(requested)
        if isinstance(placed, ApiError):
            return placed
        partitions, factor, replicas = placed
        topic_id = self._new_topic_id()
        if self.unified is not None and ("." in requested.name or "_" in requested.name):
            self.unified[_unify_collision_chars(requested.name)] = requested.name
        return PlannedTopic(requested.name, topic_id, configs, partitions, factor, replicas, self.context.latest)

    def _new_topic_id(self) -> bytes:
        """Draw an ID that no topic has."""
        while True:
            topic_id = random_uuid(self.context.for_topic_ids)
            if topic_id not in self.context.latest.topic_names:
                return topic_id

    def _name_refusal(self, name: str) -> ApiError | None:
        """Return why there cannot be a topic of this name, or None. A topic whose removal is not published yet still
        exists, as does its directory."""
        latest = self.context.latest
        if name in latest.topics or name in self.context.published.topics:
            return ApiError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if "." not in name and "_" not in name:
            return None
        if self.unified is None:
            self.unified = {
                _unify_collision_chars(topic): topic for topic in latest.topics if "." in topic or "_" in topic
            }
        other = self.unified.get(_unify_collision_chars(name))
        if other is not None:
            return ApiError(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")
        return None

    def _replicas(self, requested: NewTopic) -> tuple[int, int, Replicas] | ApiError:
        """Return (number of partitions, replication factor, replicas of each partition)."""
        latest, config = self.context.latest, self.context.config
        if requested.assignments is not None:
            manual = _manual(latest, requested)
            return manual if isinstance(manual, ApiError) else (len(manual), len(manual[0]), iter(manual))
        partitions = config.num_partitions if requested.partitions == DEFAULT else requested.partitions
        factor = factor_of(config, requested.replication_factor)
        placed = placement(latest, factor, self.context.for_placement)
        return placed if isinstance(placed, ApiError) else (partitions, factor, placed)


def _requested_partitions(config: BrokerConfig, requested: NewTopic) -> int:
    """Return how many partitions the topic would have. An invalid number counts as none."""
    if requested.assignments is not None:
        return len(requested.assignments)
    return config.num_partitions if requested.partitions == DEFAULT else max(requested.partitions, 0)


def request_problem(config: BrokerConfig, requested: NewTopic) -> ApiError | None:
    """Return the error of the request itself, whatever the cluster holds."""
    return _bad_name(requested.name) or _bad_numbers(config, requested)


def _bad_name(name: str) -> ApiError | None:
    problem = name_problem(name)
    if problem is not None:
        return ApiError(ErrorCode.invalid_topic_exception, problem)
    if name == METADATA_TOPIC:
        return ApiError(ErrorCode.invalid_request, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    return None


def _bad_numbers(config: BrokerConfig, requested: NewTopic) -> ApiError | None:
    if requested.assignments is not None:
        return None
    if factor_of(config, requested.replication_factor) <= 0:
        return ApiError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if requested.partitions < DEFAULT or requested.partitions == 0:
        return ApiError(ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value.")
    return None


def factor_of(config: BrokerConfig, replication_factor: int) -> int:
    return config.default_replication_factor if replication_factor == DEFAULT else replication_factor


def _unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")


def _checked_configs(config: BrokerConfig, requested: NewTopic) -> Mapping[str, str] | ApiError:
    without = [key for key, value in requested.configs if value is None]
    if without:
        return ApiError(ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(without)}")
    given = {key: value for key, value in requested.configs if value is not None}
    try:
        configs = normalised(given)
        check_topic(config, {}, configs)
    except ConfigError as error:
        return ApiError(ErrorCode.invalid_config, str(error))
    return configs


def _manual(image: MetadataImage, requested: NewTopic) -> list[tuple[int, ...]] | ApiError:
    assert requested.assignments is not None, "only called with a manual assignment"
    if requested.replication_factor != DEFAULT:
        return ApiError(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if requested.partitions != DEFAULT:
        return ApiError(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    replicas: dict[int, tuple[int, ...]] = {}
    expected: int | None = None
    for index, brokers in requested.assignments:
        if index in replicas:
            return ApiError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        problem = manual_problem(image, brokers, expected)
        if problem is not None:
            return problem
        expected = len(brokers)
        replicas[index] = brokers
    if sorted(replicas) != list(range(len(replicas))):
        return ApiError(
            ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence"
        )
    return [replicas[index] for index in range(len(replicas))]
