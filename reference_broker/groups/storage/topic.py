"""``__consumer_offsets``: how many partitions it has, and the settings with which it is created."""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.topic_names import OFFSETS_TOPIC


def partition_count(image: MetadataImage, config: BrokerConfig) -> int:
    """The topic keeps the count with which it was created. Until it exists, ``offsets.topic.num.partitions`` counts."""
    topic = image.topics.get(OFFSETS_TOPIC)
    return config.offsets_topic_num_partitions if topic is None else len(topic.partitions)


def topic_configs(config: BrokerConfig) -> tuple[tuple[str, str], ...]:
    """The topic's own settings, which are those that Kafka gives it."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(config.offsets_topic_segment_bytes)),
    )
