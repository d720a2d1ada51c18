"""Makes the request bodies that behaviours send, of kio's classes for the latest versions in wire/apis.py."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from bench.fleet.behaviours.protocol import TopicPartition
from reference_broker.wire.retired_fields import MetadataRequest

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
SET_CONFIG: Final = 0
DELETE_CONFIG: Final = 1
UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
EARLIEST: Final = -2
LATEST: Final = -1


def milliseconds(count: int) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=count))


def metadata_request(topics: Sequence[str]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


API_VERSIONS_REQUEST: Final = ApiVersionsRequest(client_software_name="crucible-fleet", client_software_version="1")
ALL_TOPICS: Final = MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
"""A Metadata request that names no topic requests all."""


def list_offsets_request(partitions: Sequence[TopicPartition], timestamp_ms: int) -> ListOffsetsRequest:
    """``timestamp_ms`` is EARLIEST, LATEST or a time."""
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
                    ListOffsetsPartition(partition_index=i32(number), timestamp=i64(timestamp_ms)) for number in numbers
                ),
            )
            for topic, numbers in by_topic.items()
        ),
        timeout=milliseconds(1000),
    )


def init_producer_id_request() -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout=milliseconds(60_000))


def new_topic(name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> CreatableTopic:
    return CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(replicas),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in config.items()),
    )


def create_topics_request(topics: Sequence[CreatableTopic], timeout_ms: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=tuple(topics),
        timeout=milliseconds(timeout_ms),
        validate_only=False,
    )


def delete_topics_request(topics: Sequence[str], timeout_ms: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=tuple(DeleteTopicState(name=TopicName(topic), topic_id=None) for topic in topics),
        timeout=milliseconds(timeout_ms),
    )


def set_topic_configs_request(
    topics: Sequence[str], settings: Mapping[str, str | None]
) -> IncrementalAlterConfigsRequest:
    """Give each of the topics the same settings. None removes one."""
    configs = tuple(_altered(key, value) for key, value in settings.items())
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(resource_type=i8(TOPIC_RESOURCE), resource_name=topic, configs=configs)
            for topic in topics
        ),
        validate_only=False,
    )


def alter_broker_config_request(broker: str, key: str, value: str | None) -> IncrementalAlterConfigsRequest:
    """Set the setting of a broker, or of all brokers where ``broker`` is empty. None removes it."""
    resource = AlterConfigsResource(
        resource_type=i8(BROKER_RESOURCE), resource_name=broker, configs=(_altered(key, value),)
    )
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


def _altered(key: str, value: str | None) -> AlterableConfig:
    step = i8(DELETE_CONFIG if value is None else SET_CONFIG)
    return AlterableConfig(name=key, config_operation=step, value=value)


def describe_topic_config_request(topics: Sequence[str], *keys: str) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=i8(TOPIC_RESOURCE), resource_name=topic, configuration_keys=keys)
            for topic in topics
        )
    )


def upgrade_feature_request(feature: str, level: int, timeout_ms: int) -> UpdateFeaturesRequest:
    """Raise the feature to this level. Level 0 switches it off."""
    kind = UPGRADE if level else SAFE_DOWNGRADE
    key = FeatureUpdateKey(feature=feature, max_version_level=i16(level), upgrade_type=i8(kind))
    return UpdateFeaturesRequest(timeout=milliseconds(timeout_ms), feature_updates=(key,))
