"""A client's metadata of the cluster, as a value with ``apply``.

Two guards protect it from stale metadata. Each has a switch of its own (``EpochGuards``):

- Leader epochs (KIP-320), as in Apache Kafka's client. If a partition's leader epoch in the update is older than the
  known one, only that partition's part of the update is dropped. A topic with another ID than before is a new topic,
  and its epochs start again.
- The metadata epoch (KIP-232, spec M-5). An update whose epoch is smaller than the last accepted one's is dropped as a
  whole; an equal one is accepted. An update without an epoch counts as -1. ``accepts`` says which before
  ``apply``, which changes nothing after a refusal. The client then retries after its usual backoff, preferably
  with another node.

An update that lists some topics leaves the others unchanged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.fetch import NO_TOPIC_ID

if TYPE_CHECKING:
    from reference_broker.wire.drafts import MetadataResponse1001
    from reference_broker.wire.retired_fields import MetadataResponse

UNKNOWN_EPOCH: Final = -1
NO_METADATA_EPOCH: Final = -1
"""The metadata epoch where none is recorded with an offset (spec M-11), or none was received (M-12)."""


@dataclass(frozen=True, slots=True)
class EpochGuards:
    """The guards against older metadata. One that is off drops nothing."""

    leader_epochs: bool = True
    """KIP-320's."""
    metadata_epoch: bool = True
    """KIP-232's."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's leader."""

    leader_id: int
    """-1 if there is no leader."""
    leader_epoch: int
    """-1 if it is not known."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic of a Metadata response."""

    topic: str
    topic_id: bytes
    """All zero if the broker gave none."""
    partitions: Mapping[int, PartitionInfo]
    error_code: int = 0
    """The topic's, 0 for none."""


@dataclass(frozen=True, slots=True)
class MetadataUpdate:
    """The content of one Metadata response. ``metadata_epoch`` is -1 if the response had none."""

    nodes: tuple[NodeAddress, ...]
    topics: tuple[TopicInfo, ...]
    controller_id: int = -1
    metadata_epoch: int = NO_METADATA_EPOCH

    @classmethod
    def of(cls, response: "MetadataResponse | MetadataResponse1001") -> "MetadataUpdate":
        """Read a released version's response (kio's class), or the draft's, which has a metadata epoch."""
        nodes = tuple(NodeAddress(int(broker.node_id), broker.host, int(broker.port)) for broker in response.brokers)
        topics = tuple(
            TopicInfo(
                topic=topic.name or "",
                topic_id=_topic_id(topic),
                partitions={
                    int(partition.partition_index): PartitionInfo(
                        int(partition.leader_id), int(getattr(partition, "leader_epoch", UNKNOWN_EPOCH))
                    )
                    for partition in topic.partitions
                },
                error_code=int(topic.error_code),
            )
            for topic in response.topics
        )
        return cls(nodes, topics, int(response.controller_id), getattr(response, "metadata_epoch", NO_METADATA_EPOCH))


def _topic_id(topic: object) -> bytes:
    known: UUID | None = getattr(topic, "topic_id", None)
    return NO_TOPIC_ID if known is None else known.bytes


def _merged(old: TopicInfo | None, new: TopicInfo, guarded: bool) -> TopicInfo:
    if old is None or (NO_TOPIC_ID not in (old.topic_id, new.topic_id) and old.topic_id != new.topic_id):
        return new
    partitions: dict[int, PartitionInfo] = {}
    for number, info in new.partitions.items():
        known = old.partitions.get(number)
        stale = guarded and known is not None and UNKNOWN_EPOCH < info.leader_epoch < known.leader_epoch
        partitions[number] = known if stale and known is not None else info
    topic_id = new.topic_id if new.topic_id != NO_TOPIC_ID else old.topic_id
    return TopicInfo(new.topic, topic_id, partitions, new.error_code)


@dataclass(frozen=True, slots=True)
class MetadataCache:
    nodes: Mapping[int, NodeAddress] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicInfo] = field(default_factory=lambda: MappingProxyType({}))
    controller_id: int = -1
    metadata_epoch: int = NO_METADATA_EPOCH
    """The epoch of the last accepted update. It is -1 before the first update, and after one without an epoch (spec
    M-12)."""
    guards: EpochGuards = EpochGuards()

    def accepts(self, update: MetadataUpdate) -> bool:
        """Return whether the update is not older than the last accepted one (M-5). True while that guard is off."""
        return not self.guards.metadata_epoch or update.metadata_epoch >= self.metadata_epoch

    def apply(self, update: MetadataUpdate) -> "MetadataCache":
        """Return the cache with the update, or the same cache if the update is not accepted. A topic that the update
        gives the error UNKNOWN_TOPIC_OR_PARTITION (3) is forgotten. A topic with another error stays as it was
        known."""
        if not self.accepts(update):
            return self
        topics = dict(self.topics)
        for new in update.topics:
            if new.error_code == 3:
                topics.pop(new.topic, None)
            elif new.error_code == 0:
                topics[new.topic] = _merged(topics.get(new.topic), new, self.guards.leader_epochs)
        nodes = {node.node_id: node for node in update.nodes}
        return MetadataCache(nodes, topics, update.controller_id, update.metadata_epoch, self.guards)

    def learn_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> "MetadataCache":
        """Learn a new leader from an error response that names it (KIP-951). It is ignored unless its epoch is newer,
        and always ignored while KIP-320's guard is off."""
        if not self.guards.leader_epochs:
            return self
        topic = self.topics.get(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        if topic is None or known is None or leader_epoch <= known.leader_epoch:
            return self
        partitions = {**topic.partitions, partition.partition: PartitionInfo(leader_id, leader_epoch)}
        return replace(self, topics={**self.topics, partition.topic: replace(topic, partitions=partitions)})

    def topic_id(self, topic: str) -> bytes:
        """Return the topic's ID, or 16 zero bytes if it is not known."""
        info = self.topics.get(topic)
        return info.topic_id if info is not None else NO_TOPIC_ID

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo | None:
        info = self.topics.get(topic_partition.topic)
        return info.partitions.get(topic_partition.partition) if info is not None else None

    def leader_of(self, partition: TopicPartition) -> NodeAddress | None:
        """The leader's address, None if there is no leader or its address is unknown."""
        info = self.partition(partition)
        return self.nodes.get(info.leader_id) if info is not None else None

    def missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions without a known leader."""
        return [partition for partition in partitions if self.leader_of(partition) is None]
