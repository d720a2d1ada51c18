"""Measures the memory that a node takes for one partition that a fetch session caches (tracemalloc).

One full fetch opens a session of PARTITIONS partitions at a node in memory, and an incremental one follows. What the
node then holds beyond what it held before is the session's. A partition that no other session caches counts with the
list of its watchers, which several sessions share.
"""

import gc
import tracemalloc
from collections import deque
from collections.abc import Sequence
from typing import Final

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Effect, Event, Opened, Reply, Request, SetTimer, Sync, Synced, TimerFired
from reference_broker.core.node import Node
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.wire.apis import FETCH_FIRST_REVISION, ApiKey
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from reference_broker.wire.tags import Tag

PARTITIONS: Final = 5_000
LAST_BY_NAME: Final = 12
_NOW: Final = Now(1_000, 1_800_000_000_000)
_TOPIC: Final = "measured"
_CONNECTION: Final = 1


def bytes_of_a_partition(version: int, partitions: int = PARTITIONS) -> float:
    """Returns the bytes that a session opened with this version of Fetch takes, divided by its partitions."""
    node = Node(0, BrokerConfig.parse({}), MemoryDisk(), 1)
    _settle(node, node.start(_NOW))
    _settle(node, node.handle(_NOW, Opened(_CONNECTION, "meter")))
    _ask(node, ApiKey.CREATE_TOPICS, 7, create_topics_request([new_topic(_TOPIC, partitions, 1, {})], 60_000))
    topic_id = next(iter(node.broker.partitions.topic_names))
    by_name = version <= LAST_BY_NAME or version == FETCH_FIRST_REVISION
    wanted = [FetchPartition(each, 0, 1 << 20) for each in range(partitions)]
    topic = FetchTopic(_TOPIC if by_name else "", NO_TOPIC_ID if by_name else topic_id, wanted)
    opening = FetchRequest(max_wait_ms=0, session_epoch=0, topics=[topic])
    tracemalloc.start()
    try:
        before = _held()
        session_id = _fetch(node, version, opening)
        next_kind = INCREMENTAL_FETCH if version == FETCH_FIRST_REVISION else FULL_FETCH
        _fetch(node, version, FetchRequest(max_wait_ms=0, session_id=session_id, session_epoch=1, fetch_type=next_kind))
        taken = _held() - before
    finally:
        tracemalloc.stop()
    cached = node.broker.fetch_sessions.partitions_cached
    assert cached == partitions, f"the session caches {cached} of {partitions} partitions"
    return taken / partitions


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _fetch(node: Node, version: int, request: FetchRequest) -> int:
    answer = _ask(node, ApiKey.FETCH, version, request)
    assert isinstance(answer, FetchResponse), "a fetch is answered"
    assert answer.error_code == 0, f"the fetch failed with error {answer.error_code}"
    return answer.session_id


def _ask(node: Node, api_key: ApiKey, version: int, body: object) -> object:
    tag = Tag(api_key, version, "meter")
    (reply,) = _settle(node, node.handle(_NOW, Request(_CONNECTION, 0, api_key, version, "meter", body, tag)))
    return reply.body


def _settle(node: Node, effects: Sequence[Effect]) -> list[Reply]:
    """Carries out what is due now, each sync at once, and returns the replies. Nothing that waits for later happens."""
    pending, replies = deque(effects), list[Reply]()
    while pending:
        effect = pending.popleft()
        event: Event | None = None
        if isinstance(effect, Reply):
            replies.append(effect)
        elif isinstance(effect, Sync):
            event = Synced(effect.token)
        elif isinstance(effect, SetTimer) and effect.deadline_us <= _NOW.mono_us:
            event = TimerFired(effect.timer)
        if event is not None:
            pending.extend(node.handle(_NOW, event))
    return replies
