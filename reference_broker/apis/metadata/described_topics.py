"""The descriptions of topics and brokers in Metadata responses, built once for each state of a topic or of the brokers.

To describe 10,000 partitions takes 0.1 s, and many clients send Metadata requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from reference_broker.apis.responses import as_uuid
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.identifiers import is_internal, name_problem
from reference_broker.metadata.image import NO_LEADER, BrokerImage, PartitionImage, TopicImage
from reference_broker.ports.slicing import DESCRIBED_TOPICS_PER_SLICE, Sliced
from reference_broker.wire.apis import WITH_LEADER_EPOCHS
from reference_broker.wire.drafts import (
    MetadataPartition1000,
    MetadataPartition1001,
    MetadataTopic1000,
    MetadataTopic1001,
)
from reference_broker.wire.errors import ErrorCode

Draft: TypeAlias = MetadataTopic1000 | MetadataTopic1001
PartitionT = TypeVar("PartitionT")

_LAYOUTS: Final[dict[int, tuple[Any, Any]]] = {
    1000: (MetadataTopic1000, MetadataPartition1000),
    WITH_LEADER_EPOCHS: (MetadataTopic1001, MetadataPartition1001),
}
"""The structs of a topic and of a partition, by the draft's version."""

_unchecked: Final[Callable[..., MetadataResponsePartition]] = MetadataResponsePartition
"""Takes plain numbers, which are in range because they come from the image. kio would check each of them twice."""


@dataclass(slots=True)
class _Description:
    """The last description of a topic. It is valid as long as ``topic`` and ``brokers`` are the same objects."""

    topic: TopicImage
    brokers: tuple[BrokerImage, ...]
    operations: int
    response: MetadataResponseTopic
    drafts: dict[int, Draft] = field(default_factory=dict)
    """The same description in the layout of each draft that was requested."""


@dataclass(slots=True)
class DescribedTopics:
    """The descriptions of one node."""

    by_name: dict[str, _Description] = field(default_factory=dict)
    """The last description of each topic that exists."""
    _brokers: tuple[BrokerImage, ...] = ()
    """Those that ``_by_listener`` describes."""
    _by_listener: dict[str, tuple[MetadataResponseBroker, ...]] = field(default_factory=dict)

    def live_brokers(self, cache: MetadataCache, listener: str) -> tuple[MetadataResponseBroker, ...]:
        """Return the brokers that are not fenced, with their addresses on the listener that the client came to. They
        are described again when the cache has another tuple of brokers."""
        if self._brokers is not cache.brokers:
            self._brokers, self._by_listener = cache.brokers, {}
        described = self._by_listener.get(listener)
        if described is None:
            described = self._by_listener[listener] = tuple(_broker(one, listener) for one in cache.live_brokers())
        return described

    def find(self, cache: MetadataCache, topic: TopicImage, operations: int) -> Sliced[MetadataResponseTopic]:
        described = self.by_name.get(topic.name)
        if described is not None and described.topic is topic and described.brokers is cache.brokers:
            same = described.operations == operations
            return (
                described.response if same else replace(described.response, topic_authorized_operations=i32(operations))
            )
        response = yield from _described(cache, topic, operations)
        self.by_name[topic.name] = _Description(topic, cache.brokers, operations, response)
        if len(self.by_name) > len(cache.topics):
            self.by_name = {name: one for name, one in self.by_name.items() if name in cache.topics}
        return response

    def find_draft(self, topic: MetadataResponseTopic, version: int) -> Sliced[Draft]:
        """Return the description in the layout of a draft. It is built once, because 10,000 partitions take 20 ms."""
        described = self.by_name.get(topic.name or "")
        if described is None or described.response.partitions is not topic.partitions:
            return (yield from _in_draft_layout(topic, version))
        if version not in described.drafts:
            described.drafts[version] = yield from _in_draft_layout(topic, version)
        return described.drafts[version]


def _broker(broker: BrokerImage, listener: str) -> MetadataResponseBroker:
    host, port = broker.address(listener)
    return MetadataResponseBroker(node_id=BrokerId(broker.broker_id), host=host, port=i32(port), rack=broker.rack)


def _in_slices(partitions: Iterator[PartitionT]) -> Sliced[tuple[PartitionT, ...]]:
    """Return the items as a tuple."""
    described = list(islice(partitions, DESCRIBED_TOPICS_PER_SLICE))
    for partition in partitions:
        if len(described) % DESCRIBED_TOPICS_PER_SLICE == 0:
            yield
        described.append(partition)
    return tuple(described)


def _in_draft_layout(topic: MetadataResponseTopic, version: int) -> Sliced[Draft]:
    """A draft's partition has the names and values of the partition in all other versions, but not all of them."""
    made_of, partition = _LAYOUTS[version]
    names = tuple(layout_field.name for layout_field in fields(partition))
    values = attrgetter(*names)
    partitions = yield from _in_slices(
        partition(**dict(zip(names, values(topic_partition), strict=True))) for topic_partition in topic.partitions
    )
    with_id = {"topic_id": topic.topic_id} if version >= WITH_LEADER_EPOCHS else {}
    made: Draft = made_of(
        error_code=int(topic.error_code),
        name=topic.name or "",
        is_internal=topic.is_internal,
        partitions=partitions,
        **with_id,
    )
    return made


def _described(cache: MetadataCache, topic: TopicImage, operations: int) -> Sliced[MetadataResponseTopic]:
    partitions = yield from _in_slices(
        _partition(cache, index, partition) for index, partition in enumerate(topic.partitions)
    )
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=as_uuid(topic.topic_id),
        is_internal=is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=i32(operations),
    )


def missing_error(name: str) -> ErrorCode:
    """Return the error for a topic that does not exist."""
    return ErrorCode.unknown_topic_or_partition if name_problem(name) is None else ErrorCode.invalid_topic_exception


def described(cache: MetadataCache, partition: PartitionImage) -> tuple[ErrorCode, int, tuple[int, ...]]:
    """Return what clients see of a partition: (error, leader, replicas that are offline).

    Without a leader that clients can reach, the error is LEADER_NOT_AVAILABLE and the leader is -1.
    """
    offline = cache.offline_replicas(partition)
    if partition.leader == NO_LEADER or not cache.is_live(partition.leader):
        return ErrorCode.leader_not_available, NO_LEADER, offline
    return ErrorCode.none, partition.leader, offline


def _partition(cache: MetadataCache, index: int, partition: PartitionImage) -> MetadataResponsePartition:
    error, leader, offline = described(cache, partition)
    return _unchecked(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=offline,
    )
