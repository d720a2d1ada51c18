"""Reads and writes ``__remote_log_metadata`` through the leaders of its partitions, of which this node may be one.

``Reads``: one fetch at a time goes to each leader, and is parked there until there is something new. A partition of the
topic is read from the position of the least advanced of its watched partitions: one that is new here is read from the
beginning, and the others skip what they have. A leader returns only replicated records, so an event that was applied
stays.

``Writes``: one produce at a time goes to each leader, with acks=all. An event whose response is lost, or that is
refused for now, is written again until it is read back. So it may be in the topic twice; ``PartitionSegments`` applies
it once.
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
from reference_broker.ports.node_ports import Channel, Done, Ports, Slices, later, run_slices
from reference_broker.records.batch import InvalidRecords, checked, iterate
from reference_broker.records.record import MOST_PLAIN_BYTES, Record, build, read_records
from reference_broker.remote_log.metadata.events import RemoteLogEvent, decode, encode
from reference_broker.remote_log.metadata.partition_segments import Applied, PartitionSegments
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
        """Return who leads a partition of the topic, or None while nobody does."""
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
        """Send a request in its newest version. One of the two callbacks follows, in an event of its own."""
        if leader == self.node_id:
            later(self.ports, 0, partial(self.serve_locally, api_key, body, replied))
            return
        version = VERSIONS[api_key][1]
        self.ports.send(leader, channel, api_key, version, body, self.request_timeout_ms, replied, failed)


MAX_WAIT_MS: Final = 500
FETCH_BYTES: Final = 1 << 20
PARTITION_BYTES: Final = 256 << 10
RECORDS_A_SLICE: Final = 50
"""They cost some 3 ms."""
EARLIEST: Final = -2
"""The special timestamp of ListOffsets."""


@dataclass(slots=True, eq=False)
class Watched:
    """A partition whose segments this node knows. ``next_offset`` is the first offset of the topic's partition that was
    not taken yet. ``ready_from`` is the end that the topic's partition had when watching began, once it is known."""

    topic: str
    count: int = 1
    segments: PartitionSegments = field(default_factory=PartitionSegments)
    next_offset: int = 0
    ready_from: int | None = None

    def anew(self) -> "Watched":
        """The same, from the beginning of a topic that has none of the events that were taken."""
        self.segments.forget()
        return Watched(self.topic, self.count, self.segments)

    @property
    def is_ready(self) -> bool:
        return self.ready_from is not None and self.next_offset >= self.ready_from


@dataclass(slots=True, eq=False)
class MetadataPartition:
    """One partition of the topic, with what is watched in it. ``is_out_of_range``: the leader's log does not have
    ``position``, and it is asked where it starts. ``resumes_us``: it is left alone until then."""

    index: int
    watched: dict[tuple[bytes, int], Watched] = field(default_factory=dict)
    is_out_of_range: bool = False
    resumes_us: int = 0

    @property
    def position(self) -> int:
        return min(each.next_offset for each in self.watched.values())


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a fetch asked of a partition, and for whom."""

    partition: MetadataPartition
    position: int
    takers: dict[tuple[bytes, int], Watched]

    @property
    def is_urgent(self) -> bool:
        return any(taker.ready_from is None for taker in self.takers.values())


def _asked(partition: MetadataPartition) -> _Asked:
    return _Asked(partition, partition.position, dict(partition.watched))


class Reads:
    """``taken`` is told each event of a watched partition, and what came of it."""

    def __init__(self, leaders: MetadataLeaders, taken: Callable[[RemoteLogEvent, Error], None]) -> None:
        self._leaders = leaders
        self._taken = taken
        self._partitions: dict[int, MetadataPartition] = {}
        self._busy: set[int] = set()
        """The leaders that have a request, or whose answer is being taken."""

    def add(self, index: int, key: tuple[bytes, int], watched: Watched) -> None:
        """Read for a partition, which ``index`` of the topic keeps, from the beginning."""
        self._partitions.setdefault(index, MetadataPartition(index)).watched[key] = watched
        self.go_on()

    def remove(self, key: tuple[bytes, int]) -> None:
        for partition in list(self._partitions.values()):
            partition.watched.pop(key, None)
            if not partition.watched:
                del self._partitions[partition.index]

    def go_on(self) -> None:
        """Asks each leader that has no request."""
        by_leader: dict[int, list[MetadataPartition]] = {}
        now_us, is_any_left = self._leaders.ports.now().mono_us, False
        for each in self._partitions.values():
            leader = self._leaders.leader_of(each.index)
            if leader is None or leader in self._busy:
                continue  # The next image, or the answer, comes back here.
            if each.resumes_us > now_us:
                is_any_left = True
                continue
            by_leader.setdefault(leader, []).append(each)
        for leader, some in by_leader.items():
            self._busy.add(leader)
            lost = [each for each in some if each.is_out_of_range]
            if lost:
                self._ask_where_it_starts(leader, lost)
            else:
                self._fetch(leader, some)
        if is_any_left and not by_leader:
            later(self._leaders.ports, RETRY_US, self.go_on)

    def _pause(self, partitions: Iterable[MetadataPartition]) -> None:
        resumes_us = self._leaders.ports.now().mono_us + RETRY_US
        for each in partitions:
            each.resumes_us = resumes_us

    def _over(self, leader: int) -> None:
        self._busy.discard(leader)
        self.go_on()

    def _failed(self, leader: int, partitions: Sequence[MetadataPartition]) -> None:
        self._pause(partitions)
        self._over(leader)

    # --- fetching -----------------------------------------------------------------------------------------------------

    def _fetch(self, leader: int, partitions: Sequence[MetadataPartition]) -> None:
        topic = self._leaders.topic
        assert topic is not None, "a leader of no topic"
        asked = {each.index: _asked(each) for each in partitions}
        body = FetchRequest(
            max_wait_ms=0 if any(each.is_urgent for each in asked.values()) else MAX_WAIT_MS,
            max_bytes=FETCH_BYTES,
            topics=[
                FetchTopic(
                    "",
                    topic.topic_id,
                    [
                        FetchPartition(index, each.position, PARTITION_BYTES, topic.partitions[index].leader_epoch)
                        for index, each in asked.items()
                    ],
                )
            ],
        )
        self._leaders.ask(
            leader,
            Channel.REMOTE_LOG_READ,
            ApiKey.FETCH,
            body,
            partial(self._fetched, leader, asked),
            partial(self._failed, leader, partitions),
        )

    def _fetched(self, leader: int, asked: dict[int, _Asked], answer: object) -> None:
        assert isinstance(answer, FetchResponse), f"Fetch was answered by {type(answer).__name__}"
        found = {each.partition: each for topic in answer.responses for each in topic.partitions}
        if answer.error_code:
            found.clear()
        taking = self._take_all([(each, found.get(index)) for index, each in asked.items()])
        run_slices(self._leaders.ports, taking, lambda: self._over(leader))

    def _take_all(self, told: Iterable[tuple[_Asked, PartitionData | None]]) -> Slices:
        for asked, data in told:
            if data is None or data.error_code:
                asked.partition.is_out_of_range |= data is not None and data.error_code == ErrorCode.offset_out_of_range
                if not asked.partition.is_out_of_range:
                    self._pause([asked.partition])
                continue
            for taker in asked.takers.values():
                if taker.ready_from is None:
                    taker.ready_from = data.high_watermark
            try:
                yield from self._take(asked, memoryview(data.records or b""))
            except InvalidRecords as invalid:
                self._left_out(asked, asked.position, invalid.message)
                self._pause([asked.partition])

    def _take(self, asked: _Asked, view: memoryview) -> Slices:
        """Take whole batches. A damaged one is left out, with a note: what follows it still counts."""
        taken = 0
        for position, header in iterate(view):
            try:
                checked(view, position, len(view))
                batch = view[position : position + header.size_bytes]
                for record in () if header.is_control else read_records(batch, MOST_PLAIN_BYTES):
                    self._take_record(asked, record)
                    taken += 1
                    if taken % RECORDS_A_SLICE == 0:
                        yield
            except InvalidRecords as invalid:
                self._left_out(asked, header.base_offset, invalid.message)
            for taker in asked.takers.values():
                taker.next_offset = max(taker.next_offset, header.last_offset + 1)

    def _take_record(self, asked: _Asked, record: Record) -> None:
        try:
            event = decode(bytes(record.value or b""))
        except DamagedRecord as damaged:
            self._left_out(asked, record.offset, str(damaged))
            return
        key = event.topic_id, event.partition
        taker = asked.takers.get(key)
        if taker is None or asked.partition.watched.get(key) is not taker or record.offset < taker.next_offset:
            return
        error = taker.segments.apply(event)
        taker.next_offset = record.offset + 1
        self._taken(event, error)

    def _left_out(self, asked: _Asked, offset: int, reason: str) -> None:
        fields = ("partition", asked.partition.index), ("offset", offset), ("reason", reason)
        self._leaders.ports.note("remote_log_record_left_out", *fields)

    # --- out of range -------------------------------------------------------------------------------------------------

    def _ask_where_it_starts(self, leader: int, lost: Sequence[MetadataPartition]) -> None:
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
        self._leaders.ask(
            leader,
            Channel.REMOTE_LOG_READ,
            ApiKey.LIST_OFFSETS,
            body,
            partial(self._start_told, leader, lost),
            partial(self._failed, leader, lost),
        )

    def _start_told(self, leader: int, lost: Sequence[MetadataPartition], answer: object) -> None:
        assert isinstance(answer, response_schema.ListOffsetsResponse), (
            f"ListOffsets was answered by {type(answer).__name__}"
        )
        starts = {
            int(each.partition_index): int(each.offset)
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code and each.offset >= 0
        }
        for each in lost:
            if each.index in starts:
                each.is_out_of_range = False
                self._begin_at(each, starts[each.index])
        self._failed(leader, [each for each in lost if each.is_out_of_range])

    def _begin_at(self, partition: MetadataPartition, start: int) -> None:
        """A position behind the end of the log says that events were lost, by an unclean election or a new topic of the
        same name. Then all is read anew."""
        for each in partition.watched.values():
            if each.next_offset > start:
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
"""To write the same again would end in the same way."""


@dataclass(slots=True, eq=False)
class Pending:
    """An event that was not read back yet. ``is_underway``: it is in a request, or a leader has said that it is
    replicated. ``timer`` ends the wait."""

    event: RemoteLogEvent
    index: int
    done: Applied
    timer: int
    is_underway: bool = False


class Writes:
    def __init__(self, leaders: MetadataLeaders, wait_ms: int) -> None:
        self._leaders = leaders
        self._wait_us = wait_ms * 1000
        self._pending: dict[RemoteLogEvent, Pending] = {}
        self._busy: set[int] = set()
        """The leaders that have a request."""
        self._is_paused = False

    def write(self, event: RemoteLogEvent, index: int, done: Applied) -> None:
        ports = self._leaders.ports
        assert event not in self._pending, "the event is being written already"
        timer = later(ports, self._wait_us, lambda: self.settle(event, ErrorCode.request_timed_out))
        self._pending[event] = Pending(event, index, done, timer)
        self.go_on()

    def settle(self, event: RemoteLogEvent, error: Error) -> None:
        """The event was read back, or will not be waited for any more. An event that nobody here waits for is no
        error."""
        pending = self._pending.pop(event, None)
        if pending is not None:
            self._leaders.ports.cancel_timer(pending.timer)
            later(self._leaders.ports, 0, lambda: pending.done(error))

    def forget(self, topic_id: bytes, partition: int) -> None:
        """The partition is not watched any more, so its events would not be read back."""
        for event in [each for each in self._pending if (each.topic_id, each.partition) == (topic_id, partition)]:
            self.settle(event, ErrorCode.not_leader_or_follower)

    def go_on(self) -> None:
        """Send what waits to each leader that has no request."""
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
            ProducePartition(index, build([Record(timestamp_ms=now_ms, value=encode(each.event)) for each in some]))
            for index, some in by_index.items()
        ]
        body = ProduceRequest(ALL_REPLICAS, REPLICATED_WITHIN_MS, [ProduceTopic("", topic.topic_id, batches)])
        self._busy.add(leader)
        self._leaders.ask(
            leader,
            Channel.REMOTE_LOG_WRITE,
            ApiKey.PRODUCE,
            body,
            partial(self._replied, leader, by_index),
            partial(self._answered, leader, by_index, lambda _: ErrorCode.network_exception),
        )

    def _replied(self, leader: int, by_index: dict[int, list[Pending]], answer: object) -> None:
        assert isinstance(answer, ProduceResponse), f"Produce was answered by {type(answer).__name__}"
        errors = {
            each.partition: known_error(each.error_code) for topic in answer.responses for each in topic.partitions
        }
        self._answered(leader, by_index, lambda index: errors.get(index, ErrorCode.unknown_server_error))

    def _answered(self, leader: int, by_index: dict[int, list[Pending]], error_of: Callable[[int], Error]) -> None:
        self._busy.discard(leader)
        for index, some in by_index.items():
            error = error_of(index)
            if error in _FINAL:
                for each in some:
                    self.settle(each.event, error)
            elif error:
                for each in some:
                    each.is_underway = False
                self._pause()
        if not self._is_paused:
            self.go_on()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            later(self._leaders.ports, RETRY_US, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        self.go_on()
