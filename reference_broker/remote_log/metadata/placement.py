"""``__remote_log_metadata``: which of its partitions keeps a partition, and the settings with which it is created."""

from struct import pack
from typing import Final

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.topics import WantedTopic
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import MetadataImage

_INT32: Final = 0xFFFFFFFF
_MURMUR_M: Final = 0x5BD1E995
_MURMUR_SEED: Final = 0x9747B28C


def metadata_partition_of(topic_id: bytes, partition: int, count: int) -> int:
    """Returns which of ``count`` partitions keeps the events of a partition (RemoteLogMetadataTopicPartitioner)."""
    high, low = (int.from_bytes(topic_id[at : at + 8], "big") for at in (0, 8))
    hashed = 1
    for part in (low ^ low >> 32, high ^ high >> 32, partition):  # Java's Objects.hash of two longs and an int.
        hashed = (31 * hashed + (part & _INT32)) & _INT32
    return (_murmur2(hashed) & 0x7FFFFFFF) % count


def _murmur2(word: int) -> int:
    """Kafka's Utils.murmur2 of the four bytes of ``word``, big endian. It reads them as a little-endian word."""
    mixed = int.from_bytes(pack(">I", word), "little") * _MURMUR_M & _INT32
    mixed = (mixed ^ mixed >> 24) * _MURMUR_M & _INT32
    hashed = (_MURMUR_SEED ^ 4) * _MURMUR_M & _INT32 ^ mixed
    hashed = (hashed ^ hashed >> 13) * _MURMUR_M & _INT32
    return hashed ^ hashed >> 15


def wanted_topic(config: BrokerConfig, image: MetadataImage, node_id: int) -> WantedTopic:
    """The topic as it is created, with the settings that Kafka gives it. Unlike in Kafka it never has more replicas
    than the cluster has brokers or voters, and no leader is elected that may lack events."""
    brokers = max(len(image.brokers), len(config.voters(node_id)), 1)
    return WantedTopic(
        REMOTE_LOG_METADATA_TOPIC,
        partitions=config.rlmm_config_remote_log_metadata_topic_num_partitions,
        replication_factor=min(config.rlmm_config_remote_log_metadata_topic_replication_factor, brokers),
        configs=(
            ("cleanup.policy", "delete"),
            ("remote.storage.enable", "false"),
            ("retention.ms", str(config.rlmm_config_remote_log_metadata_topic_retention_ms)),
            ("unclean.leader.election.enable", "false"),
        ),
    )
