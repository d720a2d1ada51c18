"""Plans new topics and partitions: checks, replica placement, and the metadata records. Used by three APIs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from reference_broker.apis.broker import Broker
from reference_broker.apis.proposing import Refusal
from reference_broker.apis.topic_names import METADATA_TOPIC, collision, name_problem
from reference_broker.model.config_key import ConfigError
from reference_broker.model.metadata_image import TOPIC_RESOURCE, MetadataImage
from reference_broker.model.topic_config import parse_topic_configs
from reference_broker.raft.controller import MAX_RECORDS_PER_OPERATION
from reference_broker.raft.metadata_records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from reference_broker.raft.uuids import NO_DIRECTORY

DEFAULT = -1
"""As partition count or replication factor: the broker's default."""


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
    """A topic that can be created. ``records`` in Kafka's order: topic, configs, partitions."""

    name: str
    topic_id: bytes
    configs: Mapping[str, str]
    replicas: tuple[tuple[int, ...], ...]
    records: tuple[MetadataRecord, ...]


def plan_topic(broker: Broker, wanted: WantedTopic) -> PlannedTopic | Refusal:
    """Judged by the latest metadata, also what is not durable yet."""
    controller = broker.controller
    refusal = _name_refusal(wanted.name, controller.image, controller.latest)
    if refusal is not None:
        return refusal
    configs = _checked_configs(wanted)
    if isinstance(configs, Refusal):
        return configs
    replicas = _replicas(broker, wanted)
    if isinstance(replicas, Refusal):
        return replicas
    topic_id = controller.allocate_topic_id()
    records: list[MetadataRecord] = [TopicRecord(name=wanted.name, topic_id=topic_id)]
    records += (
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=wanted.name, name=key, value=value)
        for key, value in configs.items()
    )
    records += partition_records(topic_id, 0, replicas, controller.latest)
    return PlannedTopic(wanted.name, topic_id, configs, replicas, tuple(records))


def partition_records(
    topic_id: bytes, first_index: int, replicas: Sequence[tuple[int, ...]], image: MetadataImage
) -> Iterable[PartitionRecord]:
    """Records of new partitions; their ISR is the live part of their replicas."""
    for index, brokers in enumerate(replicas, first_index):
        isr = tuple(broker for broker in brokers if is_active(image, broker))
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=brokers,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=(NO_DIRECTORY,) * len(brokers),
        )


def is_active(image: MetadataImage, broker_id: int) -> bool:
    """Registered, not fenced and not shutting down."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def place(
    image: MetadataImage, partitions: int, replication_factor: int, first: int = 0
) -> Sequence[tuple[int, ...]] | Refusal:
    """Round robin over the active brokers, from partition ``first`` on."""
    brokers = [broker for broker in sorted(image.brokers) if is_active(image, broker)]
    if replication_factor > len(brokers):
        return Refusal(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered.",
        )
    if partitions > MAX_RECORDS_PER_OPERATION:
        return Refusal(
            ErrorCode.policy_violation,
            f"Unable to perform excessively large batch operation: {partitions} partitions, "
            f"at most {MAX_RECORDS_PER_OPERATION} metadata records fit one operation.",
        )
    count = len(brokers)
    return [
        tuple(brokers[(index + step) % count] for step in range(replication_factor))
        for index in range(first, first + partitions)
    ]


def manual_problem(image: MetadataImage, brokers: Sequence[int], expected: int | None) -> Refusal | None:
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


def _name_refusal(name: str, published: MetadataImage, latest: MetadataImage) -> Refusal | None:
    """A name whose removal is not published yet still exists: its directory still has the name, too."""
    problem = name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.invalid_topic_exception, problem)
    if name == METADATA_TOPIC:
        return Refusal(ErrorCode.topic_authorization_failed, f"Topic '{name}' is internal.")
    if name in latest.topics or name in published.topics:
        return Refusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    other = collision(name, latest.topics)
    if other is not None:
        return Refusal(
            ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
        )
    return None


def _checked_configs(wanted: WantedTopic) -> Mapping[str, str] | Refusal:
    without = [key for key, value in wanted.configs if value is None]
    if without:
        return Refusal(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(without)}"
        )
    configs = {key: value for key, value in wanted.configs if value is not None}
    try:
        parse_topic_configs(configs)
    except ConfigError as error:
        return Refusal(ErrorCode.invalid_config, str(error))
    return configs


def _replicas(broker: Broker, wanted: WantedTopic) -> tuple[tuple[int, ...], ...] | Refusal:
    image = broker.controller.latest
    if wanted.assignments is not None:
        return _manual(image, wanted)
    factor = wanted.replication_factor
    if factor < DEFAULT or factor == 0:
        return Refusal(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if wanted.partitions < DEFAULT or wanted.partitions == 0:
        return Refusal(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    placed = place(
        image,
        broker.config.num_partitions if wanted.partitions == DEFAULT else wanted.partitions,
        broker.config.default_replication_factor if factor == DEFAULT else factor,
    )
    return placed if isinstance(placed, Refusal) else tuple(placed)


def _manual(image: MetadataImage, wanted: WantedTopic) -> tuple[tuple[int, ...], ...] | Refusal:
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
    return tuple(replicas[index] for index in range(len(replicas)))
