"""A small broker with virtual time, for behaviours: one node, correct sessions, and faults on request."""

import heapq
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.list_offsets.v10.request import ListOffsetsRequest
from kio.schema.list_offsets.v10.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, ProducerId
from kio.static.primitive import i8, i16, i32, i64

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import (
    Address,
    Behaviour,
    ClientSettings,
    Connect,
    Connected,
    ConnectFailed,
    Disconnect,
    Disconnected,
    Finished,
    FleetAction,
    FleetEvent,
    Now,
    Record,
    Request,
    ResponseReceived,
    Started,
    Stopping,
    TimedOut,
    TopicPartition,
    Wake,
    Woken,
)
from bench.fleet.recorder import MemorySink, Recorder
from reference_broker.client.session_handler import LAST_VERSION_BY_NAME
from reference_broker.records.batch import UNPATCHED_FROM, patched_prefix, read_header
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.retired_fields import MetadataRequest, MetadataResponse

ADDRESS = Address("node-0", 9092)
NOT_LEADER = 6
TICK_US = 1_000


@dataclass
class FakeLog:
    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    start: int = 0
    readable_end: int = 1 << 63
    """Offsets from here on are out of reach, as remote segments may be."""
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def append(self, data: bytes) -> tuple[int, int]:
        """(error, base offset), with the sequence check of an idempotent producer."""
        header = read_header(data)
        if header.producer_id >= 0:
            known = self.sequences.setdefault(header.producer_id, [])
            for first, last, offset in known:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return 0, offset
            expected = known[-1][1] + 1 if known else 0
            if header.base_sequence != expected:
                return 45, -1
            known.append((header.base_sequence, header.last_sequence, self.end))
        base = self.end
        self.batches.append(patched_prefix(header, base, 0) + data[UNPATCHED_FROM:])
        self.end += header.record_count
        return 0, base

    def read(self, offset: int) -> bytes:
        return b"".join(batch for batch in self.batches if offset <= read_header(batch).last_offset < self.readable_end)


def described(body: DescribeConfigsRequest, configs: Mapping[str, Mapping[str, str | None]]) -> DescribeConfigsResponse:
    """Respond with all settings of the topics. The others are unknown."""
    return DescribeConfigsResponse(
        throttle_time=bodies.milliseconds(0),
        results=tuple(
            DescribeConfigsResult(
                error_code=ErrorCode.none if name in configs else ErrorCode.unknown_topic_or_partition,
                error_message=None,
                resource_type=i8(2),
                resource_name=name,
                configs=tuple(
                    DescribeConfigsResourceResult(
                        name=key, value=value, read_only=False, is_sensitive=False, synonyms=(), documentation=None
                    )
                    for key, value in configs.get(name, {}).items()
                ),
            )
            for name in (resource.resource_name for resource in body.resources)
        ),
    )


@dataclass
class FakeSession:
    epoch: int
    partitions: dict[TopicPartition, list[int]]


class FakeBroker:
    """``requests``: all that came, in order. Producers and fetchers see one node that leads everything, or those that
    ``leaders`` names; they share all state. ``redirects``: a node that gets a request for another's partition names its
    leader."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.ids = {name: uuid.UUID(int=number + 1) for number, name in enumerate(topics)}
        self.logs = {TopicPartition(name, number): FakeLog() for name, n in topics.items() for number in range(n)}
        self.sessions: dict[int, FakeSession] = {}
        self.requests: list[Request] = []
        self.next_id = 100
        self.errors: dict[TopicPartition, int] = {}
        self.leaders = dict.fromkeys(self.logs, 0)
        self.epochs = dict.fromkeys(self.logs, 0)
        self.elsewhere: dict[TopicPartition, int] = {}
        self.redirects = False
        self.nodes = {0}
        self.by_name = False
        self.unknown: set[str] = set()
        self.configs: dict[str, dict[str, str | None]] = {}

    def move(self, partition: TopicPartition, node: int) -> None:
        self.leaders[partition] = node
        self.epochs[partition] += 1

    def hint(self, partition: TopicPartition) -> LeaderIdAndEpoch | None:
        found = self.redirects and partition in self.elsewhere
        return LeaderIdAndEpoch(self.leaders[partition], self.epochs[partition]) if found else None

    def handle_at(self, node: int, request: Request) -> object:
        """Partitions that another node leads are refused."""
        self.nodes |= {*self.leaders.values()}
        self.elsewhere = {partition: NOT_LEADER for partition, leader in self.leaders.items() if leader != node}
        return self.handle(request)

    def handle(self, request: Request) -> object:
        self.requests.append(request)
        self.by_name = request.api_version <= LAST_VERSION_BY_NAME
        responses: dict[int, Callable[[Any], object]] = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FETCH: self.fetch,
            ApiKey.PRODUCE: self.produce,
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DESCRIBE_CONFIGS: lambda body: described(body, self.configs),
        }
        return responses[request.api_key](request.body)

    def name(self, topic_id: bytes) -> str:
        return next(name for name, each in self.ids.items() if each.bytes == topic_id)

    def metadata(self, body: MetadataRequest) -> MetadataResponse:
        wanted = [topic.name for topic in body.topics or ()]
        return MetadataResponse(
            throttle_time=bodies.milliseconds(0),
            brokers=tuple(
                MetadataResponseBroker(node_id=BrokerId(node), host=f"node-{node}", port=i32(ADDRESS.port), rack=None)
                for node in sorted(self.nodes)
            ),
            cluster_id="x",
            controller_id=BrokerId(0),
            error_code=ErrorCode.none,
            topics=tuple(
                MetadataResponseTopic(
                    error_code=ErrorCode.unknown_topic_or_partition if name in self.unknown else ErrorCode.none,
                    name=name,
                    topic_id=self.ids[name],
                    is_internal=False,
                    partitions=tuple(
                        MetadataResponsePartition(
                            error_code=ErrorCode.none,
                            partition_index=i32(log.partition),
                            leader_id=BrokerId(self.leaders[log]),
                            leader_epoch=i32(self.epochs[log]),
                            replica_nodes=(BrokerId(0),),
                            isr_nodes=(BrokerId(0),),
                            offline_replicas=(),
                        )
                        for log in self.logs
                        if log.topic == name and name not in self.unknown
                    ),
                    topic_authorized_operations=i32(0),
                )
                for name in wanted
                if name in self.ids
            ),
        )

    def create_topics(self, body: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            throttle_time=bodies.milliseconds(0),
            topics=tuple(
                CreatableTopicResult(
                    name=topic.name,
                    topic_id=self.ids[topic.name],
                    error_code=ErrorCode.topic_already_exists,
                    error_message=None,
                    configs=(),
                )
                for topic in body.topics
            ),
        )

    def list_offsets(self, body: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            throttle_time=bodies.milliseconds(0),
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=partition.partition_index,
                            error_code=ErrorCode(self.elsewhere.get(topic_partition, 0)),
                            offset=i64(
                                self.logs[topic_partition].end
                                if partition.timestamp == bodies.LATEST
                                else self.logs[topic_partition].start
                            ),
                        )
                        for partition in topic.partitions
                        for topic_partition in (TopicPartition(topic.name, partition.partition_index),)
                    ),
                )
                for topic in body.topics
            ),
        )

    def init_producer_id(self, _: InitProducerIdRequest) -> InitProducerIdResponse:
        self.next_id += 1
        return InitProducerIdResponse(
            throttle_time=bodies.milliseconds(0),
            error_code=ErrorCode.none,
            producer_id=ProducerId(self.next_id),
            producer_epoch=i16(0),
        )

    def produce(self, body: ProduceRequest) -> ProduceResponse:
        responses = []
        for topic in body.topics:
            name = topic.topic or self.name(topic.topic_id)
            parts = []
            for partition in topic.partitions:
                where = TopicPartition(name, partition.partition)
                refused = self.elsewhere.get(where, self.errors.get(where))
                error, base = (refused, -1) if refused else self.logs[where].append(bytes(partition.records or b""))
                parts.append(
                    ProducePartitionResponse(partition.partition, error, base, current_leader=self.hint(where))
                )
            responses.append(ProduceTopicResponse(name, topic.topic_id, parts))
        return ProduceResponse(responses)

    def fetch(self, body: FetchRequest) -> FetchResponse:
        named = {
            TopicPartition(topic.topic or self.name(topic.topic_id), partition.partition): [partition.fetch_offset, -1]
            for topic in body.topics
            for partition in topic.partitions
        }
        if body.session_epoch <= 0:
            self.sessions.pop(body.session_id, None)
            session_id = 0
            if body.session_epoch == 0:
                self.next_id += 1
                session_id = self.next_id
                self.sessions[session_id] = FakeSession(1, named)
            return FetchResponse(0, session_id, self.topics_of(named, full=True))
        session = self.sessions.get(body.session_id)
        if session is None:
            return FetchResponse(70)
        if body.session_epoch != session.epoch:
            return FetchResponse(71)
        session.epoch += 1
        session.partitions.update(named)
        for topic in body.forgotten:
            for partition in topic.partitions:
                session.partitions.pop(TopicPartition(topic.topic or self.name(topic.topic_id), partition), None)
        return FetchResponse(0, body.session_id, self.topics_of(session.partitions, full=False))

    def topics_of(self, partitions: dict[TopicPartition, list[int]], full: bool) -> list[FetchTopicResponse]:
        topics: dict[str, list[PartitionData]] = {}
        for partition, state in partitions.items():
            log, (offset, sent) = self.logs[partition], state
            is_out = offset < log.start or offset > log.end or offset >= log.readable_end
            error = 1 if is_out else self.errors.get(partition, 0)
            error = self.elsewhere.get(partition, error)
            records = b"" if error else log.read(offset)
            if full or records or error or sent != log.end:
                data = PartitionData(
                    partition.partition,
                    error,
                    -1 if error else log.end,
                    log_start_offset=log.start,
                    records=records,
                    current_leader=self.hint(partition),
                )
                topics.setdefault(partition.topic, []).append(data)
            state[1] = -1 if error else log.end
        if self.by_name:
            return [FetchTopicResponse(name, NO_TOPIC_ID, parts) for name, parts in topics.items()]
        return [FetchTopicResponse("", self.ids[name].bytes, parts) for name, parts in topics.items()]


class FleetWorld:
    """Virtual time for any number of behaviours. ``fault(request)`` says what happens to a request: None,
    ``lose_request`` (never processed), ``lose_response`` (processed, no response), ``cut`` (processed, closed).
    ``proxied``: connections to a node that is down are accepted, then closed."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.fault: Callable[[Request], str | None] = lambda _: None
        self.refuse_until_us = 0
        self.down: set[int] = set()
        self.proxied = False
        self.now_us = 1_000_000
        self.sink = MemorySink()
        self.recorder = Recorder(self.sink, "world")
        self.finished: set[str] = set()
        self._queue: list[tuple[int, int, Behaviour, FleetEvent]] = []
        self._number = count()
        self.at_node: dict[tuple[str, int], int] = {}

    def now(self) -> Now:
        return Now(self.now_us, self.now_us // 1000)

    def start(self, *behaviours: Behaviour) -> None:
        for behaviour in behaviours:
            self.at(self.now_us, behaviour, Started())

    def stop(self, *behaviours: Behaviour) -> None:
        for behaviour in behaviours:
            self.at(self.now_us, behaviour, Stopping())

    def at(self, at_us: int, behaviour: Behaviour, event: FleetEvent) -> None:
        heapq.heappush(self._queue, (at_us, next(self._number), behaviour, event))

    def run(self, seconds: float) -> None:
        end_us = self.now_us + int(seconds * 1_000_000)
        while self._queue and self._queue[0][0] <= end_us:
            self.now_us, _, behaviour, event = heapq.heappop(self._queue)
            for action in behaviour.step(self.now(), event):
                self.carry_out(behaviour, action)
        self.now_us = end_us

    def carry_out(self, behaviour: Behaviour, action: FleetAction) -> None:
        soon = self.now_us + TICK_US
        if isinstance(action, Record):
            self.recorder.record(action.rows)
        elif isinstance(action, Wake):
            self.at(max(self.now_us, action.at_us), behaviour, Woken(action.channel))
        elif isinstance(action, Connect):
            node = self.at_node[behaviour.process, action.channel] = int(action.address.host.removeprefix("node-"))
            refused = self.now_us < self.refuse_until_us or (node in self.down and not self.proxied)
            self.at(soon, behaviour, ConnectFailed("refused", action.channel) if refused else Connected(action.channel))
        elif isinstance(action, Finished):
            self.finished.add(behaviour.process)
        elif isinstance(action, Request):
            self.send(behaviour, action)
        else:
            assert isinstance(action, Disconnect)

    def send(self, behaviour: Behaviour, request: Request) -> None:
        fate, channel = self.fault(request), request.channel
        node = self.at_node[behaviour.process, channel]
        if node in self.down:
            self.at(self.now_us + TICK_US, behaviour, Disconnected("closed", channel))
            return
        body = None if fate == "lose_request" else self.broker.handle_at(node, request)
        if fate in ("lose_request", "lose_response"):
            self.at(self.now_us + request.timeout_us, behaviour, TimedOut(channel))
        elif fate == "cut":
            self.at(self.now_us + TICK_US, behaviour, Disconnected("closed", channel))
        else:
            self.respond(behaviour, body, channel)

    def respond(self, behaviour: Behaviour, body: object, channel: int = 0) -> None:
        self.at(self.now_us + TICK_US, behaviour, ResponseReceived(body, 10, 20, channel))

    def rows(self, table: str) -> list[Any]:
        self.recorder.write_out()
        return self.sink.tables.get(table, [])


@pytest.fixture
def settings() -> ClientSettings:
    return ClientSettings((ADDRESS,))


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker({"hot": 4, "idle": 2})


@pytest.fixture
def world(broker: FakeBroker) -> FleetWorld:
    return FleetWorld(broker)


@pytest.fixture
def random() -> Random:
    return Random(7)


def read_offsets(world: FleetWorld, process: str) -> dict[TopicPartition, list[int]]:
    """Per partition the offsets read, in order, by assignment."""
    found: dict[TopicPartition, list[int]] = {}
    for row in world.rows("runs"):
        if row.process == process and row.kind == "read":
            offsets = found.setdefault(TopicPartition(row.topic, row.partition), [])
            offsets.extend(range(row.first_offset, row.first_offset + row.count))
    return found
