"""A reader for benchmarks: it fetches partitions that it is given, and verifies each value by column.

It has one Fetch in flight at each leader. In a fetch session (KIP-227) a request names only partitions whose position
has moved, and a response only those with something new. A leader that opens no session gets full requests.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.bodies import metadata_request
from bench.fleet.values import ValueSpan
from bench.load.producer import (
    BACK_OFF_US,
    LONGEST_WAIT_US,
    METADATA_VERSION,
    Awaited,
    monotonic_us,
    receive_first,
)
from reference_broker.blocking.transport import Connection, EncodedRequest, TransportError
from reference_broker.client.consumer import ConsumerState, TakenBatch
from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate, NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import REFRESH_METADATA
from reference_broker.client.session_handler import FetchSessionHandler, Wanted
from reference_broker.records.record import HeaderPair
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, error_name
from reference_broker.wire.fetch import NO_TOPIC_ID, PartitionData

FETCH_VERSION: Final = 11
"""It names topics, and each broker since Kafka 2.4 knows it."""
SESSION_LOST: Final = frozenset({ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch})
"""The session was evicted, or a response was lost. A full request helps at once."""
_CALL_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The plan of a reader."""

    process: str
    partitions: tuple[TopicPartition, ...]
    from_offset: int = 0  # offset at which each partition is read first
    max_wait_ms: int = 100
    min_bytes: int = 1
    max_bytes: int = 50 * 2**20
    partition_max_bytes: int = 2**20
    isolation_level: int = 0
    catches_up: bool = False  # begins at the start of the log once the seconds that count begin
    group_id: str = ""  # empty: the reader is assigned its partitions by the plan
    fetch_sessions: bool = True
    by_record: bool = False  # records have sizes of their own, so no batch is read by column
    headers: tuple[HeaderPair, ...] | None = None  # of each record; None: none are expected, and any are read over
    request_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Taken:
    """One partition of a response."""

    where: TopicPartition
    spans: Sequence[ValueSpan]
    written: Sequence[tuple[int, int]]  # for each batch: its timestamp (ms), and how many records it has
    size_bytes: int
    high_watermark: int
    at_us: int  # monotonic
    error: str | None = None  # Kafka's name of the error; then no records were read


@dataclass(slots=True)
class _Link:
    address: NodeAddress
    connection: Connection
    session: FetchSessionHandler
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    moved: set[TopicPartition] = field(default_factory=set)  # since the last request
    left: set[TopicPartition] = field(default_factory=set)  # those that another node leads since then
    sent: EncodedRequest | None = None
    outdated: set[TopicPartition] = field(default_factory=set)
    """Partitions whose position was set since the request. Its response begins elsewhere."""
    deadline_us: int = 0
    not_before_us: int = 0


class LoadReader:
    """Call ``run`` in a thread or greenlet of its own. ``stop`` may be called from any."""

    def __init__(self, plan: ReadPlan, bootstrap: Sequence[tuple[str, int]], taken: Callable[[Taken], None]) -> None:
        self.plan = plan
        self._bootstrap = tuple(NodeAddress(-1, host, port) for host, port in bootstrap)
        self._taken = taken
        self._state = ConsumerState()
        self.assigned = dict.fromkeys(plan.partitions)
        for partition in plan.partitions:
            self._state.seek(partition, plan.from_offset)
        self._batches = BatchReader(by_record=plan.by_record, headers=plan.headers)
        self._metadata = MetadataCache()
        self._links: dict[int, _Link] = {}  # by node ID
        self._sessions: dict[int, FetchSessionHandler] = {}  # by node ID; a session outlives its connection
        self._stale = True
        self._refresh_not_before_us = 0
        self._stopping = False
        self.paused = False
        """While it is, no request is sent. One in flight still brings its response."""

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        try:
            while not self._stopping:
                self._step(monotonic_us())
        finally:
            for link in self._links.values():
                self._leave(link)

    def _step(self, now_us: int) -> None:
        if self._stale and now_us >= self._refresh_not_before_us and self.assigned:
            self._look_up(now_us)
        for link in list(self._links.values()):
            if link.sent is None and link.partitions and not self.paused and now_us >= link.not_before_us:
                self._send(link, now_us)
            elif link.sent is not None and now_us >= link.deadline_us:
                self._lose(link)
        self._wait()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to read."""
        return self._state.positions[partition].offset

    @property
    def lag(self) -> int:
        """Number of records beyond the positions, by the last responses. A partition without one counts 1."""
        positions = [self._state.positions[each] for each in self.assigned]
        return sum(
            1 if position.high_watermark < 0 else max(0, position.high_watermark - position.offset)
            for position in positions
        )

    @property
    def knows_lag(self) -> bool:
        """Whether all partitions have had a response."""
        return all(self._state.positions[each].high_watermark >= 0 for each in self.assigned)

    def _send(self, link: _Link, now_us: int) -> None:
        wanted = self._wanted(link)
        if link.session.is_due_in_full:
            plan = link.session.build(wanted)
        else:
            plan = link.session.update(wanted, link.left)
        link.moved.clear()
        link.left.clear()
        own = self.plan
        request = plan.request(
            FETCH_VERSION, own.max_wait_ms, own.min_bytes, own.max_bytes, isolation_level=own.isolation_level
        )
        link.sent = link.connection.encode(ApiKey.FETCH, FETCH_VERSION, request)
        link.deadline_us = now_us + own.request_timeout_ms * 1000
        try:
            link.connection.send_bytes(link.sent.frame)
        except TransportError:
            self._lose(link)

    def _wanted(self, link: _Link) -> dict[TopicPartition, Wanted]:
        """Return what the next request has to name: all partitions, or in a session those that have moved."""
        named: Iterable[TopicPartition] = link.moved
        if link.session.is_due_in_full:
            # The first partition with data fills a response that is full. So another one comes first next time. In a
            # session the broker changes the order by itself.
            first = next(iter(link.partitions))
            del link.partitions[first]
            named = link.partitions = {**link.partitions, first: None}
        return {
            partition: Wanted(NO_TOPIC_ID, self.position(partition), self.plan.partition_max_bytes)
            for partition in named
        }

    def _leave(self, link: _Link) -> None:
        """Close the session, so that the broker need not keep it, and the connection."""
        if link.session.in_flight is not None:
            link.session.handle_lost()
        plan = link.session.close()
        if plan is not None:
            with suppress(TransportError):
                link.connection.send(ApiKey.FETCH, FETCH_VERSION, plan.request(FETCH_VERSION, 0, 0, 0))
        link.connection.close()

    def _wait(self) -> None:
        receive_first(self.awaited(), LONGEST_WAIT_US)

    def awaited(self) -> Awaited:
        """Return the sockets from which a response is due."""
        links = [link for link in self._links.values() if link.sent is not None]
        return {link.connection.sock.fileno(): partial(self._receive, link) for link in links}

    def _receive(self, link: _Link) -> None:
        assert link.sent is not None, "a response to no request"
        try:
            reply = link.connection.receive(link.sent, time.monotonic() + self.plan.request_timeout_ms / 1000)
        except TransportError:
            self._lose(link)
            return
        link.sent = None
        outdated, link.outdated = link.outdated, set()
        handled = link.session.handle_response(reply.body)
        now_us = monotonic_us()
        if handled.problem is not None:
            # The next request is a full one, which also comes to what this response had.
            link.not_before_us = now_us + (BACK_OFF_US if reply.body.error_code not in SESSION_LOST else 0)
            return
        for partition, data in handled.partitions:
            if partition not in self.assigned or partition in outdated:
                continue  # The group has revoked it meanwhile, or its position was set.
            if data.error_code:
                self._stale = self._stale or data.error_code in REFRESH_METADATA
                link.not_before_us = now_us + BACK_OFF_US
                self._taken(Taken(partition, (), (), 0, -1, now_us, error_name(data.error_code)))
                continue
            before = self.position(partition)
            batches = self._state.take(partition, data)
            if self.position(partition) != before and partition in link.partitions:
                link.moved.add(partition)
            self._take(partition, batches, data, now_us)

    def _take(self, partition: TopicPartition, batches: list[TakenBatch], data: PartitionData, now_us: int) -> None:
        """Verify what a response brought of a partition."""
        spans = self._batches.read(partition, batches)
        if spans:
            written = [(batch.header.max_timestamp_ms, batch.header.record_count) for batch in batches]
            size_bytes = len(data.records or b"")
            self._taken(Taken(partition, spans, written, size_bytes, data.high_watermark, now_us))

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self._state.seek(partition, offset)
        for link in self._links.values():
            if link.sent is not None:
                link.outdated.add(partition)

    def _lose(self, link: _Link) -> None:
        link.connection.close()
        if link.session.in_flight is not None:
            link.session.handle_lost()
        self._links.pop(link.address.node_id, None)
        self._stale = True

    def _look_up(self, now_us: int) -> None:
        """Find the leaders and connect to them. It is retried later if anything fails."""
        self._refresh_not_before_us = now_us + BACK_OFF_US
        topics = sorted({each.topic for each in self.assigned})
        for address in (*self._metadata.nodes.values(), *self._bootstrap):
            with suppress(TransportError):
                with Connection.open(address.host, address.port, _CALL_US, self.plan.process) as connection:
                    response = connection.call(ApiKey.METADATA, METADATA_VERSION, metadata_request(topics), _CALL_US)
                self._metadata = self._metadata.apply(MetadataUpdate.of(response))
                break
        else:
            return
        led: dict[int, list[TopicPartition]] = {}
        for partition in self.assigned:
            leader = self._metadata.leader_of(partition)
            if leader is not None:
                led.setdefault(leader.node_id, []).append(partition)
        for node_id in led:
            self._connect(self._metadata.nodes[node_id])
        for node_id, link in self._links.items():
            own = dict.fromkeys(led.get(node_id, ()))
            link.left, link.moved = link.session.partitions.keys() - own.keys(), set(own)
            link.partitions = own
        self._stale = sum(len(each.partitions) for each in self._links.values()) < len(self.assigned)

    def _connect(self, address: NodeAddress) -> None:
        link = self._links.get(address.node_id)
        if link is not None and link.address == address:
            return
        if link is not None:
            self._lose(link)
        with suppress(TransportError):
            connection = Connection.open(address.host, address.port, _CALL_US, self.plan.process)
            session = self._sessions.setdefault(
                address.node_id, FetchSessionHandler(sessionless=not self.plan.fetch_sessions)
            )
            self._links[address.node_id] = _Link(address, connection, session)
