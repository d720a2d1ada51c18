"""Request bodies that behaviours send, made from kio's classes (the versions that wire/apis.py serves as latest)."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from bench.fleet.behaviours.protocol import TopicPartition

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
CREATE_TOPICS: Final = 19
INIT_PRODUCER_ID: Final = 22

EARLIEST: Final = -2
LATEST: Final = -1


def milliseconds(count: int) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=count))


def metadata_request(topics: Sequence[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(each)) for each in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def list_offsets_request(partitions: Sequence[TopicPartition], timestamp_ms: int) -> ListOffsetsRequest:
    """``timestamp_ms``: EARLIEST, LATEST or a time."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=tuple(
            ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ListOffsetsPartition(partition_index=i32(each), timestamp=i64(timestamp_ms)) for each in numbers
                ),
            )
            for topic, numbers in by_topic.items()
        ),
        timeout=milliseconds(1000),
    )


def init_producer_id_request() -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout=milliseconds(60_000))


def create_topics_request(
    topics: Mapping[str, int], replication_factor: int, config: Mapping[str, str], timeout_ms: int
) -> CreateTopicsRequest:
    """``topics``: name to number of partitions; -1 for the broker's own replication factor."""
    return CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(partitions),
                replication_factor=i16(replication_factor),
                assignments=(),
                configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in config.items()),
            )
            for name, partitions in topics.items()
        ),
        timeout=milliseconds(timeout_ms),
        validate_only=False,
    )
