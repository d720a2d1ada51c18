"""One node in memory for micro-benchmarks. It has a core and a disk but no sockets, and every sync is done at once."""

from collections import deque
from collections.abc import Mapping, Sequence

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Effect, Event, Opened, Reply, Request, SetTimer, Sync, Synced, TimerFired
from reference_broker.core.node import Node
from reference_broker.ports.disk import Disk, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.tags import Tag

NOW = Now(1_000, 1_800_000_000_000)
CONNECTION = 1
FETCH_VERSION = 12
PRODUCE_VERSION = 9


class MemoryNode:
    """A node that is ready to serve, with one connection. Timers that lie in the future never fire. ``config`` holds
    settings by Kafka's names."""

    def __init__(self, disk: Disk | None = None, config: Mapping[str, str] | None = None, seed: int = 1) -> None:
        self.node = Node(0, BrokerConfig.parse(config or {}), disk or MemoryDisk(), seed)
        self._carry_out(self.node.start(NOW))
        assert self.node.ready
        self._carry_out(self.node.handle(NOW, Opened(CONNECTION, "micro")))

    def create_topic(self, name: str, partitions: int) -> None:
        self.call(ApiKey.CREATE_TOPICS, 7, create_topics_request([new_topic(name, partitions, 1, {})], 60_000))

    def call(self, api_key: int, version: int, body: object) -> object:
        """Send one request and return the body of its response."""
        tag = Tag(api_key, version, "micro")
        replies = self._carry_out(self.node.handle(NOW, Request(CONNECTION, 0, api_key, version, "micro", body, tag)))
        assert len(replies) == 1, f"one response to one request, not {len(replies)}"
        return replies[0].body

    def _carry_out(self, effects: Sequence[Effect]) -> list[Reply]:
        """Carry effects out until none is due, and return the replies among them."""
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
