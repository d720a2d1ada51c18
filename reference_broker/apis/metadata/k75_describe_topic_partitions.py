"""DescribeTopicPartitions: describes partitions page by page. Kafka's Java admin client uses it.

* The request names topics, or none for all topics.
* The request limits the partitions of a response. A cursor says where more remain. If it has a negative partition, or a
  topic that is not named, each topic of the request is INVALID_REQUEST.
* It has the eligible leader replicas and the last known leader. These lists are never null, because some clients fail
  on null.
* They are not part of what the metadata epoch (KIP-232) carries. Where it is on, they come from the node's own image if
  that has the same state of the partition, and are empty otherwise.

KIPs: 966.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.metadata.described_topics import described, missing_error
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, OPERATIONS_NOT_REQUESTED, TOPIC_OPERATIONS, as_uuid
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.identifiers import is_internal
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.wire.errors import ErrorCode

UNITS_PER_TOPIC = 3
UNITS_PER_PARTITION = 5
"""The cost of the description of one partition, in microseconds."""


def handle(broker: Broker, call: Call, body: DescribeTopicPartitionsRequest) -> None:
    """The topics are sorted by name, as the cursor needs it. Kafka's Java admin client names all topics that it wants
    in each of its requests."""
    respond_in_slices(broker, call, _build_response(broker, body))


def _build_response(broker: Broker, body: DescribeTopicPartitionsRequest) -> Sliced[DescribeTopicPartitionsResponse]:
    """Build the response from one state of the metadata, also if that changes meanwhile."""
    cache, image, work = broker.metadata, broker.loader.image, Budget(LOOKUP_US_PER_SLICE)
    names = sorted({topic.name for topic in body.topics} if body.topics else cache.topics)
    first, start = 0, 0
    if body.cursor is not None:
        start = bisect_left(names, body.cursor.topic_name)
        is_there = names[start : start + 1] == [body.cursor.topic_name]
        if body.cursor.partition_index < 0 or (body.topics and not is_there):
            refused = tuple(_refused(topic.name) for topic in body.topics)
            return DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=refused, next_cursor=None)
        first = body.cursor.partition_index if is_there else 0
    remaining = min(max(body.response_partition_limit, 1), broker.config.max_request_partition_size_limit)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    cursor = None
    for name in islice(names, start, None):
        if work.spend(UNITS_PER_TOPIC):
            yield
        if remaining == 0:
            cursor = Cursor(topic_name=TopicName(name), partition_index=i32(first))
            break
        topic = cache.topics.get(name)
        if topic is None:
            topics.append(_missing(name))
            first = 0  # The cursor's partition is of its own topic only, which may be deleted by now.
            continue
        own = image.topic_by_id(topic.topic_id)
        page: list[DescribeTopicPartitionsResponsePartition] = []
        for partition in islice(_partitions(cache, topic, own, first), remaining):
            page.append(partition)
            if work.spend(UNITS_PER_PARTITION):
                yield
        topics.append(_topic(topic, tuple(page)))
        remaining -= len(page)
        if first + len(page) < len(topic.partitions):
            cursor = Cursor(topic_name=TopicName(name), partition_index=i32(first + len(page)))
            break
        first = 0
    return DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=cursor)


API = Api.of(DescribeTopicPartitionsRequest, handle)


def _refused(name: TopicName) -> DescribeTopicPartitionsResponseTopic:
    """Return Kafka's response for each topic of a request whose cursor is wrong."""
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.invalid_request,
        name=name,
        topic_id=None,
        partitions=(),
        topic_authorized_operations=i32(OPERATIONS_NOT_REQUESTED),
    )


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=missing_error(name),
        name=TopicName(name),
        topic_id=None,
        partitions=(),
        topic_authorized_operations=i32(TOPIC_OPERATIONS),
    )


def _topic(
    topic: TopicImage, partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=as_uuid(topic.topic_id),
        is_internal=is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=i32(TOPIC_OPERATIONS),
    )


def _partitions(
    cache: MetadataCache, topic: TopicImage, own: TopicImage | None, first: int
) -> Iterator[DescribeTopicPartitionsResponsePartition]:
    """``own`` is the topic in the node's own image."""
    led_partitions = () if own is None else own.partitions
    for index in range(max(first, 0), len(topic.partitions)):
        partition = topic.partitions[index]
        if index < len(led_partitions) and led_partitions[index].partition_epoch == partition.partition_epoch:
            partition = led_partitions[index]
        yield _partition(cache, index, partition)


def _partition(cache: MetadataCache, index: int, partition: PartitionImage) -> DescribeTopicPartitionsResponsePartition:
    error, leader, offline = described(cache, partition)
    return DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=i32(index),
        leader_id=BrokerId(leader),
        leader_epoch=i32(partition.leader_epoch),
        replica_nodes=tuple(BrokerId(replica) for replica in partition.replicas),
        isr_nodes=tuple(BrokerId(one) for one in partition.isr),
        eligible_leader_replicas=tuple(BrokerId(one) for one in partition.elr),
        last_known_elr=tuple(BrokerId(one) for one in partition.last_known_elr),
        offline_replicas=tuple(BrokerId(one) for one in offline),
    )
