"""Read and write ``__remote_log_metadata`` through the leaders of its partitions, of which this node may be one
(Kafka's ConsumerTask, ProducerManager).

``MetadataReader`` has at most one Fetch in flight to each leader, which is parked there until new events arrive. A
partition of the topic is read from the position of the least advanced of its watched partitions. A newly watched one is
read from the beginning, and the others skip what they have applied. A leader returns only replicated records, so an
applied event stays.

``MetadataWriter`` has at most one Produce in flight to each leader, with acks=all. An event whose response is lost, or
that gets a retriable error, is written again until it is read back. So it may be in the topic twice;
``RemoteLogMetadataCache`` applies it once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import NO_LEADER, MetadataImage, TopicImage
from reference_broker.ports.node_ports import Channel, Done, Ports, later
from reference_broker.ports.slicing import REMOTE_RECORDS_PER_SLICE, Sliced, run_slices
from reference_broker.records.batch import InvalidRecords, checked, iterate
from reference_broker.records.record import MAX_PLAIN_BYTES, Record, build, read_records
from reference_broker.remote_log.metadata.events import RemoteLogEvent, decode, encode
from reference_broker.remote_log.metadata.remote_log_metadata_cache import Applied, RemoteLogMetadataCache
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10 import request as request_schema
    from kio.schema.list_offsets.v10 import response as response_schema
else:
    request_schema = LazySchema("list_offsets.v10.request")
    response_schema = LazySchema("list_offsets.v10.response")


RETRY_US = 100_000
"""The pause after a request that failed."""

ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""Serves a request of this node itself: (API key, body, callback with the response)."""


@dataclass(frozen=True, slots=True)
class MetadataLeaders:
    """The way to the leaders of the partitions of ``__remote_log_metadata``."""

    ports: Ports
    node_id: int
    image: Callable[[], MetadataImage]
    """Returns the metadata as this node knows it."""
    serve_locally: ServeLocally
    request_timeout_ms: int

    @property
    def topic(self) -> TopicImage | None:
        return self.image().topics.get(REMOTE_LOG_METADATA_TOPIC)

    def leader_of(self, index: int) -> int | None:
        """Return the leader of a partition of the topic, or None if there is none."""
        image, topic = self.image(), self.topic
        if topic is None or index >= len(topic.partitions):
            return None
        leader = topic.partitions[index].leader
        return leader if leader != NO_LEADER and leader in image.brokers else None

    def send(
        self,
        leader: int,
        channel: Channel,
        api_key: ApiKey,
        body: object,
        replied: Callable[[object], None],
        failed: Done,
    ) -> None:
        """Send a request in its newest version. One of the two callbacks follows, in an event of its own."""
        if leader == self.node_id:
            later(self.ports, 0, partial(self.serve_locally, api_key, body, replied))
            return
        version = VERSIONS[api_key][1]
        self.ports.send(leader, channel, api_key, version, body, self.request_timeout_ms, replied, failed)


MAX_WAIT_MS: Final = 500
FETCH_BYTES: Final = 1 << 20
PARTITION_BYTES: Final = 256 << 10
EARLIEST: Final = -2
"""The special timestamp of ListOffsets."""


@dataclass(slots=True, eq=False)
class Watched:
    """A partition whose segment metadata this node reads."""

    topic: str
    count: int = 1
    """Number of ``watch`` calls without an ``unwatch``."""
    segments: RemoteLogMetadataCache = field(default_factory=RemoteLogMetadataCache)
    next_offset: int = 0
    """The first offset in the partition of the metadata topic that was not applied."""
    ready_from: int | None = None
    """The end of that partition when watching began, None before the first response."""

    def restarted(self) -> "Watched":
        """Return it for a recreated topic, without the events that were applied."""
        self.segments.forget()
        return Watched(self.topic, self.count, self.segments)

    @property
    def is_ready(self) -> bool:
        """Whether all events are applied that were there when watching began."""
        return self.ready_from is not None and self.next_offset >= self.ready_from


@dataclass(slots=True, eq=False)
class MetadataPartition:
    """One partition of the metadata topic, and the partitions that are watched in it."""

    index: int
    watched: dict[tuple[bytes, int], Watched] = field(default_factory=dict)
    is_out_of_range: bool = False
    """Whether the leader's log does not have ``position``. Then its start offset is requested."""
    resumes_us: int = 0
    """No request is sent before this time."""
    damaged: tuple[int, int] = (-1, 0)
    """The offset of a batch that arrived damaged, and how often it did."""

    @property
    def position(self) -> int:
        return min(each.next_offset for each in self.watched.values())


DAMAGED_FETCHES = 5
"""Number of times that a batch must arrive damaged before it is skipped."""


@dataclass(frozen=True, slots=True)
class _FetchInFlight:
    """The part of a Fetch in flight that reads one partition."""

    partition: MetadataPartition
    position: int
    watched: dict[tuple[bytes, int], Watched]

    @property
    def is_urgent(self) -> bool:
        return any(watched.ready_from is None for watched in self.watched.values())


def _in_flight_of(partition: MetadataPartition) -> _FetchInFlight:
    return _FetchInFlight(partition, partition.position, dict(partition.watched))


class MetadataReader:
    """Fetches of events from the leaders. ``applied`` gets each event of a watched partition, and its error."""

    def __init__(self, leaders: MetadataLeaders, applied: Callable[[RemoteLogEvent, Error], None]) -> None:
        self._leaders = leaders
        self._applied = applied
        self._partitions: dict[int, MetadataPartition] = {}
        self._busy: set[int] = set()
        """Leaders with a request in flight, or whose response is being applied."""

    def add(self, index: int, key: tuple[bytes, int], watched: Watched) -> None:
        """Watch a partition from the start of partition ``index`` of the topic, which has its events."""
        self._partitions.setdefault(index, MetadataPartition(index)).watched[key] = watched
        self.send_next()

    def remove(self, key: tuple[bytes, int]) -> None:
        for partition in list(self._partitions.values()):
            partition.watched.pop(key, None)
            if not partition.watched:
                del self._partitions[partition.index]

    def send_next(self) -> None:
        """Send a request to each leader that has none in flight."""
        by_leader: dict[int, list[MetadataPartition]] = {}
        now_us, is_any_left = self._leaders.ports.now().mono_us, False
        for partition in self._partitions.values():
            leader = self._leaders.leader_of(partition.index)
            if leader is None or leader in self._busy:
                continue  # The next image, or the response, calls this again.
            if partition.resumes_us > now_us:
                is_any_left = True
                continue
            by_leader.setdefault(leader, []).append(partition)
        for leader, watched in by_leader.items():
            self._busy.add(leader)
            lost = [each for each in watched if each.is_out_of_range]
            if lost:
                self._list_start_offsets(leader, lost)
            else:
                self._fetch(leader, watched)
        if is_any_left and not by_leader:
            later(self._leaders.ports, RETRY_US, self.send_next)

    def _pause(self, partitions: Iterable[MetadataPartition]) -> None:
        resumes_us = self._leaders.ports.now().mono_us + RETRY_US
        for partition in partitions:
            partition.resumes_us = resumes_us

    def _request_over(self, leader: int) -> None:
        self._busy.discard(leader)
        self.send_next()

    def _failed(self, leader: int, partitions: Sequence[MetadataPartition]) -> None:
        self._pause(partitions)
        self._request_over(leader)

    # --- fetching -----------------------------------------------------------------------------------------------------

    def _fetch(self, leader: int, partitions: Sequence[MetadataPartition]) -> None:
        topic = self._leaders.topic
        assert topic is not None, "a leader of no topic"
        sent = {partition.index: _in_flight_of(partition) for partition in partitions}
        body = FetchRequest(
            max_wait_ms=0 if any(each.is_urgent for each in sent.values()) else MAX_WAIT_MS,
            max_bytes=FETCH_BYTES,
            topics=[
                FetchTopic(
                    "",
                    topic.topic_id,
                    [
                        FetchPartition(index, each.position, PARTITION_BYTES, topic.partitions[index].leader_epoch)
                        for index, each in sent.items()
                    ],
                )
            ],
        )
        self._leaders.send(
            leader,
            Channel.REMOTE_LOG_READ,
            ApiKey.FETCH,
            body,
            partial(self._fetched, leader, sent),
            partial(self._failed, leader, partitions),
        )

    def _fetched(self, leader: int, sent: dict[int, _FetchInFlight], response: object) -> None:
        assert isinstance(response, FetchResponse), f"Fetch got {type(response).__name__}"
        results = {partition.partition: partition for topic in response.responses for partition in topic.partitions}
        if response.error_code:
            results.clear()
        applying = self._apply_all([(each, results.get(index)) for index, each in sent.items()])
        run_slices(self._leaders.ports, applying, lambda: self._request_over(leader))

    def _apply_all(self, results: Iterable[tuple[_FetchInFlight, PartitionData | None]]) -> Sliced[None]:
        for sent, data in results:
            if data is None or data.error_code:
                sent.partition.is_out_of_range |= data is not None and data.error_code == ErrorCode.offset_out_of_range
                if not sent.partition.is_out_of_range:
                    self._pause([sent.partition])
                continue
            for watched in sent.watched.values():
                if watched.ready_from is None:
                    watched.ready_from = data.high_watermark
            try:
                yield from self._apply_batches(sent, memoryview(data.records or b""))
            except InvalidRecords as invalid:
                self._skipped(sent, sent.position, invalid.message)
                self._pause([sent.partition])

    def _apply_batches(self, sent: _FetchInFlight, view: memoryview) -> Sliced[None]:
        """Apply whole batches. A damaged one is fetched again, since its bytes may have been damaged on their way. One
        that stays damaged is skipped, with a note, and the next ones are applied."""
        taken = 0
        for position, header in iterate(view):
            try:
                checked(view, position, len(view))
                batch = view[position : position + header.size_bytes]
                for record in () if header.is_control else read_records(batch, MAX_PLAIN_BYTES):
                    self._apply_record(sent, record)
                    taken += 1
                    if taken % REMOTE_RECORDS_PER_SLICE == 0:
                        yield
            except InvalidRecords as invalid:
                at, times = sent.partition.damaged
                times = times + 1 if at == header.base_offset else 1
                sent.partition.damaged = header.base_offset, times
                if times < DAMAGED_FETCHES:
                    self._pause([sent.partition])
                    return
                self._skipped(sent, header.base_offset, invalid.message)
            for watched in sent.watched.values():
                watched.next_offset = max(watched.next_offset, header.last_offset + 1)

    def _apply_record(self, sent: _FetchInFlight, record: Record) -> None:
        try:
            event = decode(bytes(record.value or b""))
        except DamagedRecord as damaged:
            self._skipped(sent, record.offset, str(damaged))
            return
        key = event.topic_id, event.partition
        watched = sent.watched.get(key)
        # Decision segment-event-record
        if watched is None or sent.partition.watched.get(key) is not watched or record.offset < watched.next_offset:
            return
        error = watched.segments.apply(event)
        watched.next_offset = record.offset + 1
        self._applied(event, error)

    def _skipped(self, sent: _FetchInFlight, offset: int, reason: str) -> None:
        fields = ("partition", sent.partition.index), ("offset", offset), ("reason", reason)
        self._leaders.ports.note("remote_log_record_skipped", *fields)

    # --- out of range -------------------------------------------------------------------------------------------------

    def _list_start_offsets(self, leader: int, lost: Sequence[MetadataPartition]) -> None:
        """Old events may be deleted by ``retention.ms`` of the topic."""
        body = request_schema.ListOffsetsRequest(
            replica_id=BrokerId(-1),
            isolation_level=i8(0),
            topics=(
                request_schema.ListOffsetsTopic(
                    name=TopicName(REMOTE_LOG_METADATA_TOPIC),
                    partitions=tuple(
                        request_schema.ListOffsetsPartition(partition_index=i32(each.index), timestamp=i64(EARLIEST))
                        for each in lost
                    ),
                ),
            ),
            timeout=i32Timedelta.parse(timedelta(milliseconds=self._leaders.request_timeout_ms)),
        )
        self._leaders.send(
            leader,
            Channel.REMOTE_LOG_READ,
            ApiKey.LIST_OFFSETS,
            body,
            partial(self._start_offsets_listed, leader, lost),
            partial(self._failed, leader, lost),
        )

    def _start_offsets_listed(self, leader: int, lost: Sequence[MetadataPartition], response: object) -> None:
        assert isinstance(response, response_schema.ListOffsetsResponse), f"ListOffsets got {type(response).__name__}"
        starts = {
            int(partition.partition_index): int(partition.offset)
            for topic in response.topics
            for partition in topic.partitions
            if not partition.error_code and partition.offset >= 0
        }
        for each in lost:
            if each.index in starts:
                each.is_out_of_range = False
                self._restart_at(each, starts[each.index])
        self._failed(leader, [each for each in lost if each.is_out_of_range])

    def _restart_at(self, partition: MetadataPartition, start: int) -> None:
        """Continue at ``start``. A position beyond the end of the log means that events were lost, by an unclean
        election or a recreated topic. Then everything is read again."""
        for each in partition.watched.values():
            if each.next_offset > start:  # Decision events-beyond-log
                each.segments.forget()
                each.ready_from = None
            each.next_offset = start


ALL_REPLICAS: Final = -1
REPLICATED_WITHIN_MS: Final = 10_000
EVENTS_A_REQUEST: Final = 200

_FINAL: Final = (
    ErrorCode.invalid_record,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unsupported_for_message_format,
)
"""Errors that a retry would get again."""


@dataclass(slots=True, eq=False)
class Pending:
    """An event that was not read back yet."""

    event: RemoteLogEvent
    index: int
    done: Applied
    timer: int
    """The timeout."""
    is_underway: bool = False
    """Whether the event is in a request in flight, or was acknowledged."""


class MetadataWriter:
    """Writes events through the leaders, and retries until they are read back or time out."""

    def __init__(self, leaders: MetadataLeaders, wait_ms: int) -> None:
        self._leaders = leaders
        self._wait_us = wait_ms * 1000
        self._pending: dict[RemoteLogEvent, Pending] = {}
        self._busy: set[int] = set()
        """Leaders with a request in flight."""
        self._is_paused = False

    def write(self, event: RemoteLogEvent, index: int, done: Applied) -> None:
        ports = self._leaders.ports
        assert event not in self._pending, "the event is being written already"
        timer = later(ports, self._wait_us, lambda: self.complete(event, ErrorCode.request_timed_out))
        self._pending[event] = Pending(event, index, done, timer)
        self.send_next()

    def complete(self, event: RemoteLogEvent, error: Error) -> None:
        """Complete an event that was read back, or that failed. An event that was not written here is ignored."""
        pending = self._pending.pop(event, None)
        if pending is not None:
            self._leaders.ports.cancel_timer(pending.timer)
            later(self._leaders.ports, 0, lambda: pending.done(error))

    def forget(self, topic_id: bytes, partition: int) -> None:
        """Fail the events of a partition that is no longer watched, since they would not be read back."""
        for event in [each for each in self._pending if (each.topic_id, each.partition) == (topic_id, partition)]:
            self.complete(event, ErrorCode.not_leader_or_follower)

    def send_next(self) -> None:
        """Send pending events to each leader that has no request in flight."""
        by_leader: dict[int, list[Pending]] = {}
        for each in self._pending.values():
            if not each.is_underway:
                leader = self._leaders.leader_of(each.index)
                if leader is None:
                    self._pause()
                elif leader not in self._busy:
                    by_leader.setdefault(leader, []).append(each)
        for leader, waiting in by_leader.items():
            self._send(leader, waiting[:EVENTS_A_REQUEST])

    def _send(self, leader: int, sent: Sequence[Pending]) -> None:
        topic = self._leaders.topic
        assert topic is not None, "a leader of no topic"
        now_ms = self._leaders.ports.now().wall_ms
        by_index: dict[int, list[Pending]] = {}
        for each in sent:
            each.is_underway = True
            by_index.setdefault(each.index, []).append(each)
        batches = [
            ProducePartition(index, build([Record(timestamp_ms=now_ms, value=encode(event.event)) for event in events]))
            for index, events in by_index.items()
        ]
        body = ProduceRequest(ALL_REPLICAS, REPLICATED_WITHIN_MS, [ProduceTopic("", topic.topic_id, batches)])
        self._busy.add(leader)
        self._leaders.send(
            leader,
            Channel.REMOTE_LOG_WRITE,
            ApiKey.PRODUCE,
            body,
            partial(self._replied, leader, by_index),
            partial(self._finished, leader, by_index, lambda _: ErrorCode.network_exception),
        )

    def _replied(self, leader: int, by_index: dict[int, list[Pending]], response: object) -> None:
        assert isinstance(response, ProduceResponse), f"Produce got {type(response).__name__}"
        errors = {
            partition.partition: known_error(partition.error_code)
            for topic in response.responses
            for partition in topic.partitions
        }
        self._finished(leader, by_index, lambda index: errors.get(index, ErrorCode.unknown_server_error))

    def _finished(self, leader: int, by_index: dict[int, list[Pending]], error_of: Callable[[int], Error]) -> None:
        self._busy.discard(leader)
        for index, events in by_index.items():
            error = error_of(index)
            if error in _FINAL:
                for event in events:
                    self.complete(event.event, error)
            elif error:
                for event in events:
                    event.is_underway = False
                self._pause()
        if not self._is_paused:
            self.send_next()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            later(self._leaders.ports, RETRY_US, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        self.send_next()
