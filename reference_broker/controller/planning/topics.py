"""Topics are created, grow and are deleted (CreateTopics; CreatePartitions, KIP-195; DeleteTopics, KIP-516).

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
from reference_broker.controller.changes import (
    UNITS_PER_ENTRY,
    UNKNOWN_TOPIC,
    Change,
    Records,
    Refusal,
    Situation,
    outcomes_by_name,
)
from reference_broker.controller.planning.partition_changes import active_brokers, is_active, only_directories
from reference_broker.controller.planning.replica_placement import placement
from reference_broker.metadata.features import knows_directories
from reference_broker.metadata.identifiers import (
    METADATA_TOPIC,
    NO_DIRECTORY,
    REMOTE_LOG_METADATA_TOPIC,
    is_internal,
    name_problem,
    random_uuid,
)
from reference_broker.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicImage
from reference_broker.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's limit for the new partitions of all topics of a request (ReplicationControlManager, 4.1). 38 bytes could ask
for a million, which would keep the controller busy for a minute."""

Replicas: TypeAlias = Iterator[tuple[int, ...]]
"""Yields the brokers of each new partition."""


def too_many_partitions(partitions: int) -> Refusal | None:
    """Why one request may not make so many new partitions, or None if it may."""
    if partitions <= MAX_PARTITIONS_PER_REQUEST:
        return None
    return Refusal(
        ErrorCode.policy_violation,
        f"Excessively large number of partitions per request: {partitions}, at most {MAX_PARTITIONS_PER_REQUEST} are "
        "allowed.",
    )


def manual_problem(image: MetadataImage, brokers: tuple[int, ...], expected: int | None) -> Refusal | None:
    """What is wrong with the replicas of one partition. ``expected`` is the number of replicas of the other ones."""
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


def partition_records(
    topic_id: bytes, first_index: int, end_index: int, replicas: Replicas, image: MetadataImage
) -> Iterator[PartitionRecord]:
    """The records of new partitions. The live replicas of a partition are its ISR, and the first of them leads."""
    live = active_brokers(image)
    isrs: dict[tuple[int, ...], tuple[int, ...]] = {}
    homes = only_directories(image) if knows_directories(image) else {}
    directories: dict[tuple[int, ...], tuple[bytes, ...]] = {}
    for index, brokers in zip(range(first_index, end_index), replicas, strict=False):
        isr = isrs.get(brokers)
        if isr is None:
            isr = isrs[brokers] = tuple(broker for broker in brokers if broker in live)
            directories[brokers] = tuple(homes.get(broker, NO_DIRECTORY) for broker in brokers)
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=brokers,
            isr=brokers if isr == brokers else isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=directories[brokers],
        )


DEFAULT = -1
"""A partition count or replication factor of -1 stands for the controller's default."""

DUPLICATE_TOPIC = Refusal(ErrorCode.invalid_request, "Duplicate topic name.")


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
        """Yield the records in Kafka's order: topic, settings, partitions."""
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

    def plan(self, situation: Situation) -> Sliced[Records]:
        too_many = too_many_partitions(sum(_asked_partitions(situation.config, topic) for topic in self.wanted))
        if too_many is not None:
            self.found = dict.fromkeys((topic.name for topic in self.wanted), too_many)
            return ()
        planner = _Planner(situation)
        times = Counter(topic.name for topic in self.wanted)
        for name, topic in {topic.name: topic for topic in self.wanted}.items():
            self.found[name] = DUPLICATE_TOPIC if times[name] > 1 else planner.plan(topic)
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
        """Draw an ID that no topic has."""
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

    def plan(self, situation: Situation) -> Sliced[Records]:
        too_many = too_many_partitions(sum(_new_partitions(situation, growth) for growth in self.wanted))
        if too_many is not None:
            self.found = dict.fromkeys((growth.name for growth in self.wanted), too_many)
            return ()
        for growth in self.wanted:
            self.found[growth.name] = DUPLICATE_TOPIC if growth.name in self.found else _planned(situation, growth)
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


DUPLICATE_TOPIC_OR_ID = Refusal(ErrorCode.invalid_request, "Duplicate topic name or ID.")
DISABLED = Refusal(
    ErrorCode.topic_deletion_disabled, "This topic cannot be deleted because delete.topic.enable is set to false."
)


KEPT_FOR_THE_TIER = Refusal(
    ErrorCode.topic_deletion_disabled,
    f"{REMOTE_LOG_METADATA_TOPIC} says what is in the remote tier. It can be deleted only while "
    "remote.log.storage.system.enable is false.",
)


@dataclass(frozen=True, slots=True)
class NamedTopic:
    """A topic, named by its name or by its ID. The other one is None."""

    name: str | None
    topic_id: bytes | None


DeletionOutcomes: TypeAlias = Sequence[TopicImage | Refusal]
"""For each entry of the request the removed topic, or why it was not removed."""


@dataclass(slots=True)
class TopicDeletion(Change[DeletionOutcomes]):
    """All good topics of one request are deleted at once, or none."""

    name = "delete topics"

    named: Sequence[NamedTopic]
    found: list[TopicImage | Refusal] = field(default_factory=list)

    def plan(self, situation: Situation) -> Sliced[Records]:
        if not situation.config.delete_topic_enable:
            self.found += [DISABLED] * len(self.named)
            return ()
        for entry in self.named:
            self.found.append(_kept_for_the_tier(situation, _find(situation.latest, entry)))
            if situation.spend(1):
                yield
        self._refuse_duplicates()
        return [RemoveTopicRecord(topic_id=topic.topic_id) for topic in self.found if isinstance(topic, TopicImage)]

    def outcome(self, refused: Refusal | None) -> DeletionOutcomes:
        return self.found if refused is None else [refused] * len(self.named)

    def _refuse_duplicates(self) -> None:
        """A topic that is named twice, also once by its name and once by its ID, or a name or ID that no topic has."""
        keys = [_key(entry, topic) for entry, topic in zip(self.named, self.found, strict=True)]
        times = Counter(keys)
        self.found = [
            DUPLICATE_TOPIC_OR_ID if key is not None and times[key] > 1 else topic
            for key, topic in zip(keys, self.found, strict=True)
        ]


def _key(entry: NamedTopic, found: TopicImage | Refusal) -> bytes | str | None:
    """What stands for the topic that is meant; None for an entry that means none."""
    if isinstance(found, TopicImage):
        return found.topic_id
    return None if (entry.name is None) == (entry.topic_id is None) else entry.topic_id or entry.name


def _find(image: MetadataImage, entry: NamedTopic) -> TopicImage | Refusal:
    if entry.name is not None and entry.topic_id is not None:
        return Refusal(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if entry.topic_id is not None:
        topic = image.topic_by_id(entry.topic_id)
        return topic or Refusal(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    if entry.name is None:
        return Refusal(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    return image.topics.get(entry.name) or UNKNOWN_TOPIC


def _kept_for_the_tier(situation: Situation, found: TopicImage | Refusal) -> TopicImage | Refusal:
    """Unlike Kafka, where whatever is in the tier is lost with the topic."""
    is_needed = situation.config.remote_log_storage_system_enable
    if is_needed and isinstance(found, TopicImage) and found.name == REMOTE_LOG_METADATA_TOPIC:
        return KEPT_FOR_THE_TIER
    return found
