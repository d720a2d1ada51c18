"""How this node asks the leaders of ``__remote_log_metadata``, of which it may be one itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import NO_LEADER, MetadataImage, TopicImage
from reference_broker.ports.node_ports import Channel, Done, Ports, later
from reference_broker.wire.apis import VERSIONS, ApiKey

RETRY_US = 100_000
"""Whatever failed is tried again after this pause."""

ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""Serves a request of this node itself: (API key, body, what is told the answer)."""


@dataclass(frozen=True, slots=True)
class MetadataLeaders:
    """``image`` returns the metadata as this node knows it."""

    ports: Ports
    node_id: int
    image: Callable[[], MetadataImage]
    serve_locally: ServeLocally
    request_timeout_ms: int

    @property
    def topic(self) -> TopicImage | None:
        return self.image().topics.get(REMOTE_LOG_METADATA_TOPIC)

    def leader_of(self, index: int) -> int | None:
        """Returns who leads a partition of the topic, or None while nobody does."""
        image, topic = self.image(), self.topic
        if topic is None or index >= len(topic.partitions):
            return None
        leader = topic.partitions[index].leader
        return leader if leader != NO_LEADER and leader in image.brokers else None

    def ask(
        self,
        leader: int,
        channel: Channel,
        api_key: ApiKey,
        body: object,
        replied: Callable[[object], None],
        failed: Done,
    ) -> None:
        """Sends a request in its newest version. One of the two callbacks follows, in an event of its own."""
        if leader == self.node_id:
            later(self.ports, 0, partial(self.serve_locally, api_key, body, replied))
            return
        version = VERSIONS[api_key][1]
        self.ports.send(leader, channel, api_key, version, body, self.request_timeout_ms, replied, failed)
