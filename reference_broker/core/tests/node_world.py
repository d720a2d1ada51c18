"""One node on a disk in memory. The test sends requests, reads responses, and lets syncs and timers run."""

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.effect_ports import store_event
from reference_broker.core.events import (
    Close,
    Closed,
    Effect,
    Reply,
    Request,
    SetTimer,
    StoreCall,
    Sync,
    Synced,
    SyncFailed,
    TimerFired,
)
from reference_broker.core.node import Node
from reference_broker.ports.disk import Disk, DiskError, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.store import MemoryStore
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag

START_WALL_MS = 1_700_000_000_000
A_SECOND = i32Timedelta.parse(timedelta(seconds=1))


_SEEDS = count(1000)
"""Each start is another incarnation, so it draws from another seed, unless a test gives one."""


class NodeWorld:
    """``hold_syncs``: syncs complete only by ``complete_syncs``. ``effects``: all effects of the node so far.
    ``store`` is the object store, whose calls wait in ``store_calls`` for their turn."""

    def __init__(
        self, disk: Disk | None = None, *, node_id: int = 1, seed: int | None = None, start: bool = True, **config: str
    ) -> None:
        self.disk: Any = MemoryDisk() if disk is None else disk
        pairs = {key.replace("_", "."): value for key, value in config.items()}
        self.node = Node(node_id, BrokerConfig.parse(pairs), self.disk, next(_SEEDS) if seed is None else seed)
        self.mono_us = 0
        self.hold_syncs = False
        self.effects: list[Effect] = []
        self.replies: dict[int, Reply] = {}
        self.closed: dict[int, str] = {}
        self.syncs: deque[tuple[int, Any]] = deque()
        self.timers: list[tuple[int, int]] = []
        self.store = MemoryStore()
        self.store_calls: deque[StoreCall] = deque()
        self.correlation_id = 0
        if start:
            self.start()
            self.settle_until(lambda: self.node.ready)

    @property
    def now(self) -> Now:
        return Now(self.mono_us, START_WALL_MS + self.mono_us // 1000)

    def start(self) -> None:
        self._take(self.node.start(self.now))

    def shut_down(self) -> None:
        self._take(self.node.shutdown(self.now))

    def give(self, event: Any) -> None:
        self._take(self.node.handle(self.now, event))

    def send(self, api_key: int, api_version: int, body: object, connection: int = 1) -> int:
        """Send a request. Return its correlation ID."""
        self.correlation_id += 1
        tag = Tag(api_key, api_version, "client")
        self.give(Request(connection, self.correlation_id, api_key, api_version, "client", body, tag))
        return self.correlation_id

    def request(self, api_key: int, api_version: int, body: object, connection: int = 1) -> Any:
        """Return the response's body, after every sync and due timer that it needs."""
        number = self.send(api_key, api_version, body, connection)
        self.settle()
        assert number in self.replies, "no response"
        return self.replies[number].body

    def close(self, connection: int) -> None:
        self.give(Closed(connection))

    def step(self) -> bool:
        """Run one sync, one call of the store or one due timer. Return False if there is nothing to do now."""
        if self.syncs and not self.hold_syncs:
            self.complete_sync()
            return True
        if self.store_calls:
            self.complete_store_call()
            return True
        return self.fire_due()

    def settle(self) -> None:
        while self.step():
            pass

    def settle_until(self, done: Callable[[], bool], limit_ms: int = 10_000) -> None:
        """Run until done. Where there is nothing to do, time passes from timer to timer."""
        end_us = self.mono_us + limit_ms * 1000
        self.settle()
        while not done() and self.timers and min(self.timers)[0] <= end_us:
            self.mono_us = max(self.mono_us, min(self.timers)[0])
            self.settle()

    def complete_sync(self) -> None:
        token, synced = self.syncs.popleft()
        try:
            if synced is not None:
                self.disk.finish_sync(synced)
        except DiskError as failure:
            self.give(SyncFailed(token, str(failure)))
        else:
            self.give(Synced(token))

    def complete_store_call(self) -> None:
        call = self.store_calls.popleft()
        self.give(store_event(call.token, self.store.carry_out(call.operation, self.disk)))

    def complete_syncs(self) -> None:
        """Complete all syncs, also those caused by a completed one, and run the timers due between them."""
        while self.syncs or self.fire_due():
            if self.syncs:
                self.complete_sync()

    def fire_due(self) -> bool:
        """Fire the timer that is due longest, if any."""
        due = [timer for timer in self.timers if timer[0] <= self.mono_us]
        if due:
            self.timers.remove(min(due))
            self.give(TimerFired(min(due)[1]))
        return bool(due)

    def advance(self, ms: int) -> None:
        """Let time pass, and fire timers in their order."""
        end_us = self.mono_us + ms * 1000
        self.settle()
        while self.timers and min(self.timers)[0] <= end_us:
            self.mono_us = max(self.mono_us, min(self.timers)[0])
            self.settle()
        self.mono_us = end_us

    def _take(self, effects: Any) -> None:
        self.effects.extend(effects)
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.correlation_id not in self.replies, "a second response"
                    self.replies[effect.correlation_id] = effect
                case Close():
                    self.closed[effect.connection] = effect.reason
                case Sync():
                    begin = getattr(self.disk, "begin_sync", None)
                    self.syncs.append((effect.token, None if begin is None else begin(effect.paths)))
                case StoreCall():
                    self.store_calls.append(effect)
                case SetTimer():
                    self.timers.append((effect.deadline_us, effect.timer))

    # Requests as clients send them

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        return self.request(ApiKey.CREATE_TOPICS, 7, create_request(name, partitions, **configs)).topics[0]

    def delete(self, name: str) -> Any:
        return self.request(ApiKey.DELETE_TOPICS, 6, delete_request(name)).responses[0]

    def producer_id(self) -> int:
        body = InitProducerIdRequest(
            transactional_id=None, transaction_timeout=i32Timedelta.parse(timedelta(minutes=1))
        )
        return int(self.request(ApiKey.INIT_PRODUCER_ID, 4, body).producer_id)

    def produce(self, topic: str, index: int, batch: bytes, acks: int = -1) -> Any:
        body = self.request(ApiKey.PRODUCE, 9, produce_request(topic, index, batch, acks))
        return None if body is None else body.responses[0].partitions[0]

    def log(self, topic: str, index: int = 0) -> Any:
        return self.node.broker.partitions.by_name[topic, index].log


def create_request(name: str, partitions: int = 1, **configs: str) -> CreateTopicsRequest:
    settings = tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items())
    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        assignments=(),
        configs=settings,
    )
    return CreateTopicsRequest(topics=(topic,), timeout=A_SECOND, validate_only=False)


def delete_request(name: str) -> DeleteTopicsRequest:
    state = DeleteTopicState(name=name, topic_id=None)  # type: ignore[arg-type]
    return DeleteTopicsRequest(topics=(state,), timeout=A_SECOND)


def produce_request(topic: str, index: int, batch: bytes | None, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(acks, 1000, [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(index, batch)])])


def fetch_request(topic: str, index: int = 0, offset: int = 0, max_wait_ms: int = 500) -> FetchRequest:
    wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=max_wait_ms, topics=[FetchTopic(topic, NO_TOPIC_ID, [wanted])])


def batch(value: bytes = b"value", count: int = 1, **how: Any) -> bytes:
    records = [Record(timestamp_ms=START_WALL_MS, key=b"k", value=value) for _ in range(count)]
    return build(records, **how)


def sent_batch(producer_id: int, sequence: int, value: bytes = b"value") -> bytes:
    return batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
