"""New partitions of new and of existing topics: their records, the limit of a request, and problems of manual
assignments."""

from collections.abc import Iterator
from typing import TypeAlias

from reference_broker.controller.planning.partition_changes import active_brokers, is_active, only_directories
from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.features import knows_directories
from reference_broker.metadata.identifiers import NO_DIRECTORY
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import PartitionRecord
from reference_broker.wire.errors import ErrorCode

MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's limit for the new partitions of all topics of a request (ReplicationControlManager, 4.1). 38 bytes could
request a million, which would keep the controller busy for a minute."""

Replicas: TypeAlias = Iterator[tuple[int, ...]]
"""Yields the brokers of each new partition."""


def too_many_partitions(partitions: int) -> ApiError | None:
    """Return the reason why one request may not create this number of partitions, or None if it may."""
    if partitions <= MAX_PARTITIONS_PER_REQUEST:
        return None
    return ApiError(
        ErrorCode.policy_violation,
        f"Excessively large number of partitions per request: {partitions}, at most {MAX_PARTITIONS_PER_REQUEST} are "
        "allowed.",
    )


def manual_problem(image: MetadataImage, brokers: tuple[int, ...], expected: int | None) -> ApiError | None:
    """Return the error of the replicas of one partition. ``expected`` is the number of replicas of the other ones."""
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
    return None if problem is None else ApiError(ErrorCode.invalid_replica_assignment, problem)


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


DUPLICATE_TOPIC = ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
