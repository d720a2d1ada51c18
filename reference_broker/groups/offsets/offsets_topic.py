"""``__consumer_offsets``: which of its partitions keeps a group, and how the topic comes to be."""

from functools import lru_cache
from struct import unpack
from typing import Final

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage

OFFSETS_TOPIC: Final = "__consumer_offsets"
REMEMBERED_HASHES: Final = 10_000
"""Group IDs whose hash is kept: each request of a group asks for it."""
REMEMBERED_CHARACTERS: Final = 256
"""Longer ones are hashed anew each time, so that what is kept stays small."""


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``, of UTF-16 units, without its sign bit."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(encoded) // 2}H", encoded):
        value = 31 * value + unit & 0xFFFFFFFF
    return value & 0x7FFFFFFF


_remembered_hash = lru_cache(maxsize=REMEMBERED_HASHES)(java_hash)


def partition_of(group_id: str, partitions: int) -> int:
    """Which of ``partitions`` keeps the group, as Kafka's Utils.abs(groupId.hashCode) % partitions. Costs its length:
    some 2 ms for the longest that ``record_fields.fits``."""
    is_short = len(group_id) <= REMEMBERED_CHARACTERS
    return (_remembered_hash(group_id) if is_short else java_hash(group_id)) % partitions


def partition_count(image: MetadataImage, config: BrokerConfig) -> int:
    """As the topic was created, or ``offsets.topic.num.partitions`` while it does not exist."""
    topic = image.topics.get(OFFSETS_TOPIC)
    return config.offsets_topic_num_partitions if topic is None else len(topic.partitions)


def replication_factor(image: MetadataImage, config: BrokerConfig, voters: int) -> int:
    """``offsets.topic.replication.factor``, but no more than there are brokers: those that are registered, and at least
    the voters, so that a cluster whose nodes are still starting gets no topic that a single one of them keeps."""
    return min(config.offsets_topic_replication_factor, max(len(image.brokers), voters, 1))


def topic_configs(config: BrokerConfig) -> tuple[tuple[str, str], ...]:
    """Its own settings, as Kafka gives them to it."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(config.offsets_topic_segment_bytes)),
    )
