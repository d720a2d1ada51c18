"""The subscriptions and assignments inside JoinGroup and SyncGroup.

Layouts: Kafka's ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json, versions 0-3, behind an int16
version. A version above 3 is read as 3, since later ones only add fields at the end. Bytes behind the known fields are
ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_assignment.v3.data import TopicPartition as AssignedTopic
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription
from kio.schema.consumer_protocol_subscription.v3.data import TopicPartition as OwnedTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.decoding import decoder
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.primitives import reading

NEWEST_VERSION: Final = 3
_VERSION_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member's subscription, as its assignor wrote it."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """The partitions that it has while it joins (from version 1 on)."""
    generation_id: int = -1
    """The generation in which it got them, or -1 (from version 2 on)."""
    user_data: bytes | None = None
    rack_id: str | None = None
    """From version 3 on."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of one member."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def encode_subscription(subscription: Subscription, version: int = NEWEST_VERSION) -> bytes:
    """``version`` is 0 to 3. Fields that it lacks are omitted."""
    return _encode(
        "consumer_protocol_subscription",
        version,
        ConsumerProtocolSubscription(
            topics=subscription.topics,
            user_data=subscription.user_data,
            owned_partitions=tuple(
                OwnedTopic(topic=TopicName(topic), partitions=tuple(i32(number) for number in numbers))
                for topic, numbers in by_topic(subscription.owned).items()
            ),
            generation_id=i32(subscription.generation_id),
            rack_id=subscription.rack_id,
        ),
    )


def decode_subscription(data: bytes) -> Subscription:
    """:raises ProtocolError: it is cut short, or its version is negative."""
    body = _decode("consumer_protocol_subscription", data, ConsumerProtocolSubscription)
    return Subscription(
        topics=tuple(body.topics),
        owned=_flat((partition.topic, partition.partitions) for partition in body.owned_partitions),
        generation_id=int(body.generation_id),
        user_data=body.user_data,
        rack_id=body.rack_id,
    )


def encode_assignment(assignment: Assignment, version: int = NEWEST_VERSION) -> bytes:
    """``version`` is 0 to 3; all have the same fields."""
    return _encode(
        "consumer_protocol_assignment",
        version,
        ConsumerProtocolAssignment(
            assigned_partitions=tuple(
                AssignedTopic(topic=TopicName(topic), partitions=tuple(i32(number) for number in numbers))
                for topic, numbers in by_topic(assignment.partitions).items()
            ),
            user_data=assignment.user_data,
        ),
    )


def decode_assignment(data: bytes) -> Assignment:
    """Read an assignment. Empty bytes mean an empty assignment: they come from a group in which nothing was assigned.

    :raises ProtocolError: it is cut short, or its version is negative.
    """
    if not data:
        return Assignment()
    body = _decode("consumer_protocol_assignment", data, ConsumerProtocolAssignment)
    return Assignment(
        _flat((partition.topic, partition.partitions) for partition in body.assigned_partitions), body.user_data
    )


def _flat(topics: Iterable[tuple[str, Iterable[int]]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(str(topic), int(number)) for topic, numbers in topics for number in numbers)


def _layout(name: str, version: int) -> type:
    known: Mapping[str, Any] = vars(import_module(f"kio.schema.{name}.v{version}.data"))
    found = known["".join(part.capitalize() for part in name.split("_"))]
    assert isinstance(found, type)
    return found


def _encode(name: str, version: int, body: object) -> bytes:
    assert 0 <= version <= NEWEST_VERSION, f"no version {version} of {name}"
    out = bytearray(version.to_bytes(_VERSION_BYTES, "big"))
    source: type = type(body)
    encoder(_layout(name, version), source)(out, body)
    return bytes(out)


def _decode(name: str, data: bytes, target: type) -> Any:
    with reading(name):
        version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
        if len(data) < _VERSION_BYTES or version < 0:
            raise ProtocolError(f"{name} without a version")
        body, _ = decoder(_layout(name, min(version, NEWEST_VERSION)), target)(memoryview(data), _VERSION_BYTES)
    return body
