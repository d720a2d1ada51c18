"""New topics: checks of names, settings and replicas, and the records (CreateTopics).

Planning a topic costs some 30 us. Its records are made lazily, when the controller takes them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.setting import ConfigError
from reference_broker.configuration.tiering import check_topic
from reference_broker.configuration.topic_config import normalised
from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import UNITS_PER_ENTRY, Change, Situation, outcomes_by_name
from reference_broker.controller.planning.new_partitions import (
    Replicas,
    manual_problem,
    partition_records,
    too_many_partitions,
)
from reference_broker.controller.planning.replica_placement import placement
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord, MetadataRecord, TopicRecord
from reference_broker.metadata.topic_names import METADATA_TOPIC, name_problem
from reference_broker.metadata.uuids import random_uuid
from reference_broker.wire.errors import ErrorCode

DEFAULT = -1
"""A partition count or replication factor of -1 stands for the controller's default."""

DUPLICATE = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """``assignments`` holds (partition index, replicas), or is None if the controller places the replicas."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: tuple[tuple[str, str | None], ...] = ()
    assignments: tuple[tuple[int, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic that can be created. ``records`` can be called once, because it uses up ``replicas``."""

    name: str
    topic_id: bytes
    configs: Mapping[str, str]
    partitions: int
    replication_factor: int
    replicas: Replicas
    image: MetadataImage

    def records(self) -> Iterator[MetadataRecord]:
        """Yields the records in Kafka's order: topic, settings, partitions."""
        yield TopicRecord(name=self.name, topic_id=self.topic_id)
        for key, value in self.configs.items():
            yield ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=self.name, name=key, value=value)
        yield from partition_records(self.topic_id, 0, self.partitions, self.replicas, self.image)


TopicOutcomes: TypeAlias = Mapping[str, PlannedTopic | Refusal]
"""By name, in the order of the request."""


@dataclass(slots=True)
class TopicCreation(Change[TopicOutcomes]):
    """All good topics of one request are created at once, or none."""

    name = "create topics"

    wanted: Sequence[WantedTopic]
    validate_only: bool
    found: dict[str, PlannedTopic | Refusal] = field(default_factory=dict)

    def plan(self, situation: Situation) -> Planning:
        too_many = too_many_partitions(sum(_asked_partitions(situation.config, topic) for topic in self.wanted))
        if too_many is not None:
            self.found = dict.fromkeys((topic.name for topic in self.wanted), too_many)
            return ()
        planner = _Planner(situation)
        times = Counter(topic.name for topic in self.wanted)
        for name, topic in {topic.name: topic for topic in self.wanted}.items():
            self.found[name] = DUPLICATE if times[name] > 1 else planner.plan(topic)
            if situation.spend(UNITS_PER_ENTRY):
                yield
        good = [topic for topic in self.found.values() if isinstance(topic, PlannedTopic)]
        return () if self.validate_only else chain.from_iterable(topic.records() for topic in good)

    def outcome(self, refused: Refusal | None) -> TopicOutcomes:
        return outcomes_by_name(self.found, (topic.name for topic in self.wanted), refused)


@dataclass(slots=True)
class _Planner:
    """Judges the topics of one request by the latest metadata, and by each other.

    ``unified`` holds the names with '.' or '_', by what they become in the names of metrics. Two topics must not become
    the same there.
    """

    situation: Situation
    unified: dict[str, str] | None = None

    def plan(self, wanted: WantedTopic) -> PlannedTopic | Refusal:
        config = self.situation.config
        refusal = _bad_name(wanted.name) or self._name_refusal(wanted.name) or _bad_numbers(config, wanted)
        if refusal is not None:
            return refusal
        configs = _checked_configs(self.situation.config, wanted)
        if isinstance(configs, Refusal):
            return configs
        found = self._replicas(wanted)
        if isinstance(found, Refusal):
            return found
        partitions, factor, replicas = found
        topic_id = self._new_topic_id()
        if self.unified is not None and ("." in wanted.name or "_" in wanted.name):
            self.unified[_unified(wanted.name)] = wanted.name
        return PlannedTopic(wanted.name, topic_id, configs, partitions, factor, replicas, self.situation.latest)

    def _new_topic_id(self) -> bytes:
        """Draws an ID that no topic has."""
        while True:
            topic_id = random_uuid(self.situation.for_topic_ids)
            if topic_id not in self.situation.latest.topic_names:
                return topic_id

    def _name_refusal(self, name: str) -> Refusal | None:
        """Why there cannot be a topic of this name. A topic whose removal is not published yet still exists, and so
        does its directory."""
        latest = self.situation.latest
        if name in latest.topics or name in self.situation.published.topics:
            return Refusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if "." not in name and "_" not in name:
            return None
        if self.unified is None:
            self.unified = {_unified(other): other for other in latest.topics if "." in other or "_" in other}
        other = self.unified.get(_unified(name))
        if other is not None:
            return Refusal(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")
        return None

    def _replicas(self, wanted: WantedTopic) -> tuple[int, int, Replicas] | Refusal:
        """(number of partitions, number of replicas of each, the replicas)."""
        latest, config = self.situation.latest, self.situation.config
        if wanted.assignments is not None:
            manual = _manual(latest, wanted)
            return manual if isinstance(manual, Refusal) else (len(manual), len(manual[0]), iter(manual))
        partitions = config.num_partitions if wanted.partitions == DEFAULT else wanted.partitions
        factor = factor_of(config, wanted.replication_factor)
        placed = placement(latest, factor, self.situation.for_placement)
        return placed if isinstance(placed, Refusal) else (partitions, factor, placed)


def _asked_partitions(config: BrokerConfig, wanted: WantedTopic) -> int:
    """How many partitions the topic would have. What is no number of partitions counts nothing."""
    if wanted.assignments is not None:
        return len(wanted.assignments)
    return config.num_partitions if wanted.partitions == DEFAULT else max(wanted.partitions, 0)


def request_problem(config: BrokerConfig, wanted: WantedTopic) -> Refusal | None:
    """What is wrong with the request itself, whatever the cluster holds."""
    return _bad_name(wanted.name) or _bad_numbers(config, wanted)


def _bad_name(name: str) -> Refusal | None:
    problem = name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.invalid_topic_exception, problem)
    if name == METADATA_TOPIC:
        return Refusal(ErrorCode.invalid_request, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    return None


def _bad_numbers(config: BrokerConfig, wanted: WantedTopic) -> Refusal | None:
    if wanted.assignments is not None:
        return None
    if factor_of(config, wanted.replication_factor) <= 0:
        return Refusal(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if wanted.partitions < DEFAULT or wanted.partitions == 0:
        return Refusal(ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value.")
    return None


def factor_of(config: BrokerConfig, replication_factor: int) -> int:
    return config.default_replication_factor if replication_factor == DEFAULT else replication_factor


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _checked_configs(config: BrokerConfig, wanted: WantedTopic) -> Mapping[str, str] | Refusal:
    without = [key for key, value in wanted.configs if value is None]
    if without:
        return Refusal(ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(without)}")
    configs = {key: value for key, value in wanted.configs if value is not None}
    try:
        found = normalised(configs)
        check_topic(config, {}, found)
    except ConfigError as error:
        return Refusal(ErrorCode.invalid_config, str(error))
    return found


def _manual(image: MetadataImage, wanted: WantedTopic) -> list[tuple[int, ...]] | Refusal:
    assert wanted.assignments is not None, "only called with a manual assignment"
    if wanted.replication_factor != DEFAULT:
        return Refusal(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if wanted.partitions != DEFAULT:
        return Refusal(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    replicas: dict[int, tuple[int, ...]] = {}
    expected: int | None = None
    for index, brokers in wanted.assignments:
        if index in replicas:
            return Refusal(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        problem = manual_problem(image, brokers, expected)
        if problem is not None:
            return problem
        expected = len(brokers)
        replicas[index] = brokers
    if sorted(replicas) != list(range(len(replicas))):
        return Refusal(
            ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence"
        )
    return [replicas[index] for index in range(len(replicas))]
