"""``__consumer_offsets``: which of its partitions keeps a group, and the settings with which it is created."""

from functools import lru_cache
from struct import unpack
from typing import Final

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage

OFFSETS_TOPIC: Final = "__consumer_offsets"
REMEMBERED_HASHES: Final = 10_000
"""How many group IDs have their hash kept: each request of a group asks for it."""
REMEMBERED_CHARACTERS: Final = 256
"""Longer IDs are hashed anew each time, so that what is kept stays small."""


def java_hash(text: str) -> int:
    """The absolute value of Java's ``String.hashCode`` of UTF-16 units; 0 for -2^31 (Kafka's ``Utils.abs``)."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(encoded) // 2}H", encoded):
        value = 31 * value + unit & 0xFFFFFFFF
    return min(value, 2**32 - value) & 0x7FFFFFFF


UNITS_PER_GROUP = 5
CHARACTERS_PER_UNIT = 16
"""What it costs to find a group by its ID, in microseconds: some for each, and one more for so many characters."""
_remembered_hash = lru_cache(maxsize=REMEMBERED_HASHES)(java_hash)


def partition_of(group_id: str, partitions: int) -> int:
    """Returns which of ``partitions`` keeps the group, as Kafka's Utils.abs(groupId.hashCode) % partitions does. The
    longest ID that ``record_fields.fits`` costs some 2 ms."""
    is_short = len(group_id) <= REMEMBERED_CHARACTERS
    return (_remembered_hash(group_id) if is_short else java_hash(group_id)) % partitions


def partition_count(image: MetadataImage, config: BrokerConfig) -> int:
    """The topic keeps the count with which it was created. Until it exists, ``offsets.topic.num.partitions`` counts."""
    topic = image.topics.get(OFFSETS_TOPIC)
    return config.offsets_topic_num_partitions if topic is None else len(topic.partitions)


def replication_factor(image: MetadataImage, config: BrokerConfig, voters: int) -> int:
    """``offsets.topic.replication.factor``, but no more than there are brokers. The voters count as brokers that will
    come, so that a cluster whose nodes still start does not get a topic on one node only."""
    return min(config.offsets_topic_replication_factor, max(len(image.brokers), voters, 1))


def topic_configs(config: BrokerConfig) -> tuple[tuple[str, str], ...]:
    """The topic's own settings, which are those that Kafka gives it."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(config.offsets_topic_segment_bytes)),
    )
