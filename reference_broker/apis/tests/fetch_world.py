"""A broker of fakes around the fetch handlers: partitions with small logs, timers that the test fires, a trace."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

from reference_broker.apis.broker import Broker
from reference_broker.apis.records import k01_fetch
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import OffsetOutOfRange, UnifiedLog
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_slices, run_to_end
from reference_broker.records.record import Record, build
from reference_broker.replication.leader.purgatory import FollowerWaits
from reference_broker.replication.partitions import Partition, Partitions
from reference_broker.replication.tests.timed_ports import TimedPorts
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

LARGE = 1 << 20


@dataclass
class FakeBatch:
    base_offset: int
    last_offset: int
    epoch: int
    data: bytes


@dataclass
class FakeLog:
    """The part of a UnifiedLog that the handlers use. ``touches`` counts the calls; ``lso_hold``: an open
    transaction."""

    batches: list[FakeBatch] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    lso_hold: int | None = None
    here_from: int = 0
    """Records before it are in a remote tier only."""
    touches: int = 0

    @property
    def local_log_start_offset(self) -> int:
        return max(self.here_from, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.lso_hold is None else min(self.lso_hold, self.high_watermark)

    @property
    def latest_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else -1

    def append(self, records: int, size_bytes: int, epoch: int) -> None:
        base = self.log_end_offset
        text = b"%d@%d." % (base, epoch)
        data = (text * (size_bytes // len(text) + 1))[:size_bytes]
        self.batches.append(FakeBatch(base, base + records - 1, epoch, data))
        self.log_end_offset = base + records

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        skips_empty: bool = False,  # noqa: ARG002 - no batch of this log is empty
    ) -> bytes:
        self.touches += 1
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
        found = b""
        for batch in self.batches:
            if batch.last_offset < offset or batch.base_offset >= end_offset:
                continue
            if len(found) + len(batch.data) > max_bytes and not (at_least_one and not found):
                break
            found += batch.data
        return found

    def aborted_among(self, offset: int, records: bytes) -> list[AbortedTransaction]:  # noqa: ARG002
        return []

    def bytes_between(self, offset: int, end_offset: int) -> int:
        self.touches += 1
        return sum(len(b.data) for b in self.batches if b.last_offset >= offset and b.base_offset < end_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        if not self.batches or epoch > self.latest_epoch:
            return EpochEndOffset(-1, -1)
        below = [batch for batch in self.batches if batch.epoch <= epoch]
        if not below:
            return EpochEndOffset(epoch, self.batches[0].base_offset)
        end = min((b.base_offset for b in self.batches if b.epoch > epoch), default=self.log_end_offset)
        return EpochEndOffset(below[-1].epoch, end)

    def truncate_to(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.log_end_offset = self.batches[-1].last_offset + 1 if self.batches else self.log_start_offset
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self.here_from = min(self.here_from, self.log_end_offset)

    def delete_records_before(self, offset: int) -> None:
        self.log_start_offset = offset
        self.batches = [batch for batch in self.batches if batch.last_offset >= offset]


@dataclass(slots=True, eq=False)
class FollowedPartition(Partition):
    """A partition that nodes 8 to 10 may read as followers. Their progress is not counted."""

    def is_followed_by(self, node_id: int) -> bool:
        return node_id in (8, 9, 10)


class FakeCall:
    """``responses``: at most one."""

    def __init__(self, connection: int, client_id: str, api_version: int) -> None:
        self.connection = connection
        self.client_id = client_id
        self.client_host = ""
        self.listener = ""
        self.api_version = api_version
        self.closed = False
        self.responses: list[Any] = []
        """Of whatever API the call is for."""
        self.forget: Callable[[], None] | None = None

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:  # noqa: ARG002
        if self.closed:
            return
        assert not self.responses, "two responses"
        self.closed = True
        self.responses.append(body)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_closed(self, forget: Callable[[], None]) -> None:
        self.forget = forget

    def run(self, work: Callable[[], object]) -> bool:
        """Run the work and let every exception reach the test."""
        work()
        return True

    def hang_up(self) -> None:
        self.closed = True
        forget, self.forget = self.forget, None
        if forget is not None:
            forget()

    @property
    def waiting(self) -> bool:
        return not self.responses and not self.closed

    @property
    def response(self) -> FetchResponse:
        assert self.responses, "no response yet"
        response: FetchResponse = self.responses[0]
        return response


@dataclass
class FetchWorld:
    """``slots``: of the session cache."""

    slots: int = 1000
    first_min_eviction_ms: int = 120_000
    max_bytes_limit: int = 57_671_680
    follower_bytes_limit: int = 10_485_760
    calls: list[FakeCall] = field(default_factory=list)
    log_of: Callable[[], Any] = FakeLog

    def __post_init__(self) -> None:
        self.ports = TimedPorts()
        self.metrics = Metrics()
        self.partitions = Partitions()
        self.controller: Any = SimpleNamespace(image=MetadataImage(brokers={7: registered(7), 8: registered(8)}))
        ports: Any = self.ports
        cache = FetchSessionCache(
            self.slots,
            Random(1),
            self.metrics,
            self.ports.note,
            run=lambda work: run_slices(ports, work),
        )
        config: Any = SimpleNamespace(
            fetch_max_bytes=self.max_bytes_limit,
            replica_fetch_response_max_bytes=self.follower_bytes_limit,
            remote_fetch_max_wait_ms=500,
            replica_selector_class="",
            min_incremental_fetch_session_eviction_ms=self.first_min_eviction_ms,
        )
        now = Now(1_000_000, 1_700_000_000_000)
        self.ports.be_at(now.mono_us)
        unused: Any = None
        replication: Any = SimpleNamespace(leaders=SimpleNamespace(waits=FollowerWaits(ports)))
        replica: Any = SimpleNamespace(controller=self.controller)
        self.broker = Broker(
            node_id=7,
            config=config,
            now=now,
            disk=unused,
            ports=ports,
            metrics=self.metrics,
            partitions=self.partitions,
            quorum_node=replica,
            fetch_sessions=cache,
            replication=replication,
            groups=unused,
            transactions=unused,
            markers=unused,
            verifier=unused,
        )

    @property
    def sessions(self) -> FetchSessionCache:
        return self.broker.fetch_sessions

    # topics

    def publish(
        self, topic: str, count: int, topic_id: bytes, leader: int = 7, replicas: tuple[int, ...] = (), epoch: int = 0
    ) -> list[Partition]:
        """Publish the metadata first: the partitions exist, but are not led here yet."""
        image, placed = self.controller.image, replicas or (leader,)
        images = tuple(PartitionImage(placed, placed, leader, epoch, 0) for _ in range(count))
        self._show({**image.topics, topic: TopicImage(topic, topic_id, images)})
        return [FollowedPartition(topic, topic_id, index, 0, self.log_of()) for index in range(count)]

    def unpublish(self, topic: str) -> None:
        self._show({name: one for name, one in self.controller.image.topics.items() if name != topic})

    def _show(self, topics: Mapping[str, TopicImage]) -> None:
        ids = {topic.topic_id: topic.name for topic in topics.values()}
        self.controller.image = replace(self.controller.image, topics=topics, topic_names=ids)

    def create(
        self, topic: str, count: int = 1, topic_id: bytes | None = None, led_here: bool = True
    ) -> list[Partition]:
        """Create a topic whose partitions are led by this node, or by node 8."""
        made = self.publish(topic, count, topic_id or topic.encode().rjust(16, b"#"), 7 if led_here else 8)
        for partition in made if led_here else []:
            self.partitions.add(partition)
        return made

    def delete(self, topic: str) -> None:
        self.unpublish(topic)
        for key in [key for key in self.partitions.by_name if key[0] == topic]:
            self.partitions.remove(self.partitions.by_name[key])

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.partitions.by_name[topic, index]

    def log(self, topic: str, index: int = 0) -> Any:
        """Return the log that ``log_of`` made."""
        return self.partition(topic, index).log

    def append(self, topic: str, index: int = 0, records: int = 1, size_bytes: int = 100, commit: bool = True) -> None:
        partition = self.partition(topic, index)
        self.log(topic, index).append(records, size_bytes, partition.leader_epoch)
        if commit:
            partition.log.high_watermark = partition.log.log_end_offset
        partition.changed()

    # time

    def pass_ms(self, ms: int) -> None:
        """Fire the timers that come due, in order."""
        end_us = self.broker.now.mono_us + ms * 1000
        while True:
            due = [(deadline, number) for number, (deadline, _) in self.ports.timers.items() if deadline <= end_us]
            if not due:
                break
            deadline, number = min(due)
            fire = self.ports.timers.pop(number)[1]
            self._be_at(max(deadline, self.broker.now.mono_us))
            fire()
        self._be_at(end_us)

    def _be_at(self, mono_us: int) -> None:
        wall_of = self.broker.now.wall_ms - self.broker.now.mono_us // 1000
        self.broker.now = Now(mono_us, wall_of + mono_us // 1000)
        self.ports.be_at(mono_us)

    def step_wall_clock(self, ms: int) -> None:
        self.broker.now = Now(self.broker.now.mono_us, self.broker.now.wall_ms + ms)

    # requests

    def send(self, request: FetchRequest, version: int = 12, client_id: str = "c", connection: int = 1) -> FakeCall:
        call = FakeCall(connection, client_id, version)
        self.calls.append(call)
        response = k01_fetch.handle(self.broker, call, request)
        if response is not None:
            call.respond(response)
        return call

    def fetch(
        self,
        session_id: int = 0,
        epoch: int = 0,
        wanted: Mapping[tuple[str, int], int | FetchPartition] | None = None,
        forget: Iterable[tuple[str, int]] = (),
        *,
        version: int = 12,
        max_wait_ms: int = 0,
        client_id: str = "c",
        **fields: Any,
    ) -> FakeCall:
        ids = {name: topic.topic_id for name, topic in self.controller.image.topics.items()}
        topics: list[FetchTopic] = []
        for (topic, index), what in (wanted or {}).items():
            one = what if isinstance(what, FetchPartition) else FetchPartition(index, what, LARGE)
            topics.append(FetchTopic(*named(topic, ids, version), [one]))
        forgotten = [ForgottenTopic(*named(topic, ids, version), [index]) for topic, index in forget]
        request = FetchRequest(
            session_id=session_id,
            session_epoch=epoch,
            max_wait_ms=max_wait_ms,
            topics=topics,
            forgotten=forgotten,
            **fields,
        )
        return self.send(request, version, client_id)

    def fetch_first(
        self,
        session_id: int = 0,
        number: int = 0,
        partitions: Mapping[tuple[str, int], int | FetchPartition] | None = None,
        **fields: Any,
    ) -> FakeCall:
        """Fetch in the first revision. Number 0 is a full request, unless ``fetch_type`` says otherwise."""
        fields.setdefault("fetch_type", FULL_FETCH if number == 0 else INCREMENTAL_FETCH)
        return self.fetch(session_id, number, partitions, version=1000, **fields)

    def open_session(self, partitions: Mapping[tuple[str, int], int | FetchPartition], **fields: Any) -> int:
        call = self.fetch(0, 0, partitions, **fields)
        self.pass_ms(0)  # a large one takes slices
        response = call.response
        assert response.error_code == 0
        return response.session_id


def named(topic: str, ids: Mapping[str, bytes], version: int) -> tuple[str, bytes]:
    return (topic, NO_TOPIC_ID) if not 13 <= version < 1000 else ("", ids.get(topic, topic.encode().rjust(16, b"#")))


def two_topics() -> FetchWorld:
    """Return a world with topics a, of three partitions, and b, of one."""
    world = FetchWorld()
    world.create("a", 3)
    world.create("b")
    return world


def id_of(world: FetchWorld, topic: str) -> bytes:
    image: MetadataImage = world.controller.image
    return image.topics[topic].topic_id


def registered(node: int) -> BrokerImage:
    return BrokerImage(node, node, bytes(16), f"host-{node}", 9000 + node, False)


def partitions_of(response: FetchResponse) -> dict[tuple[str | bytes, int], PartitionData]:
    """Return the partitions by topic name or ID and index, in the order of the response."""
    return {
        (topic.topic or topic.topic_id, data.partition): data
        for topic in response.responses
        for data in topic.partitions
    }


def names(response: FetchResponse) -> list[tuple[str | bytes, int]]:
    return list(partitions_of(response))


def real_log() -> UnifiedLog:
    """Return an empty log on a disk in memory."""
    return run_to_end(open_log(MemoryDisk(), "p-0", LogConfig(), Now(0, 0), clean=True))


def real_records(timestamps_ms: Iterable[int]) -> bytes:
    """Return one batch with a record for each time."""
    return build([Record(at, time_ms, b"k", b"v" * 20) for at, time_ms in enumerate(timestamps_ms)])
