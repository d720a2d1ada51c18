"""One node in memory for micro-benchmarks: core and disk without sockets, every sync done at once."""

from collections import deque
from collections.abc import Mapping, Sequence

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.static.primitive import i16, i32

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.effects import Effect, Reply, SetTimer, Sync
from reference_broker.core.events import Event, Opened, Request, Synced, TimerFired
from reference_broker.core.node import Node
from reference_broker.ports.disk import Disk
from reference_broker.ports.memory_disk import MemoryDisk
from reference_broker.ports.now import Now
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.tags import Tag

NOW = Now(1_000, 1_800_000_000_000)
CONNECTION = 1
FETCH_VERSION = 12
PRODUCE_VERSION = 9


class MemoryNode:
    """Ready to serve; one connection. Timers that lie in the future never fire. ``config``: Kafka's names."""

    def __init__(self, disk: Disk | None = None, config: Mapping[str, str] | None = None, seed: int = 1) -> None:
        self.node = Node(0, BrokerConfig.parse(config or {}), disk or MemoryDisk(), seed)
        self._settle(self.node.start(NOW))
        assert self.node.ready
        self._settle(self.node.handle(NOW, Opened(CONNECTION, "micro")))

    def create_topic(self, name: str, partitions: int) -> None:
        topic = CreatableTopic(
            name=name,  # type: ignore[arg-type]
            num_partitions=i32(partitions),
            replication_factor=i16(1),
            assignments=(),
            configs=(),
        )
        self.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=(topic,)))

    def call(self, api_key: int, version: int, body: object) -> object:
        """One request's answer."""
        tag = Tag(api_key, version, "micro")
        replies = self._settle(self.node.handle(NOW, Request(CONNECTION, 0, api_key, version, "micro", body, tag)))
        assert len(replies) == 1, f"one answer to one request, not {len(replies)}"
        return replies[0].body

    def _settle(self, effects: Sequence[Effect]) -> list[Reply]:
        """Carries effects out until none is due; returns the replies among them."""
        pending: deque[Effect] = deque(effects)
        replies = []
        while pending:
            effect = pending.popleft()
            if isinstance(effect, Reply):
                replies.append(effect)
                continue
            event: Event | None = None
            if isinstance(effect, Sync):
                event = Synced(effect.token)
            elif isinstance(effect, SetTimer) and effect.deadline_us <= NOW.mono_us:
                event = TimerFired(effect.timer)
            if event is not None:
                pending.extend(self.node.handle(NOW, event))
        return replies
