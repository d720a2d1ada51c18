"""A producer for benchmarks: batches by column, several requests in flight on each connection, an open-loop schedule.

Batch n is due at ``start + n * interval`` and goes to the partition ``n % partitions``, whatever the outcome of earlier
batches. Due batches are sent together, one of each partition in a request, as Kafka's own producer does. An unreachable
partition delays only its own batches.

The values of the partition with the index i have the sequences from ``i * SEQUENCES`` on, so the values of one writer
in a partition form one span.

With acks=0 there are no responses. A batch is settled once the socket has taken it, and its end stays unknown.

A batch is sent again until its end is known or its delivery time has passed. Batches of a partition keep their order:
after a failure nothing new is sent to it until what was in flight has ended and was sent again, one at a time.
``ProducerState`` decides what a response means. Latency counts from the time at which a batch was due.
"""

import heapq
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench.fleet.behaviours.bodies import init_producer_id_request, metadata_request
from bench.fleet.value_batches import BatchMaker
from bench.fleet.values import ValueMaker
from bench.load.record_batches import SEQUENCE_BITS, RecordBatchMaker
from bench.locust.clock import WALL
from reference_broker.blocking.transport import Connection, EncodedRequest, TransportError
from reference_broker.client.metadata_cache import MetadataCache, MetadataUpdate, NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import MAX_IN_FLIGHT, Next, ProducerBatch, ProducerState
from reference_broker.records.compression import Compression
from reference_broker.records.record import HeaderPair
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

PRODUCE_VERSION: Final = 9
"""It names topics, and each broker since Kafka 2.4 knows it."""
METADATA_VERSION: Final = 9
INIT_PRODUCER_ID_VERSION: Final = 3
BACK_OFF_US: Final = 100_000
SEQUENCES: Final = 1 << SEQUENCE_BITS
"""Number of records that a producer can send to one partition."""
LONGEST_WAIT_US: Final = 50_000
"""The producer notices a stop after this time at the latest."""
_CALL_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The plan of a producer."""

    process: str  # the writer of its values
    partitions: tuple[TopicPartition, ...]
    value_bytes: int = 100
    batch_records: int = 150
    records_per_s: float = 0.0  # 0: each batch is due at once
    request_batches: int = 16  # the most batches in a request, one for each partition
    requests_in_flight: int = MAX_IN_FLIGHT  # for each connection
    acks: int = -1
    idempotent: bool = True
    compression: Compression = Compression.NONE
    keys: int = 0  # number of keys used in turn in each partition; 0: records have no key
    padding: bytes = b""  # what values repeat behind their proof
    request_timeout_ms: int = 30_000
    delivery_timeout_us: int = 120_000_000
    transaction: "TransactionPlan | None" = None
    sizes: tuple[int, ...] = ()  # of values, which take turns by sequence; empty: all have ``value_bytes``
    headers: tuple[HeaderPair, ...] = ()  # of each record
    stamps_due_time: bool = False
    """Whether timestamps of batches are the times at which they were due, not those of their creation."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """Limits of a producer's transactions. One ends when it has this number of records, or after a time."""

    transactional_id: str
    records: int = 0  # 0: the time alone ends it
    duration_us: int = 0  # from its first record on; 0: the number of records alone ends it
    abort_ratio: float = 0.0  # the share of transactions that are aborted


@dataclass(slots=True)
class LoadBatch:
    """A batch that is not settled. Times are of the monotonic clock."""

    number: int  # in the partition, from 0
    first_sequence: int
    due_us: int
    first_sent_us: int
    deadline_us: int
    batch: ProducerBatch
    records: bytes
    error: str | None = None  # of the last attempt


@dataclass(frozen=True, slots=True)
class Settled:
    """A batch whose outcome is known."""

    where: TopicPartition
    kind: str  # ok, fail or info, as in the history, or aborted (as planned)
    error: str | None
    first_sequence: int
    count: int
    producer_id: int
    base_offset: int  # -1 unless it is written
    due_us: int
    first_sent_us: int
    end_us: int


@dataclass(slots=True)
class LoadPartition:
    where: TopicPartition
    index: int
    due_us: int = 0  # of the next batch, on the monotonic clock
    made: int = 0  # batches
    in_flight: int = 0
    failed: list[LoadBatch] = field(default_factory=list)
    """Batches to resend, in the order of sequences."""
    not_before_us: int = 0
    is_parked: bool = False  # its next batch is due, but the partition must wait for one in flight


@dataclass(slots=True)
class _InFlight:
    sent: EncodedRequest
    deadline_us: int
    batches: list[tuple[LoadPartition, LoadBatch]]


@dataclass(slots=True)
class LoadLink:
    """A connection to a leader, and the partitions that it leads."""

    address: NodeAddress
    connection: Connection
    partitions: list[LoadPartition] = field(default_factory=list)
    due: list[tuple[int, int, int]] = field(default_factory=list)
    """A heap of partitions that may send: due time, batches made so far, index. So a step costs nothing for those that
    have nothing to send, however many there are."""
    in_flight: deque[_InFlight] = field(default_factory=deque)

    def queue(self, partition: LoadPartition) -> None:
        heapq.heappush(self.due, (partition.due_us, partition.made, partition.index))


@dataclass(frozen=True, slots=True)
class Waits:
    """Partitions that cannot send what is due."""

    for_responses: int  # as many requests are in flight as may be
    for_leaders: int  # no leader is known or connected, or a batch must be sent again after an error


def monotonic_us() -> int:
    return time.monotonic_ns() // 1000


Awaited = dict[int, Callable[[], None]]
"""Functions that receive a response, each by the file number of the socket from which it comes."""


def receive_first(awaited: Awaited, wait_us: int) -> None:
    """Receive the responses that are there, or wait for the first one for so long at the most."""
    if not awaited:
        time.sleep(wait_us / 1e6)
        return
    poll = select.poll()
    for number in awaited:
        poll.register(number, select.POLLIN)
    for number, _ in poll.poll(wait_us / 1000):
        awaited[number]()


class LoadProducer:
    """Call ``run`` in a thread or greenlet of its own. ``stop`` may be called from any.

    ``settled`` takes each batch's end, in the order in which they become known.

    Subclasses (``transactional.py``, ``transform.py``) override these hooks, which are marked "Hook:" below:
    ``_is_done``, ``_step``, ``_wait`` and ``_wait_us`` of the loop, ``_may_add_batches``, ``_may_add``, ``_make_batch``
    and ``_produce_version`` of sending, ``_apply_response`` and ``_report_settled`` of receiving, and ``_assign`` and
    ``_connected`` of connections.
    """

    def __init__(
        self, plan: LoadPlan, bootstrap: Sequence[tuple[str, int]], settled: Callable[[Settled], None]
    ) -> None:
        assert plan.acks or not (plan.idempotent or plan.transaction), "acks=0 has no response that could be retried"
        self.plan = plan
        self.sent_requests = 0
        self._bootstrap = tuple(NodeAddress(-1, host, port) for host, port in bootstrap)
        self._settled = settled
        self._state = ProducerState(MAX_IN_FLIGHT if plan.idempotent else 1, plan.idempotent)
        keys = [b"k%06d" % number for number in range(plan.keys)]
        self._maker: BatchMaker | RecordBatchMaker
        if plan.sizes or plan.headers:
            sizes = plan.sizes or (plan.value_bytes,)
            self._maker = RecordBatchMaker(plan.process, plan.batch_records, sizes, plan.padding, keys, plan.headers)
        else:
            values = ValueMaker(plan.process, plan.value_bytes, plan.padding)
            self._maker = BatchMaker(values, plan.batch_records, keys)
        self._partitions = [LoadPartition(partition, index) for index, partition in enumerate(plan.partitions)]
        self._interval_us = plan.batch_records * 1e6 / plan.records_per_s if plan.records_per_s else 0.0
        self._metadata = MetadataCache()
        self._links: dict[int, LoadLink] = {}  # by node ID
        self._link_of: dict[int, LoadLink] = {}  # by the index of a partition
        self._failing: dict[int, LoadPartition] = {}  # by index: those with batches to send again
        self._stale = True
        self._refresh_not_before_us = 0
        self._start_us = 0
        self._stopping = False

    def stop(self) -> None:
        """Send nothing new. ``run`` returns when all that was sent is settled, or has passed its delivery time."""
        self._stopping = True

    def waits(self) -> Waits:
        """Return how many partitions cannot send what is due, and why."""
        now_us = monotonic_us()
        for_responses = sum(partition.is_parked and not partition.failed for partition in self._partitions)
        for link in self._links.values():
            if len(link.in_flight) >= self.plan.requests_in_flight:
                for_responses += sum(due_us <= now_us for due_us, *_ in link.due)
        connected = sum(link in self._links.values() for link in self._link_of.values())
        return Waits(for_responses, len(self._partitions) - connected + len(self._failing))

    def run(self) -> None:
        self._start_us = monotonic_us()
        for partition in self._partitions:
            self._schedule(partition)
        try:
            while not self._is_done:
                self._step()
        finally:
            for link in list(self._links.values()):
                link.connection.close()

    @property
    def _is_done(self) -> bool:
        """Hook: whether ``run`` may return."""
        return self._stopping and self._is_settled

    @property
    def _is_settled(self) -> bool:
        return not any(partition.in_flight or partition.failed for partition in self._partitions)

    def _step(self) -> None:
        """Hook: send what is due on each connection, and wait for the next event."""
        now_us = monotonic_us()
        if (self._stale or self._state.needs_producer_id) and now_us >= self._refresh_not_before_us:
            self._look_up(now_us)
        for link in list(self._links.values()):
            # Without responses nothing is ever in flight, and other clients of the worker have their turn.
            for _ in range(self.plan.requests_in_flight - len(link.in_flight)):
                if not self._send(link):
                    break
        self._expire(monotonic_us())
        self._wait()

    # Sending

    def _send(self, link: LoadLink) -> bool:
        """Send one request with what is due. Return whether there may be more."""
        now_us = monotonic_us()
        chosen = self._take_retries(link, now_us)
        if self._may_add_batches:
            self._add_new(link, chosen, now_us)
        if not chosen:
            return False
        sent = link.connection.encode(ApiKey.PRODUCE, self._produce_version(link), self._request(chosen))
        for partition, _ in chosen:
            partition.in_flight += 1
        request = _InFlight(sent, now_us + self.plan.request_timeout_ms * 1000, chosen)
        link.in_flight.append(request)
        self.sent_requests += 1
        try:
            link.connection.send_bytes(sent.frame)
        except TransportError:
            self._lose(link)
            return False
        if self.plan.acks == 0:
            self._send_only(link.in_flight.pop())
        return True

    def _send_only(self, request: "_InFlight") -> None:
        """Settle what no response will settle."""
        now_us = monotonic_us()
        for partition, batch in request.batches:
            partition.in_flight -= 1
            self._state.responded(batch.batch, 0, -1)
            self._settle_or_retry(partition, batch, Next.UNKNOWN, None, now_us)

    @property
    def _may_add_batches(self) -> bool:
        """Hook: whether any partition may get a new batch now."""
        return not self._stopping and not self._state.needs_producer_id

    def _may_add(self, partition: LoadPartition) -> bool:
        """Hook: return whether the partition may have another batch in flight."""
        return self._state.can_add(partition.where)

    def _produce_version(self, _: LoadLink) -> int:
        """Hook: return the version of Produce for this connection."""
        return PRODUCE_VERSION

    def _take_retries(self, link: LoadLink, now_us: int) -> list[tuple[LoadPartition, LoadBatch]]:
        """Take the first batch of each partition that must resend one, and may do so now."""
        found: list[tuple[LoadPartition, LoadBatch]] = []
        for partition in list(self._failing.values()):
            waits = partition.in_flight or now_us < partition.not_before_us
            if waits or self._link_of.get(partition.index) is not link or len(found) == self.plan.request_batches:
                continue
            batch = self._take_retry(partition)
            if batch is not None:
                found.append((partition, batch))
        return found

    def _add_new(self, link: LoadLink, chosen: list[tuple[LoadPartition, LoadBatch]], now_us: int) -> None:
        """Add new batches that are due, one of each partition, until the request is full."""
        held = {partition.index for partition, _ in chosen}
        made: list[LoadPartition] = []
        while link.due and link.due[0][0] <= now_us and len(chosen) < self.plan.request_batches:
            if not self._may_add_batches:
                break
            partition = self._partitions[heapq.heappop(link.due)[2]]
            if partition.failed or partition.index in held or not self._may_add(partition):
                partition.is_parked = True
                continue
            chosen.append((partition, self._make_batch(partition, now_us)))
            made.append(partition)
        for partition in made:
            link.queue(partition)

    def _unpark(self, partition: LoadPartition) -> None:
        """Queue a partition whose next batch no longer has to wait."""
        link = self._link_of.get(partition.index)
        if partition.is_parked and link is not None and not partition.failed and self._state.can_add(partition.where):
            partition.is_parked = False
            link.queue(partition)

    def _make_batch(self, partition: LoadPartition, now_us: int) -> LoadBatch:
        """Hook: make the partition's next batch."""
        number, plan = partition.made, self.plan
        due_us = partition.due_us if self._interval_us else now_us
        first = partition.index * SEQUENCES + number * plan.batch_records
        partition.made += 1
        self._schedule(partition)
        batch = self._state.add(partition.where, plan.batch_records)
        records = self._encoded(batch, first, due_us)
        return LoadBatch(number, first, due_us, now_us, now_us + plan.delivery_timeout_us, batch, records)

    def _schedule(self, partition: LoadPartition) -> None:
        """Set when the partition's next batch is due. Counted from the start, so that errors do not add up."""
        place = partition.index + partition.made * len(self._partitions)
        partition.due_us = self._start_us + int(place * self._interval_us)

    def _take_retry(self, partition: LoadPartition) -> LoadBatch | None:
        """Take the first batch to resend; None if it needs a producer ID that is not known yet."""
        failed = partition.failed[0]
        batch = failed.batch
        if self.plan.idempotent and batch.producer_id != self._state.producer_id and not batch.maybe_written:
            if self._state.needs_producer_id:
                return None
            self._state.renew(batch)
            failed.records = self._encoded(batch, failed.first_sequence, failed.due_us)
        self._remove_failed(partition, failed)
        return failed

    def _remove_failed(self, partition: LoadPartition, batch: LoadBatch) -> None:
        partition.failed.remove(batch)
        if not partition.failed:
            del self._failing[partition.index]
            self._unpark(partition)

    def _encoded(self, batch: ProducerBatch, first_sequence: int, due_us: int) -> bytes:
        late_us = monotonic_us() - due_us if self.plan.stamps_due_time else 0
        return self._maker.make(
            first_sequence,
            (WALL.now_ns() // 1000 - late_us) // 1000,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            compression=self.plan.compression,
            is_transactional=self.plan.transaction is not None,
        )

    def _request(self, chosen: Sequence[tuple[LoadPartition, LoadBatch]]) -> ProduceRequest:
        topics: dict[str, list[ProducePartition]] = {}
        for partition, batch in chosen:
            topics.setdefault(partition.where.topic, []).append(
                ProducePartition(partition.where.partition, batch.records)
            )
        named = [ProduceTopic(topic, NO_TOPIC_ID, partitions) for topic, partitions in topics.items()]
        transaction = self.plan.transaction
        transactional_id = None if transaction is None else transaction.transactional_id
        return ProduceRequest(self.plan.acks, self.plan.request_timeout_ms, named, transactional_id)

    # Receiving

    def _wait(self) -> None:
        """Hook: wait for responses, for the next batch that is due, or for a while."""
        receive_first(self.awaited(), self._wait_us())

    def awaited(self) -> Awaited:
        """Return the sockets from which a response is due."""
        links = [link for link in self._links.values() if link.in_flight]
        return {link.connection.sock.fileno(): partial(self._receive, link) for link in links}

    def _wait_us(self) -> int:
        """Hook: return for how many microseconds ``_wait`` waits at the most."""
        now_us, wait_us = monotonic_us(), LONGEST_WAIT_US
        if self._may_add_batches:
            for link in self._links.values():
                if link.due and len(link.in_flight) < self.plan.requests_in_flight:
                    wait_us = min(wait_us, link.due[0][0] - now_us)
        return max(wait_us, 0)

    def _receive(self, link: LoadLink) -> None:
        request = link.in_flight[0]
        try:
            # The response has arrived at least in part, and a broker sends it as a whole.
            reply = link.connection.receive(request.sent, time.monotonic() + self.plan.request_timeout_ms / 1000)
        except TransportError:
            self._lose(link)
            return
        link.in_flight.popleft()
        now_us = monotonic_us()
        found = {
            (topic.topic, topic_partition.partition): topic_partition
            for topic in reply.body.responses
            for topic_partition in topic.partitions
        }
        for partition, batch in request.batches:
            partition.in_flight -= 1
            response = found.get(partition.where)
            if response is None:
                self._settle_or_retry(partition, batch, self._state.lost(batch.batch), "INVALID_RESPONSE", now_us)
                continue
            result = self._apply_response(batch.batch, response.error_code, response.base_offset)
            self._settle_or_retry(partition, batch, result, error_name(response.error_code), now_us)

    def _apply_response(self, batch: ProducerBatch, error_code: int, base_offset: int) -> Next:
        """Hook: apply the response to the state of the producer. Return what becomes of the batch."""
        return self._state.responded(batch, error_code, base_offset)

    def _settle_or_retry(
        self, partition: LoadPartition, batch: LoadBatch, result: Next, error: str | None, now_us: int
    ) -> None:
        """Settle a batch and report it, or keep it to be resent (``_take_retries``)."""
        if result in (Next.RETRY, Next.RETRY_ELSEWHERE) and now_us >= batch.deadline_us:
            result = self._state.give_up(batch.batch)
        if result in (Next.RETRY, Next.RETRY_ELSEWHERE):
            batch.error = error
            self._stale = self._stale or result is Next.RETRY_ELSEWHERE
            partition.failed.append(batch)
            partition.failed.sort(key=lambda load_batch: load_batch.number)
            partition.not_before_us = now_us + BACK_OFF_US
            self._failing[partition.index] = partition
            return
        self._unpark(partition)
        kind = {Next.DONE: "ok", Next.UNKNOWN: "info"}.get(result, "fail")
        self._report_settled(
            Settled(
                where=partition.where,
                kind=kind,
                error=None if result is Next.DONE else error,
                first_sequence=batch.first_sequence,
                count=batch.batch.count,
                producer_id=batch.batch.producer_id,
                base_offset=batch.batch.base_offset if result is Next.DONE else -1,
                due_us=batch.due_us,
                first_sent_us=batch.first_sent_us,
                end_us=now_us,
            )
        )

    def _report_settled(self, settled: Settled) -> None:
        """Hook: pass on a batch whose end is known."""
        self._settled(settled)

    def _lose(self, link: LoadLink) -> None:
        """The outcome of the requests in flight is unknown."""
        link.connection.close()
        self._links.pop(link.address.node_id, None)
        self._stale = True
        now_us = monotonic_us()
        for request in link.in_flight:
            for partition, batch in request.batches:
                partition.in_flight -= 1
                self._settle_or_retry(partition, batch, self._state.lost(batch.batch), "disconnected", now_us)

    def _expire(self, now_us: int) -> None:
        for link in list(self._links.values()):
            if link.in_flight and now_us >= link.in_flight[0].deadline_us:
                self._lose(link)
        for partition in list(self._failing.values()):
            overdue = [load_batch for load_batch in partition.failed if now_us >= load_batch.deadline_us]
            for batch in overdue:
                self._remove_failed(partition, batch)
                self._settle_or_retry(partition, batch, self._state.give_up(batch.batch), batch.error, now_us)

    # Metadata

    def _look_up(self, now_us: int) -> None:
        """Find the leaders, connect to them, and get a producer ID. It is retried later if anything fails."""
        self._refresh_not_before_us = now_us + BACK_OFF_US
        known = [*self._metadata.nodes.values(), *self._bootstrap]
        for address in known:
            with suppress(TransportError, OSError):
                with Connection.open(address.host, address.port, _CALL_US, self.plan.process) as connection:
                    topics = sorted({topic_partition.where.topic for topic_partition in self._partitions})
                    response = connection.call(ApiKey.METADATA, METADATA_VERSION, metadata_request(topics), _CALL_US)
                    if self._state.needs_producer_id:
                        self._assign(connection)
                self._metadata = self._metadata.apply(MetadataUpdate.of(response))
                break
        else:
            return
        led: dict[int, list[LoadPartition]] = {}
        for partition in self._partitions:
            leader = self._metadata.leader_of(partition.where)
            if leader is not None:
                led.setdefault(leader.node_id, []).append(partition)
        for node_id in led:
            self._connect(self._metadata.nodes[node_id])
        self._link_of.clear()
        for node_id, link in self._links.items():
            link.partitions, link.due = led.get(node_id, []), []
            for partition in link.partitions:
                self._link_of[partition.index], partition.is_parked = link, False
                link.queue(partition)
        self._stale = sum(len(link.partitions) for link in self._links.values()) < len(self._partitions)

    def _assign(self, connection: Connection) -> None:
        """Hook: get a producer ID through this connection, if the node gives one."""
        response = connection.call(
            ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, init_producer_id_request(), _CALL_US
        )
        if int(response.error_code.value) == 0:
            self._state.assign(int(response.producer_id), int(response.producer_epoch))

    def _connect(self, address: NodeAddress) -> None:
        link = self._links.get(address.node_id)
        if link is not None and link.address == address:
            return
        if link is not None:
            self._lose(link)
        with suppress(TransportError):
            connection = Connection.open(address.host, address.port, _CALL_US, self.plan.process)
            self._links[address.node_id] = LoadLink(address, connection)
            self._connected(address, connection)

    def _connected(self, address: NodeAddress, connection: Connection) -> None:
        """Hook: do what a new connection needs before it is used."""
