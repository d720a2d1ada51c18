"""Plans new topics and partitions: checks, replica placement, and the metadata records. Used by two APIs.

Planning is cheap (some 30 us a topic); records are made lazily, when the controller takes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from reference_broker.apis.broker import Broker
from reference_broker.apis.proposing import Refusal
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.setting import ConfigError
from reference_broker.configuration.topic_config import parse_topic_configs
from reference_broker.controller.planning.leader_election import active_brokers, is_active
from reference_broker.controller.planning.replica_placement import placement
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from reference_broker.metadata.topic_names import METADATA_TOPIC, name_problem
from reference_broker.metadata.uuids import NO_DIRECTORY

DEFAULT = -1
"""As partition count or replication factor: the broker's default."""

MAX_PARTITIONS_PER_TOPIC = 1_000_000
"""Of one topic: bounds what one entry of a request may make the controller hold (the sum is bounded by its records)."""

Replicas: TypeAlias = Iterator[tuple[int, ...]]
"""The brokers of one new partition after the other."""


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """``assignments``: replicas by partition index; None: place them."""

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str | None], ...] = ()
    assignments: tuple[tuple[int, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic that can be created. ``replicas`` is used up by ``records``."""

    name: str
    topic_id: bytes
    configs: Mapping[str, str]
    partitions: int
    replication_factor: int
    replicas: Replicas
    image: MetadataImage

    def records(self) -> Iterator[MetadataRecord]:
        """In Kafka's order: topic, configs, partitions."""
        yield TopicRecord(name=self.name, topic_id=self.topic_id)
        for key, value in self.configs.items():
            yield ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=self.name, name=key, value=value)
        yield from partition_records(self.topic_id, 0, self.partitions, self.replicas, self.image)


@dataclass(slots=True)
class TopicPlanner:
    """Judges the topics of one request by the controller's latest metadata, and by each other.

    ``unified``: names with '.' or '_', by what they become in metric names, where two must not be the same.
    """

    broker: Broker
    latest: MetadataImage
    published: MetadataImage
    unified: dict[str, str] | None = None

    @staticmethod
    def of(broker: Broker) -> "TopicPlanner":
        return TopicPlanner(broker, broker.controller.latest, broker.controller.image)

    def plan(self, wanted: WantedTopic) -> PlannedTopic | Refusal:
        refusal = request_problem(self.broker.config, wanted) or self._name_refusal(wanted.name)
        if refusal is not None:
            return refusal
        configs = _checked_configs(wanted)
        if isinstance(configs, Refusal):
            return configs
        found = self._replicas(wanted)
        if isinstance(found, Refusal):
            return found
        partitions, factor, replicas = found
        topic_id = self.broker.controller.allocate_topic_id()
        if self.unified is not None and ("." in wanted.name or "_" in wanted.name):
            self.unified[_unified(wanted.name)] = wanted.name
        return PlannedTopic(wanted.name, topic_id, configs, partitions, factor, replicas, self.latest)

    def _name_refusal(self, name: str) -> Refusal | None:
        """A name whose removal is not published yet still exists: its directory still has the name, too."""
        if name in self.latest.topics or name in self.published.topics:
            return Refusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if "." not in name and "_" not in name:
            return None
        if self.unified is None:
            self.unified = {_unified(other): other for other in self.latest.topics if "." in other or "_" in other}
        other = self.unified.get(_unified(name))
        if other is not None:
            return Refusal(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")
        return None

    def _replicas(self, wanted: WantedTopic) -> tuple[int, int, Replicas] | Refusal:
        """How many partitions, how many replicas each, and which."""
        if wanted.assignments is not None:
            manual = _manual(self.latest, wanted)
            return manual if isinstance(manual, Refusal) else (len(manual), len(manual[0]), iter(manual))
        config = self.broker.config
        partitions = config.num_partitions if wanted.partitions == DEFAULT else wanted.partitions
        factor = factor_of(config, wanted.replication_factor)
        placed = placement(self.latest, factor, self.broker.random)
        return placed if isinstance(placed, Refusal) else (partitions, factor, placed)


def request_problem(config: BrokerConfig, wanted: WantedTopic) -> Refusal | None:
    """What is wrong with the wish, whatever the cluster holds."""
    problem = name_problem(wanted.name)
    if problem is not None:
        return Refusal(ErrorCode.invalid_topic_exception, problem)
    if wanted.name == METADATA_TOPIC:
        return Refusal(ErrorCode.topic_authorization_failed, f"Topic '{wanted.name}' is internal.")
    if wanted.assignments is not None:
        return None
    if factor_of(config, wanted.replication_factor) <= 0:
        return Refusal(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if wanted.partitions < DEFAULT or wanted.partitions == 0:
        return Refusal(ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value.")
    return too_many_partitions(wanted.partitions)


def factor_of(config: BrokerConfig, replication_factor: int) -> int:
    return config.default_replication_factor if replication_factor == DEFAULT else replication_factor


def too_many_partitions(partitions: int) -> Refusal | None:
    if partitions <= MAX_PARTITIONS_PER_TOPIC:
        return None
    return Refusal(
        ErrorCode.policy_violation,
        f"Unable to perform excessively large batch operation: {partitions} partitions, "
        f"at most {MAX_PARTITIONS_PER_TOPIC} are allowed.",
    )


def partition_records(
    topic_id: bytes, first_index: int, end_index: int, replicas: Replicas, image: MetadataImage
) -> Iterator[PartitionRecord]:
    """Records of new partitions; their ISR is the live part of their replicas."""
    live = active_brokers(image)
    isrs: dict[tuple[int, ...], tuple[int, ...]] = {}
    directories: dict[int, tuple[bytes, ...]] = {}
    for index, brokers in zip(range(first_index, end_index), replicas, strict=False):
        isr = isrs.get(brokers)
        if isr is None:
            isr = isrs[brokers] = tuple(broker for broker in brokers if broker in live)
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=brokers,
            isr=brokers if isr == brokers else isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=directories.setdefault(len(brokers), (NO_DIRECTORY,) * len(brokers)),
        )


def manual_problem(image: MetadataImage, brokers: tuple[int, ...], expected: int | None) -> Refusal | None:
    """What is wrong with the replicas of one partition; ``expected``: how many the others have."""
    problem = None
    if not brokers:
        problem = "The manual partition assignment includes an empty replica list."
    elif len(dict.fromkeys(brokers)) != len(brokers):
        problem = "The manual partition assignment includes a broker more than once."
    elif any(broker not in image.brokers for broker in brokers):
        missing = next(broker for broker in brokers if broker not in image.brokers)
        problem = f"The manual partition assignment includes broker {missing}, but no such broker is registered."
    elif expected is not None and len(brokers) != expected:
        problem = (
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
            f"consistent with previous partitions, which have {expected} replica(s)."
        )
    elif not any(is_active(image, broker) for broker in brokers):
        problem = "All brokers specified in the manual partition assignment are fenced or in controlled shutdown."
    return None if problem is None else Refusal(ErrorCode.invalid_replica_assignment, problem)


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _checked_configs(wanted: WantedTopic) -> Mapping[str, str] | Refusal:
    without = [key for key, value in wanted.configs if value is None]
    if without:
        return Refusal(ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(without)}")
    configs = {key: value for key, value in wanted.configs if value is not None}
    try:
        parse_topic_configs(configs)
    except ConfigError as error:
        return Refusal(ErrorCode.invalid_config, str(error))
    return configs


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
