"""Topics that a broker itself has created: for clients that name a missing topic, and for coordinators.

The broker sends CreateTopics to the active controller, as a client would.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.controller.controller import NodeToControllerChannelManager
from reference_broker.controller.planning.topic_creation import NewTopic
from reference_broker.groups.records import offsets_topic_configs
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.transactions.transaction_state_manager import transaction_topic_configs
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.create_topics.v7 import request as request_schema
else:
    request_schema = LazySchema("create_topics.v7.request")


def request_creation(channel: NodeToControllerChannelManager, new_topic: NewTopic, over: Callable[[], None]) -> None:
    """Request a topic. ``over`` is called when the request has a response or has failed. The topic may exist then.

    The active controller must be known (``channel.has_leader``).
    """
    topic = request_schema.CreatableTopic(
        name=TopicName(new_topic.name),
        num_partitions=i32(new_topic.partitions),
        replication_factor=i16(new_topic.replication_factor),
        assignments=(),
        configs=tuple(request_schema.CreatableTopicConfig(name=name, value=value) for name, value in new_topic.configs),
    )
    body = request_schema.CreateTopicsRequest(topics=(topic,), timeout=NO_THROTTLE, validate_only=False)
    version = VERSIONS[ApiKey.CREATE_TOPICS][1]
    channel.send_request(ApiKey.CREATE_TOPICS, version, body, lambda _: over(), over)


COORDINATOR_TOPICS = (OFFSETS_TOPIC, TRANSACTION_TOPIC)


def request_coordinator_topic(broker: Broker, name: str) -> None:
    """Request the topic ``name``, one of COORDINATOR_TOPICS, with the settings that it must have.

    There is one request for each at a time. Clients retry until the topic exists.
    """
    coordinator = broker.groups if name == OFFSETS_TOPIC else broker.transactions
    image = broker.loader.image
    # Decision coordinator-topic-due
    if coordinator.is_creating or not broker.lifecycle.channel.has_leader or name in image.topics:
        return

    def over() -> None:
        coordinator.is_creating = False

    coordinator.is_creating = True
    request_creation(broker.lifecycle.channel, _wanted(broker, name, image), over)


def replicas_of(replication_factor: int, image: MetadataImage, voters: int) -> int:
    """Return ``replication_factor``, but no more than there are brokers.

    The voters count as brokers that will register, so that a cluster whose nodes still start does not get a topic on
    one node only.
    """
    return min(replication_factor, max(len(image.brokers), voters, 1))


def _wanted(broker: Broker, name: str, image: MetadataImage) -> NewTopic:
    config = broker.config
    voters = len(config.voters(broker.node_id))
    if name == OFFSETS_TOPIC:
        return NewTopic(
            name,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=replicas_of(config.offsets_topic_replication_factor, image, voters),
            configs=offsets_topic_configs(config),
        )
    replicas = replicas_of(config.transaction_state_log_replication_factor, image, voters)
    return NewTopic(
        name,
        partitions=config.transaction_state_log_num_partitions,
        replication_factor=replicas,
        configs=transaction_topic_configs(config, replicas),
    )
