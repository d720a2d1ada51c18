"""CreateTopics: creates topics, durably, all good ones of a request at once or none.

* The active controller responds once the records are committed and published there. Others forward the request.
* A request is validated against all requests before it, also those that are not committed yet.
* A request that is larger than a batch of metadata is a transaction of the metadata log. Readers see all its topics or
  none.
* A request for more than 10,000 partitions is refused as a whole (POLICY_VIOLATION), as in Kafka.
* Unlike Kafka: the timeout is not used.

KIPs: 4, 464, 516, 525, 868.
"""

from functools import lru_cache
from typing import TypeAlias

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.configs.config_rows import topic_rows
from reference_broker.apis.forwarding import forward_or_append
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, as_uuid, error_fields
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.new_partitions import too_many_partitions
from reference_broker.controller.planning.topic_creation import (
    NewTopic,
    PlannedTopic,
    TopicCreation,
    TopicOutcomes,
)
from reference_broker.metadata.broker_settings import Layers, layers_of
from reference_broker.ports.slicing import DESCRIBED_TOPICS_PER_SLICE, Sliced
from reference_broker.wire.apis import ApiKey

CACHED_SETTINGS = 16
"""The number of different sets of topic settings that one process caches."""

_Texts: TypeAlias = tuple[tuple[str, str], ...]
_Settings: TypeAlias = tuple[BrokerConfig, _Texts, _Texts]
"""The settings of this broker: as they are, and what the metadata sets for this broker and for all."""


def handle(broker: Broker, call: Call, body: CreateTopicsRequest) -> None:
    """Respond later, with one result for each name in the order of the request. Each topic has a partition, so a
    request that names too many topics is refused here. Forwarding it would take too long."""
    too_many = too_many_partitions(len(body.topics))
    if too_many is not None:
        respond_in_slices(broker, call, _refused(body, too_many))
        return
    operation = TopicCreation([_wanted(topic) for topic in body.topics], body.validate_only)

    def response_of(outcomes: TopicOutcomes) -> CreateTopicsResponse:
        layers = layers_of(broker.controller.image, broker.node_id)
        settings = broker.config, tuple(layers.own.items()), tuple(layers.cluster.items())
        results = tuple(_result(name, outcome, settings) for name, outcome in outcomes.items())
        return CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=results)

    forward_or_append(broker, call, ApiKey.CREATE_TOPICS, body, operation, response_of)


API = Api.of(CreateTopicsRequest, handle)


def _refused(body: CreateTopicsRequest, refusal: ApiError) -> Sliced[CreateTopicsResponse]:
    results: dict[str, CreatableTopicResult] = {}
    for number, topic in enumerate(body.topics, 1):
        results[topic.name] = CreatableTopicResult(
            name=TopicName(topic.name), topic_id=None, configs=(), **error_fields(refusal)
        )
        if number % DESCRIBED_TOPICS_PER_SLICE == 0:
            yield
    return CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results.values()))


def _wanted(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=tuple((config.name, config.value) for config in topic.configs),
        assignments=tuple(
            (assignment.partition_index, tuple(assignment.broker_ids)) for assignment in topic.assignments
        )
        or None,
    )


def _result(name: str, outcome: PlannedTopic | ApiError, settings: _Settings) -> CreatableTopicResult:
    if isinstance(outcome, ApiError):
        return CreatableTopicResult(name=TopicName(name), topic_id=None, configs=(), **error_fields(outcome))
    return CreatableTopicResult(
        name=TopicName(name),
        topic_id=as_uuid(outcome.topic_id),
        num_partitions=i32(outcome.partitions),
        replication_factor=i16(outcome.replication_factor),
        configs=_config_rows(settings, tuple(outcome.configs.items())),
        **error_fields(outcome),
    )


@lru_cache(CACHED_SETTINGS)
def _config_rows(settings: _Settings, configs: _Texts) -> tuple[CreatableTopicConfigs, ...]:
    """Build the settings of a topic. Cached, because most topics have equal settings."""
    config, own, cluster = settings
    return tuple(
        CreatableTopicConfigs(
            name=row.key.name,
            value=row.value,
            read_only=row.read_only,
            config_source=i8(row.source),
            is_sensitive=False,
        )
        for row in topic_rows(config, dict(configs), None, Layers(dict(own), dict(cluster)))
    )
