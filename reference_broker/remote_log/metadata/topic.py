"""The metadata of remote segments in ``__remote_log_metadata``, as one node reads and writes it (KIP-405; Kafka's
TopicBasedRemoteLogMetadataManager).

An event takes effect when it is read back from the topic: then it is replicated, and every node sees it in the same
place among the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import pack
from typing import Final, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.topic_creation import NewTopic
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import MetadataImage, TopicImage
from reference_broker.ports.node_ports import Done, Ports, later
from reference_broker.remote_log.metadata.events import RemoteLogEvent, RemoteLogSegmentMetadata
from reference_broker.remote_log.metadata.metadata_topic_client import (
    RETRY_US,
    MetadataLeaders,
    MetadataReader,
    MetadataWriter,
    ServeLocally,
    Watched,
)
from reference_broker.remote_log.metadata.remote_log_metadata_cache import Applied, RemoteLogMetadataCache
from reference_broker.wire.errors import ErrorCode

CreateTopic: TypeAlias = Callable[[NewTopic, Done], None]
"""Requests a topic from the active controller. The second argument is called when the request is over, however it
ended."""


@dataclass(frozen=True, slots=True)
class MetadataContext:
    """The parts of a node that ``RemoteLogMetadataTopic`` uses. ``image`` returns the metadata that the node knows."""

    ports: Ports
    node_id: int
    config: BrokerConfig
    image: Callable[[], MetadataImage]
    serve_locally: ServeLocally
    create_topic: CreateTopic


class RemoteLogMetadataTopic:
    """Implements ``RemoteLogMetadata``. ``image_changed`` is to be called with each new image. Nothing happens before
    the first ``watch``."""

    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self._leaders = MetadataLeaders(
            context.ports, context.node_id, context.image, context.serve_locally, context.config.request_timeout_ms
        )
        self._watched: dict[tuple[bytes, int], Watched] = {}
        self._unassigned: dict[tuple[bytes, int], None] = {}
        """Watched partitions that read no partition of the topic yet."""
        self._writes = MetadataWriter(self._leaders, context.config.rlmm_config_remote_log_metadata_consume_wait_ms)
        self._reads = MetadataReader(self._leaders, self._writes.complete)
        self._is_creating = False
        self._topic_id = b""
        """The topic from whose partitions the assigned ones read."""

    def watch(self, topic_id: bytes, topic: str, partition: int) -> None:
        key = topic_id, partition
        watched = self._watched.get(key)
        if watched is not None:
            watched.count += 1
            return
        self._watched[key] = Watched(topic)
        self._unassigned[key] = None
        self._assign()

    def unwatch(self, topic_id: bytes, partition: int) -> None:
        key = topic_id, partition
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.count -= 1
        if not watched.count:
            del self._watched[key]
            if key in self._unassigned:
                del self._unassigned[key]
            else:
                self._reads.remove(key)
            self._writes.forget(topic_id, partition)

    def is_ready(self, topic_id: bytes, partition: int) -> bool:
        watched = self._watched.get((topic_id, partition))
        return watched is not None and watched.is_ready

    def of(self, topic_id: bytes, partition: int) -> RemoteLogMetadataCache:
        watched = self._watched.get((topic_id, partition))
        return RemoteLogMetadataCache() if watched is None else watched.segments

    def write(self, event: RemoteLogEvent, done: Applied) -> None:
        key = event.topic_id, event.partition
        if key not in self._watched:
            later(self._context.ports, 0, lambda: done(ErrorCode.not_leader_or_follower))
        elif key in self._unassigned or self._leaders.topic is None:
            later(self._context.ports, 0, lambda: done(ErrorCode.unknown_topic_or_partition))
        else:
            known_until = self._context.image().provenance.offset
            index = _index_of(key, self._leaders.topic)
            self._writes.write(numbered(event, self.of(*key), known_until), index, done)

    def image_changed(self) -> None:
        """The topic may exist now, or its partitions may have other leaders."""
        if self._watched:
            self._assign()
            self._reads.send_next()
            self._writes.send_next()

    def _assign(self) -> None:
        """Assign each watched partition a partition of the topic and read it. Without a topic, request it."""
        topic = self._leaders.topic
        if topic is None:
            self._create()
            return
        if topic.topic_id != self._topic_id:
            self._restart_reading(topic.topic_id)
        unassigned, self._unassigned = self._unassigned, {}
        for key in unassigned:
            self._reads.add(_index_of(key, topic), key, self._watched[key])

    def _restart_reading(self, topic_id: bytes) -> None:
        """Drop what was read: another topic has the name now, perhaps with another number of partitions."""
        self._topic_id = topic_id
        for key, watched in self._watched.items():
            if key not in self._unassigned:
                self._reads.remove(key)
                self._watched[key] = watched.restarted()
                self._unassigned[key] = None

    def _create(self) -> None:
        """Request the topic, one request at a time, until it exists."""
        if self._unassigned and not self._is_creating:
            self._is_creating = True
            context = self._context
            context.create_topic(
                new_topic(context.config, context.image(), context.node_id), self._on_create_topic_completed
            )

    def _on_create_topic_completed(self) -> None:
        later(self._context.ports, RETRY_US, self._retry_create)

    def _retry_create(self) -> None:
        self._is_creating = False
        if self._leaders.topic is None:
            self._create()


def _index_of(key: tuple[bytes, int], topic: TopicImage) -> int:
    return metadata_partition_of(*key, len(topic.partitions))


_INT32: Final = 0xFFFFFFFF
_MURMUR_M: Final = 0x5BD1E995
_MURMUR_SEED: Final = 0x9747B28C


def metadata_partition_of(topic_id: bytes, partition: int, count: int) -> int:
    """Return which of ``count`` partitions keeps the events of a partition (RemoteLogMetadataTopicPartitioner)."""
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


def new_topic(config: BrokerConfig, image: MetadataImage, node_id: int) -> NewTopic:
    """The topic as it is created, with the settings that Kafka gives it. Unlike in Kafka it never has more replicas
    than the cluster has brokers or voters, and no leader is elected that may lack events. As in Kafka 4.3 an event
    needs several in-sync replicas (KIP-1235): with one, a power loss may take events of segments that are deleted
    locally already."""
    brokers = max(len(image.brokers), len(config.voters(node_id)), 1)
    replicas = min(config.rlmm_config_remote_log_metadata_topic_replication_factor, brokers)
    return NewTopic(
        REMOTE_LOG_METADATA_TOPIC,
        partitions=config.rlmm_config_remote_log_metadata_topic_num_partitions,
        replication_factor=replicas,
        configs=(
            ("cleanup.policy", "delete"),
            ("min.insync.replicas", str(min(config.rlmm_config_remote_log_metadata_topic_min_isr, replicas))),
            ("remote.storage.enable", "false"),
            ("retention.ms", str(config.rlmm_config_remote_log_metadata_topic_retention_ms)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


def numbered(event: RemoteLogEvent, segments: RemoteLogMetadataCache, metadata_offset: int = 0) -> RemoteLogEvent:
    """Return the event as it is written: a segment with the number that follows the last copy that is known, and with
    the offset up to which the cluster's metadata is known here."""
    if not isinstance(event, RemoteLogSegmentMetadata):
        return event
    is_newer = event.uploader_epoch > segments.newest_epoch
    return replace(event, attempt=1 if is_newer else segments.last_attempt + 1, metadata_offset=metadata_offset)
