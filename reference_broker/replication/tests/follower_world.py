"""Followers without leaders: real logs on a disk in memory. The test sends the leader's responses and sets the time.

Node 2 follows; nodes 1 and 3 lead. Its requests wait in ``sent``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.list_offsets.v10.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build
from reference_broker.replication.follower.fetcher import ReplicaFetcherManager
from reference_broker.replication.follower.followed import FetchLag
from reference_broker.replication.tests.timed_ports import START_MS, TimedPorts
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopicResponse, PartitionData

BROKER_EPOCH = 77
TOPIC_ID = b"t" * 16


class SentRequest(NamedTuple):
    peer: int
    api_key: int
    api_version: int
    body: Any
    replied: Callable[[object], None]
    failed: Callable[[], None]


@dataclass
class FollowerWorld(TimedPorts):
    """``moved``: logs whose high watermark the fetchers moved. ``changed``: indexes of partitions whose change was
    reported to consumers."""

    settings: dict[str, str] = field(default_factory=dict)
    sent: list[SentRequest] = field(default_factory=list)
    moved: list[UnifiedLog] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    broker_epoch: int = BROKER_EPOCH
    hold_syncs: bool = False
    syncs: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = MemoryDisk()
        self.logs: dict[int, UnifiedLog] = {}
        ports: Any = self
        config = BrokerConfig.parse(self.settings)
        self.max_lag = Gauge()
        self.fetchers = ReplicaFetcherManager(
            ports,
            2,
            config,
            lambda: self.broker_epoch,
            self.moved.append,
            FetchLag(self.max_lag),
            lambda one: self.changed.append(one.name.partition),
        )
        self.session_id = 1000

    # ports

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        assert paths
        if self.hold_syncs:
            self.syncs.append(done)
        else:
            done()

    def send(
        self,
        peer: int,
        channel: object,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        del channel, timeout_ms
        self.sent.append(SentRequest(peer, api_key, api_version, body, replied, failed))

    # roles

    def follow(
        self, index: int = 0, leader: int = 1, epoch: int = 0, records: int = 0, epochs: tuple[int, ...] = ()
    ) -> UnifiedLog:
        """``records``: number of records in its log before, of ``epochs`` in turn (otherwise of epoch 0)."""
        log = self.logs.get(index)
        if log is None:
            log = self.logs[index] = run_to_end(open_log(self.disk, f"t-{index}", LogConfig(), self.now(), True))
            log.topic_id = TOPIC_ID
            for offset in range(records):
                log.append_replicated(self.now(), one_record(offset, epochs[offset] if epochs else 0))
        state = PartitionImage((leader, 2), (leader, 2), leader, epoch, epoch)
        topic = TopicImage("t", TOPIC_ID, (state,) * (index + 1))
        self.fetchers.follows(topic, index, state, log)
        return log

    # the leader

    def only_request(self, api_key: int = ApiKey.FETCH, leader: int = 1) -> SentRequest:
        """Return the only request without a response."""
        self.pass_ms(1)
        assert len(self.sent) == 1, self.sent
        sent = self.sent.pop()
        assert (sent.peer, sent.api_key) == (leader, api_key), sent
        return sent

    def fetch(self, leader: int = 1) -> tuple[SentRequest, FetchRequest]:
        sent = self.only_request(ApiKey.FETCH, leader)
        return sent, sent.body

    def respond(self, sent: SentRequest, *data: PartitionData, error: int = 0) -> None:
        """Respond within the session. A full request opens one, and its response has all partitions that it names."""
        request = sent.body
        if request.session_epoch == 0 and not data:
            data = tuple(PartitionData(each.partition, 0, 0, log_start_offset=0) for each in named(request))
        if request.session_epoch == 0:
            self.session_id += 1
        session_id = 0 if error else self.session_id
        topics = [FetchTopicResponse("", TOPIC_ID, list(data))] if data else []
        sent.replied(FetchResponse(error, session_id, topics))

    def notes_of(self, what: str) -> list[dict[str, int | str]]:
        return [fields for note, fields in self.notes if note == what]


def named(request: FetchRequest) -> list[FetchPartition]:
    return [partition for topic in request.topics for partition in topic.partitions]


def one_record(offset: int, epoch: int = 0, value: bytes = b"v") -> bytes:
    return bytes(build([Record(timestamp_ms=START_MS, value=value)], base_offset=offset, leader_epoch=epoch))


def records(index: int, first: int, count: int, high_watermark: int, epoch: int = 0) -> PartitionData:
    data = b"".join(one_record(offset, epoch) for offset in range(first, first + count))
    return PartitionData(index, ErrorCode.none, high_watermark, log_start_offset=0, records=data)


def offsets(offset: int) -> object:
    one = ListOffsetsPartitionResponse(partition_index=i32(0), error_code=ErrorCode.none, offset=i64(offset))
    topic = ListOffsetsTopicResponse(name=TopicName("t"), partitions=(one,))
    return ListOffsetsResponse(throttle_time=i32Timedelta.parse(timedelta(0)), topics=(topic,))
