"""Several nodes in virtual time: requests between them go through the codecs and arrive a moment later.

Links can be cut, nodes killed (with or without their unsynced data), stopped and restarted. All events are in one
queue, ordered by time.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from reference_broker.apis.registry import SERVED
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.effect_ports import store_event
from reference_broker.core.events import (
    Close,
    Closed,
    Effect,
    Event,
    Note,
    PeerDown,
    PeerReply,
    PeerUp,
    Reply,
    Request,
    Send,
    SetTimer,
    StoreCall,
    Sync,
    Synced,
    TimerFired,
)
from reference_broker.core.node import Node
from reference_broker.core.tests.node_world import START_WALL_MS, batch
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.store import MemoryStore
from reference_broker.replication.partition_directories import directory_of
from reference_broker.replication.partitions import Partition
from reference_broker.serve.request_decoder import decode
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.messages import decode_response, encode_request, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.tags import Tag

LINK_US = 100
"""From one node to another."""
DISK_US = 50
STORE_US = 200
LOCAL = 1 << 20
"""Connections of the test itself have greater numbers."""


@dataclass
class Link:
    """One connection from a node to another: requests in order, one being served at a time."""

    peer: int
    channel: Any
    number: int
    waiting: deque[tuple[int, Send]] = field(default_factory=deque)
    """With the time at which each arrives."""
    served: Send | None = None


@dataclass
class Member:
    node: Node
    disk: MemoryDisk
    notes: list[Note] = field(default_factory=list)
    links: dict[tuple[int, Any], Link] = field(default_factory=dict)
    """To others, by peer and channel."""
    alive: bool = True


class ClusterWorld:
    """``replies``: of the test's own requests, by correlation ID. ``sends``: all requests between nodes.
    ``store``: the object store of all nodes."""

    def __init__(self, nodes: int = 3, **config: str) -> None:
        self.mono_us = 0
        self.replies: dict[int, Any] = {}
        self.acks: dict[int, int] = {}
        """Of produce requests, by correlation ID."""
        self.sends: list[tuple[int, Send]] = []
        self.store = MemoryStore()
        self.cut: set[frozenset[int]] = set()
        self.slow: dict[Any, int] = {}
        """Channels whose messages take this many microseconds."""
        self.seeds = count(1)
        self._numbers = count()
        self._connections = count(1)
        self._correlation = count(LOCAL)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        voters = ",".join(f"{number}@node-{number}:9092" for number in range(nodes))
        self.config = {
            "controller.quorum.voters": voters,
            "crucible.cluster.id": "cluster",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        self.disks = [MemoryDisk() for _ in range(nodes)]
        self.members: dict[int, Member] = {}
        for number in range(nodes):
            self.start(number)

    @property
    def now(self) -> Now:
        return Now(self.mono_us, START_WALL_MS + self.mono_us // 1000)

    # Life

    def start(self, number: int, **config: str) -> None:
        pairs = self.config | {key.replace("_", "."): value for key, value in config.items()}
        disk = self.disks[number]
        node = Node(number, BrokerConfig.parse(pairs), disk, next(self.seeds), f"node-{number}", 9092)
        self.members[number] = member = Member(node, disk)
        self._take(member, node.start(self.now))

    def kill(self, number: int) -> None:
        """Kill the process: its writes stay on the disk."""
        member = self.members[number]
        member.alive = False
        for other in self.members.values():
            for key in [key for key in other.links if key[0] == number]:
                self._break(other, key)
        for key in list(member.links):
            self._break(member, key)

    def shut_down(self, number: int) -> None:
        member = self.members[number]
        self._take(member, member.node.shutdown(self.now))
        self.run_until(lambda: member.node.stopped)
        self.kill(number)

    def sever(self, one: int, other: int) -> None:
        self.cut.add(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            for key in [key for key in self.members[here].links if key[0] == there]:
                self._break(self.members[here], key)

    def heal(self) -> None:
        self.cut.clear()

    # Time

    def run_until(self, done: Callable[[], bool], limit_ms: int = 60_000) -> None:
        end_us = self.mono_us + limit_ms * 1000
        while not done():
            assert self._queue, "nothing happens any more"
            assert self._queue[0][0] <= end_us, "it did not come to that"
            self._step()

    def run(self, ms: int) -> None:
        end_us = self.mono_us + ms * 1000
        while self._queue and self._queue[0][0] <= end_us:
            self._step()
        self.mono_us = end_us

    def _step(self) -> None:
        due_us, _, work = heapq.heappop(self._queue)
        self.mono_us = max(self.mono_us, due_us)
        work()

    def _later(self, after_us: int, work: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.mono_us + after_us, next(self._numbers), work))

    # Actions of the test

    def ready(self) -> None:
        self.run_until(lambda: all(member.node.ready for member in self.members.values() if member.alive))

    def request(self, number: int, api_key: int, api_version: int, body: object, client_id: str = "client") -> Any:
        """Return the response, after the time that it takes."""
        token = self.send(number, api_key, api_version, body, client_id)
        self.run_until(lambda: token in self.replies)
        return self.replies[token]

    def send(self, number: int, api_key: int, api_version: int, body: object, client_id: str = "client") -> int:
        token = next(self._correlation)
        tag = Tag(api_key, api_version, client_id)
        self._give(self.members[number], Request(token, token, api_key, api_version, client_id, body, tag))
        return token

    def create(
        self,
        topic: str,
        partitions: int = 1,
        replicas: int = 3,
        at: int | None = None,
        client_id: str = "client",
        **configs: str,
    ) -> Any:
        """Send CreateTopics to the broker ``at``, or to the active controller."""
        settings = tuple(
            CreatableTopicConfig(name=key.replace("_", "."), value=config) for key, config in configs.items()
        )
        wanted = CreatableTopic(
            name=TopicName(topic),
            num_partitions=i32(partitions),
            replication_factor=i16(replicas),
            assignments=(),
            configs=settings,
        )
        timeout = i32Timedelta.parse(timedelta(seconds=5))
        request = CreateTopicsRequest(topics=(wanted,), timeout=timeout, validate_only=False)
        broker = self.controller if at is None else at
        response = self.request(broker, ApiKey.CREATE_TOPICS, 7, request, client_id).topics[0]
        if response.error_code != 0:
            return response
        self.run_until(lambda: all(topic in each.node.broker.loader.image.topics for each in self.living))
        return response

    def produce(self, topic: str, value: bytes = b"value", index: int = 0, acks: int = -1, **how: int) -> Any:
        """Produce at the leader. Return the response of the partition."""
        return self.replies_of(self.send_produce(topic, value, index, acks, **how))

    def send_produce(self, topic: str, value: bytes = b"value", index: int = 0, acks: int = -1, **how: int) -> int:
        return self.produce_at(self.leader(topic, index), topic, value, index, acks, **how)

    def produce_at(
        self, number: int, topic: str, value: bytes = b"value", index: int = 0, acks: int = -1, **how: int
    ) -> int:
        written = [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(index, batch(value, **how))])]
        token = self.send(number, ApiKey.PRODUCE, 9, ProduceRequest(acks, 3000, written))
        self.acks[token] = acks
        return token

    def replies_of(self, token: int) -> Any:
        self.run_until(lambda: token in self.replies)
        return self.replies[token].responses[0].partitions[0]

    # State for the test

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    @property
    def controller(self) -> int:
        return next(n for n, member in self.members.items() if member.alive and member.node.broker.controller.is_active)

    def state(self, topic: str, index: int = 0) -> Any:
        """Return the partition's state at the newest live node."""
        images = [each.node.broker.loader.image for each in self.living]
        return max(images, key=lambda image: image.provenance.offset).topics[topic].partitions[index]

    def leader(self, topic: str, index: int = 0) -> int:
        return int(self.state(topic, index).leader)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.members[self.leader(topic, index)].node.broker.partitions.by_name[topic, index]

    def log(self, number: int, topic: str, index: int = 0) -> Any:
        """Return the log of the replica there, leading or not."""
        wanted = directory_of(topic, index)
        return next(log for log in self.members[number].node.logs() if log.directory == wanted)

    def bytes_of(self, number: int, topic: str, index: int = 0) -> bytes:
        log = self.log(number, topic, index)
        return b"".join(log.disk.read(segment.path, 0, segment.size_bytes) for segment in log.segments)

    def notes(self, what: str) -> list[dict[str, int | str]]:
        return [dict(note.fields) for member in self.members.values() for note in member.notes if note.what == what]

    # Effects

    def _give(self, member: Member, event: Event) -> None:
        if member.alive:
            self._take(member, member.node.handle(self.now, event))

    def _take(self, member: Member, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(member, effect)
                case Reply():
                    self._reply(effect)
                case Close():
                    self._closed(effect.connection)
                case Sync():
                    self._later(DISK_US, lambda token=effect.token: self._give(member, Synced(token)))  # type: ignore[misc]
                case StoreCall():
                    self._later(STORE_US, lambda call=effect: self._store(member, call))  # type: ignore[misc]
                case SetTimer():
                    after_us = max(0, effect.deadline_us - self.mono_us)
                    self._later(after_us, lambda timer=effect.timer: self._give(member, TimerFired(timer)))  # type: ignore[misc]
                case Note():
                    member.notes.append(effect)

    def _store(self, member: Member, call: StoreCall) -> None:
        if member.alive:
            self._give(member, store_event(call.token, self.store.carry_out(call.operation, member.disk)))

    def _number_of(self, member: Member) -> int:
        return next(number for number, each in self.members.items() if each is member)

    def _send(self, member: Member, effect: Send) -> None:
        here = self._number_of(member)
        self.sends.append((here, effect))
        key = (effect.peer, effect.channel)
        if not self._reachable(here, effect.peer):
            self._later(20_000, lambda: self._give(member, PeerDown(*key)))
            return
        link = member.links.get(key)
        if link is None:
            link = member.links[key] = Link(effect.peer, effect.channel, next(self._connections))
            self._later(LINK_US, lambda: self._give(member, PeerUp(*key)))
        after_us = max(self.link_us(here, *key), link.waiting[-1][0] - self.mono_us if link.waiting else 0)
        link.waiting.append((self.mono_us + after_us, effect))
        self._later(after_us, lambda: self._serve(member, link))

    def link_us(self, here: int, there: int, channel: Any) -> int:  # noqa: ARG002 - a test may want to know
        """Return the time that a request, or its response, takes from one node to another."""
        return self.slow.get(channel, LINK_US)

    def _reachable(self, here: int, there: int) -> bool:
        other = self.members.get(there)
        return other is not None and other.alive and other.node.listening and frozenset((here, there)) not in self.cut

    def _serve(self, member: Member, link: Link) -> None:
        if link.served is not None or member.links.get((link.peer, link.channel)) is not link:
            return
        if not link.waiting or link.waiting[0][0] > self.mono_us:
            return
        link.served = request = link.waiting.popleft()[1]
        frame = b"".join(
            encode_request(request.api_key, request.api_version, request.token, request.client_id, request.body)
        )
        self._give(self.members[link.peer], decode(link.number, memoryview(frame)[4:], SERVED))

    def _reply(self, effect: Reply) -> None:
        if effect.connection >= LOCAL:
            self.replies[effect.correlation_id] = effect.body
            return
        for requester in self.members.values():
            for link in requester.links.values():
                if link.number == effect.connection and link.served is not None:
                    self._deliver(requester, link, effect)
                    return

    def _deliver(self, requester: Member, link: Link, effect: Reply) -> None:
        frame = b"".join(
            bytes(each)
            for each in encode_response(effect.api_key, effect.api_version, effect.correlation_id, effect.body)
        )
        request = link.served
        assert request is not None

        def arrive() -> None:
            if requester.links.get((link.peer, link.channel)) is not link:
                return
            link.served = None
            _, body = decode_response(request.api_key, request.api_version, memoryview(frame)[4:])
            self._give(requester, PeerReply(link.peer, link.channel, request.token, body))
            self._serve(requester, link)

        self._later(self.link_us(link.peer, self._number_of(requester), link.channel), arrive)

    def _closed(self, connection: int) -> None:
        """Close the connection on the side of the serving node."""
        if connection >= LOCAL:
            return
        for requester in list(self.members.values()):
            for key, link in list(requester.links.items()):
                if link.number == connection:
                    self._break(requester, key)

    def _break(self, member: Member, key: tuple[int, Any]) -> None:
        link = member.links.pop(key)
        self._later(20_000, lambda: self._give(member, PeerDown(*key)))
        self._later(LINK_US, lambda: self._give(self.members[link.peer], Closed(link.number)))
