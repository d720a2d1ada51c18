"""``__transaction_state``: how many partitions it has, and the settings with which it is created."""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage


def partition_count(image: MetadataImage, config: BrokerConfig) -> int:
    """The topic keeps the count with which it was created. Until it exists, ``transaction.state.log.num.partitions``
    counts."""
    topic = image.topics.get(TRANSACTION_TOPIC)
    return config.transaction_state_log_num_partitions if topic is None else len(topic.partitions)


def topic_configs(config: BrokerConfig, replicas: int) -> tuple[tuple[str, str], ...]:
    """The topic's own settings, which are those that Kafka gives it. Unlike in Kafka, ``min.insync.replicas`` is not
    above the number of replicas: nothing could be written then."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "uncompressed"),
        ("min.insync.replicas", str(min(config.transaction_state_log_min_isr, replicas))),
        ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
        ("unclean.leader.election.enable", "false"),
    )
