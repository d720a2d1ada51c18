"""Asks the active controller for ``__consumer_offsets``, with the settings that it must have."""

from typing import Protocol

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from reference_broker.apis.parts import HasConfig, HasGroups, HasLifecycle, HasLoader, HasNodeId
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.groups.offsets.offsets_topic import OFFSETS_TOPIC, replication_factor, topic_configs
from reference_broker.wire.apis import VERSIONS, ApiKey


class CreatesOffsetsTopic(HasGroups, HasLifecycle, HasLoader, HasConfig, HasNodeId, Protocol):
    """What it takes to ask for the topic."""


def ask_to_create_offsets_topic(broker: CreatesOffsetsTopic) -> None:
    """One request at a time; clients ask again until the topic is there."""
    groups, channel, image = broker.groups, broker.lifecycle.channel, broker.loader.image
    if groups.is_creating or not channel.has_leader or OFFSETS_TOPIC in image.topics:
        return
    config = broker.config
    factor = replication_factor(image, config, len(config.voters(broker.node_id)))
    topic = CreatableTopic(
        name=TopicName(OFFSETS_TOPIC),
        num_partitions=i32(config.offsets_topic_num_partitions),
        replication_factor=i16(factor),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic_configs(config)),
    )
    body = CreateTopicsRequest(topics=(topic,), timeout=NO_THROTTLE, validate_only=False)

    def over(_answer: object = None) -> None:
        groups.is_creating = False

    groups.is_creating = True
    channel.ask(ApiKey.CREATE_TOPICS, VERSIONS[ApiKey.CREATE_TOPICS][1], body, over, over)
