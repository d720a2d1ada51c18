"""Lets a broker itself create a topic. It sends CreateTopics to the active controller, as a client would."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from reference_broker.apis.parts import HasLifecycle
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.controller.planning.topics import WantedTopic
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.create_topics.v7 import request as request_schema
else:
    request_schema = LazySchema("create_topics.v7.request")


def ask_to_create(broker: HasLifecycle, wanted: WantedTopic, over: Callable[[], None]) -> None:
    """Asks for a topic. ``over`` is called when the request is answered or has failed. The topic may exist then. The
    active controller must be known (``channel.has_leader``)."""
    topic = request_schema.CreatableTopic(
        name=TopicName(wanted.name),
        num_partitions=i32(wanted.partitions),
        replication_factor=i16(wanted.replication_factor),
        assignments=(),
        configs=tuple(request_schema.CreatableTopicConfig(name=name, value=value) for name, value in wanted.configs),
    )
    body = request_schema.CreateTopicsRequest(topics=(topic,), timeout=NO_THROTTLE, validate_only=False)
    version = VERSIONS[ApiKey.CREATE_TOPICS][1]
    broker.lifecycle.channel.ask(ApiKey.CREATE_TOPICS, version, body, lambda _: over(), over)
