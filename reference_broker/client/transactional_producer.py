"""A whole transactional producer: metadata, transactions, and batches to the leaders. There is no I/O here.

The producer sends on *channels*, as ``GroupConsumer`` does: ``metadata``, ``transaction``, and ``node-<ID>`` for each
leader. A driver runs this loop, with times of one monotonic clock in microseconds:

    producer = TransactionalProducer(ProducerConfig((node,), TransactionConfig("my-id")))
    producer.init()
    loop:
        for channel, request in producer.next_requests(now): ... send it to request.to on that channel ...
        producer.learn_versions(node, body)        # each response to ApiVersions
        producer.responded(channel, now, body)         # or failed(channel, now)
        wait for a response, but not beyond producer.wake_at_us

Between, while ``state`` allows it (``transaction_manager``): ``begin``, ``send``, ``send_offsets``, ``commit`` or
``abort``. They raise ``TransactionError`` once the producer is in an error state. ``outcome`` says what became of a
transaction.

One Produce is in flight for each leader, and one batch for each partition. Records that come meanwhile wait and make
up the next batch.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from reference_broker.client.api_versions import Announced
from reference_broker.client.group_consumer import METADATA_CHANNEL, ChannelRequest
from reference_broker.client.group_requests import GroupRequest, MemberIdentity, error_of
from reference_broker.client.metadata_cache import EpochGuards, MetadataCache, NodeAddress
from reference_broker.client.metadata_refresher import MetadataRefresher
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import Next, ProducerBatch, ProducerState
from reference_broker.client.transaction_manager import (
    OffsetsSend,
    Outcome,
    State,
    TransactionConfig,
    TransactionManager,
)
from reference_broker.client.transaction_requests import Remedy, RequestKind, TransactionError, remedy_of
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

TRANSACTION_CHANNEL: Final = "transaction"
_NODE_CHANNEL: Final = "node-"
_LAST_VERSION_BY_NAME: Final = 12
_ALL_REPLICAS: Final = -1


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The configuration of one producer. Durations are microseconds. A batch that is not written within
    ``delivery_timeout_us`` fails, and its transaction with it."""

    bootstrap: tuple[NodeAddress, ...]
    transaction: TransactionConfig
    max_batch_records: int = 500
    delivery_timeout_us: int = 120_000_000
    request_timeout_us: int = 30_000_000
    replicas_timeout_ms: int = 15_000
    backoff_us: int = 100_000
    metadata_version: int = 13
    metadata_max_age_us: int = 300_000_000


@dataclass(slots=True)
class Delivery:
    """Records of one call of ``send``."""

    where: TopicPartition
    records: tuple[Record, ...]
    due_us: int
    base_offset: int = -1
    """The first one's offset once they are written, -1 before and if the broker did not return it."""
    is_written: bool = False
    error: Error | int | None = None
    """The reason why they were abandoned."""
    is_unknown: bool = False
    """Whether they may be written although they were abandoned."""

    @property
    def is_settled(self) -> bool:
        return self.is_written or self.error is not None


@dataclass(slots=True)
class _Outgoing:
    """One partition's batch, until it is settled."""

    batch: ProducerBatch
    deliveries: tuple[Delivery, ...]
    data: bytes
    due_us: int
    in_flight: bool = False
    retry_at_us: int = 0


@dataclass(slots=True)
class TransactionalProducer:
    """The state of one producer. The top of the file says how to drive it."""

    config: ProducerConfig
    metadata: MetadataRefresher = field(init=False)
    transactions: TransactionManager = field(init=False)
    _sequences: ProducerState = field(default_factory=ProducerState)
    _waiting: dict[TopicPartition, deque[Delivery]] = field(default_factory=dict)
    _outgoing: dict[TopicPartition, _Outgoing] = field(default_factory=dict)
    _sent: dict[str, list[_Outgoing]] = field(default_factory=dict)
    """The batches of the Produce in flight on each channel."""
    _topics: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config
        cache = MetadataCache(guards=EpochGuards(leader_epochs=True, metadata_epoch=False))
        self.transactions = TransactionManager(config.transaction, Announced())
        self.metadata = MetadataRefresher(
            config.bootstrap,
            cache,
            False,
            config.metadata_version,
            config.backoff_us,
            config.metadata_max_age_us,
            config.transaction.request_timeout_us,
        )

    # -- what the application does ------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.transactions.state

    @property
    def error(self) -> TransactionError | None:
        """The error that led to an error state."""
        return self.transactions.error

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the last transaction that was to end. None while that is not known yet."""
        return self.transactions.outcome

    def init(self) -> None:
        """Request a producer ID. READY follows.

        This and the next methods raise ``IllegalStepError`` where ``TRANSITIONS`` has no such step, and
        ``TransactionError`` where an error prevents the step.
        """
        self.transactions.init()

    def begin(self) -> None:
        """Begin a transaction. If the identity is another one by now, batches are numbered from 0 again."""
        self.transactions.begin()
        known, numbered = self.transactions.identity, self._sequences
        if (numbered.producer_id, numbered.producer_epoch) != (known.producer_id, known.epoch):
            numbered.assign(known.producer_id, known.epoch)

    def send(self, now_us: int, partition: TopicPartition, records: Sequence[Record]) -> Delivery:
        """Send records to a partition, in order, as part of the transaction."""
        assert records, "a send of no records"
        self.transactions.add(partition)
        delivery = Delivery(partition, tuple(records), now_us + self.config.delivery_timeout_us)
        self._waiting.setdefault(partition, deque()).append(delivery)
        if partition.topic not in self._topics:
            self._topics[partition.topic] = None
            self.metadata.want_at_once()
        return delivery

    def look_up(self, topic: str) -> None:
        """Request the metadata of this topic, too, from now on."""
        self._topics[topic] = None
        self.metadata.want_at_once()

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetToCommit], identity: MemberIdentity) -> OffsetsSend:
        """Make these offsets of the consumer's group part of the transaction. ``identity`` is the consumer's."""
        return self.transactions.send_offsets(offsets, identity)

    def commit(self) -> None:
        """Commit once everything is written. ``outcome`` follows."""
        self.transactions.commit()

    def abort(self) -> None:
        """Abort. Records that were not sent yet are dropped. ``outcome`` follows."""
        self.transactions.abort()

    @property
    def is_flushed(self) -> bool:
        """Whether no records wait for their end."""
        return not self._outgoing and not any(self._waiting.values())

    # -- the loop -----------------------------------------------------------------------------------------------

    def learn_versions(self, node: NodeAddress, body: object) -> None:
        """Learn the versions in a node's ApiVersions response. Call it before the first request goes to the node."""
        self.transactions.announced.learn(node.host, node.port, body)

    def next_requests(self, now_us: int) -> list[ChannelRequest]:
        """Return what to send now. For each request exactly one of ``responded`` and ``failed`` must follow."""
        self._give_up_late(now_us)
        found: list[ChannelRequest] = []
        self._add(found, METADATA_CHANNEL, self.metadata.next_request(now_us, tuple(self._topics)))
        self._add(found, TRANSACTION_CHANNEL, self.transactions.next_request(now_us, self.is_flushed))
        for node_id, batches in self._batches_by_node(now_us).items():
            node = self.metadata.cache.nodes[node_id]
            self._add(found, f"{_NODE_CHANNEL}{node_id}", self._produce(f"{_NODE_CHANNEL}{node_id}", node, batches))
        return found

    @property
    def wake_at_us(self) -> int | None:
        """The time at which ``next_requests`` may return something even if no response or call comes before."""
        due = [] if self.metadata.is_requesting else [self.metadata.due_at_us]
        waiting = self.transactions.wake_at_us(self.is_flushed)
        due += [] if waiting is None else [waiting]
        due += [each.retry_at_us or each.due_us for each in self._outgoing.values() if not each.in_flight]
        due += [each[0].due_us for each in self._waiting.values() if each]
        return min(due, default=None)

    def responded(self, channel: str, now_us: int, body: object) -> None:
        """Apply the response to the channel's request."""
        if channel == METADATA_CHANNEL:
            if self.metadata.responded(now_us, body):
                cache = self.metadata.cache
                known = all(topic in cache.topics for topic in self._topics)
                self.metadata.done(now_us, known and not cache.missing(self._wanted))
        elif channel == TRANSACTION_CHANNEL:
            self.transactions.responded(now_us, body)
        else:
            self._produced(channel, now_us, cast(ProduceResponse, body))
        self._drop_if_failed()

    def failed(self, channel: str, now_us: int) -> None:
        """Record that the channel's request got no response."""
        if channel == METADATA_CHANNEL:
            self.metadata.failed(now_us)
        elif channel == TRANSACTION_CHANNEL:
            self.transactions.failed(now_us)
            self.metadata.try_another()
        else:
            for each in self._sent.pop(channel):
                self._go_on(each, now_us, self._sequences.lost(each.batch), ErrorCode.network_exception)
        self._drop_if_failed()

    def _add(self, requests: list[ChannelRequest], channel: str, request: GroupRequest | None) -> None:
        if request is not None:
            if request.to is None:
                request = replace(request, to=self.metadata.any_node())
            requests.append(ChannelRequest(channel, request))

    @property
    def _wanted(self) -> set[TopicPartition]:
        return {*self._outgoing, *(partition for partition, each in self._waiting.items() if each)}

    # -- batches ------------------------------------------------------------------------------------------------

    def _batches_by_node(self, now_us: int) -> dict[int, list[_Outgoing]]:
        for each in self._outgoing.values():
            if each.retry_at_us <= now_us:  # This includes batches whose channel is busy: they must wake no one.
                each.retry_at_us = 0
        found: dict[int, list[_Outgoing]] = {}
        for partition in sorted(self._wanted):
            leader = self.metadata.cache.leader_of(partition)
            if leader is None:
                self.metadata.want(now_us)
                continue
            if f"{_NODE_CHANNEL}{leader.node_id}" in self._sent or not self.transactions.may_send(partition):
                continue
            outgoing = self._outgoing.get(partition) or self._made(partition)
            if outgoing is not None and not outgoing.in_flight and not outgoing.retry_at_us:
                found.setdefault(leader.node_id, []).append(outgoing)
        return found

    def _made(self, partition: TopicPartition) -> _Outgoing | None:
        """Make the partition's next batch of what waits."""
        if not self._sequences.can_add(partition):
            return None
        waiting, chosen, count = self._waiting[partition], list[Delivery](), 0
        while waiting and (not chosen or count + len(waiting[0].records) <= self.config.max_batch_records):
            chosen.append(waiting.popleft())
            count += len(chosen[-1].records)
        batch = self._sequences.add(partition, count)
        data = build(
            [record for each in chosen for record in each.records],
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            is_transactional=True,
        )
        outgoing = self._outgoing[partition] = _Outgoing(batch, tuple(chosen), data, chosen[0].due_us)
        return outgoing

    def _produce(self, channel: str, node: NodeAddress, batches: list[_Outgoing]) -> GroupRequest:
        manager, cache = self.transactions, self.metadata.cache
        version = manager.announced.version(node.host, node.port, ApiKey.PRODUCE, manager.adds_by_itself)
        topics: dict[str, list[ProducePartition]] = {}
        for batch in batches:
            batch.in_flight, batch.retry_at_us = True, 0
            topics.setdefault(batch.batch.where.topic, []).append(
                ProducePartition(batch.batch.where.partition, batch.data)
            )
        if any(cache.topic_id(topic) == NO_TOPIC_ID for topic in topics):
            version = min(version, _LAST_VERSION_BY_NAME)
        by_name = version <= _LAST_VERSION_BY_NAME
        named = [
            ProduceTopic(topic if by_name else "", NO_TOPIC_ID if by_name else cache.topic_id(topic), partitions)
            for topic, partitions in topics.items()
        ]
        self._sent[channel] = batches
        transactional_id = self.config.transaction.transactional_id
        body = ProduceRequest(_ALL_REPLICAS, self.config.replicas_timeout_ms, named, transactional_id)
        return GroupRequest(int(ApiKey.PRODUCE), version, body, self.config.request_timeout_us, node)

    def _produced(self, channel: str, now_us: int, response: ProduceResponse) -> None:
        cache = self.metadata.cache
        names = {cache.topic_id(topic): topic for topic in self._topics}
        found = {
            TopicPartition(topic.topic or names.get(topic.topic_id, ""), partition.partition): partition
            for topic in response.responses
            for partition in topic.partitions
        }
        for outgoing in self._sent.pop(channel):
            data = found.get(outgoing.batch.where)
            if data is None:
                self._go_on(outgoing, now_us, self._sequences.lost(outgoing.batch), ErrorCode.network_exception)
                continue
            error, leader = error_of(data.error_code), data.current_leader
            if leader is not None and leader.leader_id >= 0:
                self.metadata.cache = self.metadata.cache.learn_leader(
                    outgoing.batch.where, leader.leader_id, leader.leader_epoch
                )
            self._go_on(outgoing, now_us, self._next(outgoing.batch, error, data.base_offset), error)

    def _next(self, batch: ProducerBatch, error: Error | int, base_offset: int) -> Next:
        """Return the fate of a batch. A new producer ID for it alone, which helps outside of transactions, would take
        it out of the transaction."""
        is_hopeless = remedy_of(RequestKind.PRODUCE, error) is not Remedy.ABORT_AND_RAISE_EPOCH
        if error and (is_hopeless or error is ErrorCode.unknown_producer_id):
            return self._sequences.give_up(batch)
        return self._sequences.responded(batch, int(error), base_offset)

    def _go_on(self, outgoing: _Outgoing, now_us: int, following: Next, error: Error | int) -> None:
        outgoing.in_flight = False
        if following is Next.DONE:
            self._end(outgoing, None)
        elif following in (Next.FAILED, Next.UNKNOWN):
            self._end(outgoing, error)
            self.transactions.batch_failed(error)
        else:
            outgoing.retry_at_us = now_us + self.config.backoff_us
            if following is Next.RETRY_ELSEWHERE:
                self.metadata.want(now_us)

    def _end(self, outgoing: _Outgoing, error: Error | int | None) -> None:
        del self._outgoing[outgoing.batch.where]
        offset = outgoing.batch.base_offset
        for delivery in outgoing.deliveries:
            delivery.is_written, delivery.error, delivery.base_offset = error is None, error, offset
            delivery.is_unknown = error is not None and outgoing.batch.maybe_written
            offset += len(delivery.records) if offset >= 0 else 0

    def _give_up_late(self, now_us: int) -> None:
        for partition, waiting in self._waiting.items():
            if waiting and waiting[0].due_us <= now_us and partition not in self._outgoing:
                self.transactions.batch_failed(ErrorCode.request_timed_out)
        for each in list(self._outgoing.values()):
            if not each.in_flight and each.due_us <= now_us:
                self._sequences.give_up(each.batch)
                self._end(each, ErrorCode.request_timed_out)
                self.transactions.batch_failed(ErrorCode.request_timed_out)
        self._drop_if_failed()

    def _drop_if_failed(self) -> None:
        """Drop what belongs to a transaction that cannot be committed any more. Batches in flight get their response
        first, so that EndTxn comes after them."""
        if not self.transactions.has_failed:
            return
        reason = self.error.error if self.error is not None else ErrorCode.operation_not_attempted
        for waiting in self._waiting.values():
            while waiting:
                waiting.popleft().error = reason
        for each in list(self._outgoing.values()):
            if not each.in_flight:
                self._sequences.give_up(each.batch)
                self._end(each, reason)
                self.transactions.batch_dropped()
