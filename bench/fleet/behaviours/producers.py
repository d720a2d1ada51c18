"""Keyed producers with unique values, on an open-loop schedule.

``KeyedRecords`` makes the records: unique values and tombstones, under keys that take turns in each partition.
``BatchDelivery`` sends one batch at a time, and resends it with its sequence until its result is known or its delivery
time has passed. Mirrors use it too. ``KeyedProducer`` is the client of both.

Slot n of a producer is due at ``start + n * interval``, whatever happened to the slots before. All overdue slots are
sent, one after the other. The intended time of an operation is the time at which its slot was due. One slot is one
request to one partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from zlib import crc32

from bench.fleet.behaviours.bodies import init_producer_id_request
from bench.fleet.behaviours.cluster import PATIENT_FAILURES, ClusterScript, EpochHabits
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, Now, ResponseReceived, TopicPartition
from bench.fleet.behaviours.script import OpenLoop, Operation, Steps
from bench.fleet.values import PROOF, ValueMaker
from reference_broker.client.producer import Next, ProducerBatch, ProducerState
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from reports.rows import KeyedWriteRow, SpanRow

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse


NOT_COMPACTED = -1


def partition_keys(partitions: Sequence[TopicPartition], keys: int) -> dict[TopicPartition, tuple[bytes, ...]]:
    """Return ``keys`` keys for each partition. The CRC-32 of a key leads to its partition, so a key never changes its
    partition."""
    found: dict[TopicPartition, list[bytes]] = {partition: [] for partition in partitions}
    counts: dict[str, int] = {}
    for partition in partitions:
        counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
    for topic, count in counts.items():
        for number in range(count * keys * 8):
            key = b"k%06d" % number
            bucket = found.get(TopicPartition(topic, crc32(key) % count))
            if bucket is not None and len(bucket) < keys:
                bucket.append(key)
    return {topic_partition: tuple(each) or (b"k",) for topic_partition, each in found.items()}


class KeyedRecords:
    """A record of a writer has the number ``sequence``, which determines all of it: its key, and whether it is a
    tombstone. So a batch that is encoded again holds the same records.

    Of all records ``delete_percent`` are tombstones. ``delete_retention_us`` is the topic's ``delete.retention.ms``, or
    NOT_COMPACTED.
    """

    def __init__(
        self,
        values: ValueMaker,
        partitions: Sequence[TopicPartition],
        keys: int,
        delete_percent: int,
        delete_retention_us: int,
    ) -> None:
        self.values = values
        self._keys = partition_keys(partitions, keys)
        self._delete_percent = delete_percent
        self._delete_retention_us = delete_retention_us

    def make(self, partition: TopicPartition, first: int, count: int, wall_ms: int) -> list[Record]:
        """Return the records with the numbers ``first`` to ``first + count - 1``."""
        return [self._record(partition, sequence, wall_ms) for sequence in range(first, first + count)]

    def rows(self, process: str, index: int, partition: TopicPartition, first: int, count: int) -> list[KeyedWriteRow]:
        """Return what the history says of these records if their topic is compacted."""
        if self._delete_retention_us == NOT_COMPACTED:
            return []
        return [
            KeyedWriteRow(
                process,
                index,
                *partition,
                sequence,
                self._key(partition, sequence).decode(),
                self._is_tombstone(sequence),
                self._delete_retention_us,
            )
            for sequence in range(first, first + count)
        ]

    def _record(self, partition: TopicPartition, sequence: int, wall_ms: int) -> Record:
        key, value = self._key(partition, sequence), self.values.make(sequence)
        if self._is_tombstone(sequence):
            return Record(timestamp_ms=wall_ms, key=key, headers=((PROOF, value),))
        return Record(timestamp_ms=wall_ms, key=key, value=value)

    def _key(self, partition: TopicPartition, sequence: int) -> bytes:
        keys = self._keys[partition]
        return keys[sequence % len(keys)]

    def _is_tombstone(self, sequence: int) -> bool:
        return self._delete_percent > 0 and crc32(self.values.make(sequence)) % 100 < self._delete_percent


LAST_VERSION_BY_NAME: Final = 12
PLAIN_HEADERS: Final = ((-1, -1), (-1, 0), (0, 0))
"""Producer epoch and base sequence of a batch without a producer ID, as clients write them (``bench/peers/captured``):
the Java client and librdkafka; sarama, franz-go and aiokafka; KafkaJS and platformatic. They are used in turn."""


@dataclass(slots=True)
class Slot:
    """The records of one request."""

    operation: Operation
    where: TopicPartition
    first_sequence: int
    deadline_us: int
    count: int
    batch: ProducerBatch | None = None  # None until a leader and a producer ID are known
    records: bytes = b""


@dataclass(slots=True)
class BatchDelivery:
    """Delivers one batch at a time for one script. The script may give up after its deadline."""

    script: ClusterScript
    state: ProducerState
    records: Callable[[Slot], list[Record]]  # makes the records of a slot
    rows: Callable[[Slot, ProducerBatch], tuple[HistoryRow, ...]]  # makes the history rows of a sent slot
    acks: int = -1
    request_wait_ms: int = 1_000
    pending: Slot | None = None  # the slot whose end is not known yet

    @property
    def is_overdue(self) -> bool:
        return self.pending is not None and self.script.now.mono_us >= self.pending.deadline_us

    def deliver(self, slot: Slot) -> Steps[bool]:
        """Try until the batch's end is known or the script gives up, and record the end. Return whether the batch
        is written."""
        self.pending = slot
        result, error, response = yield from self._attempts(slot)
        rows = self.rows_in_flight()
        self.pending = None
        kind = {Next.DONE: "ok", Next.UNKNOWN: "info"}.get(result, "fail")
        slot.operation.response_partitions = -1 if response is None else 1
        self.script.journal.end(slot.operation, kind, error, response, rows)
        return result is Next.DONE

    def rows_in_flight(self) -> tuple[HistoryRow, ...]:
        """The rows of the pending slot, if its batch was made."""
        slot = self.pending
        return () if slot is None or slot.batch is None else self.rows(slot, slot.batch)

    def _encoded(self, slot: Slot, batch: ProducerBatch) -> bytes:
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        if not self.state.idempotent:
            epoch, sequence = PLAIN_HEADERS[slot.operation.index % len(PLAIN_HEADERS)]
        return build(self.records(slot), producer_id=batch.producer_id, producer_epoch=epoch, base_sequence=sequence)

    def _attempts(self, slot: Slot) -> Steps[tuple[Next, str | None, ResponseReceived | None]]:
        error: str | None = "not_sent"
        while not self.script.gives_up:
            if (yield from self._ready(slot)):
                result, error, response = yield from self._attempt(slot)
                if result in (Next.DONE, Next.FAILED, Next.UNKNOWN):
                    return result, error, response
                if result is Next.RETRY_ELSEWHERE:
                    if self._leads(slot.operation.node, slot.where):  # The response did not name the new leader.
                        yield from self.script.back_off()
                        yield from self.script.refresh()
                    continue
                if self.script.running_task.failures > PATIENT_FAILURES:
                    # A leader that was replaced and does not know it responds with timeouts for ever.
                    yield from self.script.refresh()
            yield from self.script.back_off()
        if slot.batch is None:
            return Next.FAILED, error, None
        return self.state.give_up(slot.batch), error, None

    def _ready(self, slot: Slot) -> Steps[bool]:
        """Connect to the leader and make the batch with a producer ID. Try each leader that metadata names once."""
        leader = self.script.metadata.leader_of(slot.where)
        while leader is None or not (yield from self.script.connect_to_node(leader)):
            before = leader
            if not (yield from self.script.refresh()):
                return False
            leader = self.script.metadata.leader_of(slot.where)
            if leader == before:
                return False
        slot.operation.node = leader.node_id
        if self.state.needs_producer_id and not (slot.batch is not None and slot.batch.maybe_written):
            if not (yield from self._init_producer_id()):
                yield from self.script.refresh()  # A dead leader's proxy may still accept connections.
                return False
            if slot.batch is not None:
                self.state.renew(slot.batch)
                slot.records = self._encoded(slot, slot.batch)
        if slot.batch is None:
            slot.batch = self.state.add(slot.where, slot.count)
            slot.records = self._encoded(slot, slot.batch)
        return True

    def _leads(self, node_id: int, partition: TopicPartition) -> bool:
        leader = self.script.metadata.leader_of(partition)
        return leader is None or leader.node_id == node_id

    def _attempt(self, slot: Slot) -> Steps[tuple[Next, str | None, ResponseReceived | None]]:
        batch = slot.batch
        assert batch is not None, "a slot is sent before its batch is made"
        if slot.operation.invoke_us < 0:
            slot.operation.invoke_us = self.script.now.mono_us
        slot.operation.partitions_sent = 1
        response = yield from self.script.call(*self._request(slot), self.request_wait_ms * 1000)
        if isinstance(response, str):
            return self.state.lost(batch), response, None
        found = _partition_of(cast(ProduceResponse, response.body))
        if found is None:
            return self.state.lost(batch), "INVALID_ANSWER", response
        result = self.state.responded(batch, found.error_code, found.base_offset)
        if result is Next.DONE:
            self.script.succeeded()
            return result, None, response
        leader = found.current_leader
        if leader is not None and leader.leader_id >= 0:
            self.script.metadata = self.script.metadata.learn_leader(slot.where, leader.leader_id, leader.leader_epoch)
        return result, error_name(found.error_code), response

    def _request(self, slot: Slot) -> tuple[int, int, ProduceRequest]:
        topic_id = self.script.metadata.topic_id(slot.where.topic)
        version = self.script.settings.versions.produce
        if topic_id == NO_TOPIC_ID:
            version = min(version, LAST_VERSION_BY_NAME)
        named = (slot.where.topic, NO_TOPIC_ID) if version <= LAST_VERSION_BY_NAME else ("", topic_id)
        topic = ProduceTopic(*named, [ProducePartition(slot.where.partition, slot.records)])
        return ApiKey.PRODUCE, version, ProduceRequest(self.acks, self.request_wait_ms, [topic])

    def _init_producer_id(self) -> Steps[bool]:
        operation = self.script.journal.begin("init_producer_id")
        version = self.script.settings.versions.init_producer_id
        response = yield from self.script.call(ApiKey.INIT_PRODUCER_ID, version, init_producer_id_request())
        if isinstance(response, str):
            self.script.journal.end(operation, "fail", response)
            return False
        body = cast("InitProducerIdResponse", response.body)
        code = int(body.error_code.value)
        if code:
            self.script.journal.end(operation, "fail", error_name(code), response)
            return False
        self.state.assign(int(body.producer_id), int(body.producer_epoch))
        self.script.journal.end(operation, "ok", None, response)
        return True


def _partition_of(body: ProduceResponse) -> ProducePartitionResponse | None:
    """Return the response's only partition. None means that it does not fit the request, which named one."""
    partitions = [partition for topic in body.responses for partition in topic.partitions]
    return partitions[0] if len(partitions) == 1 else None


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """The plan of one producer."""

    process: str
    partitions: tuple[TopicPartition, ...]  # each slot sends to the next of them
    interval_us: int = 100_000  # 0: every slot is due at once
    records_per_request: int = 10
    record_bytes: int = 100  # size of a value
    acks: int = -1
    idempotent: bool = True
    keys: int = 16  # number of keys in each partition
    delete_percent: int = 0  # share of records that are tombstones
    delete_retention_us: int = NOT_COMPACTED  # how long a compacted topic keeps tombstones
    max_slots: int = 0  # 0: only Stopping ends the producer
    delivery_timeout_us: int = 30_000_000
    request_wait_ms: int = 1_000
    """The ``timeout_ms`` of a request, which is how long the broker may wait for replicas."""
    metadata_epoch: bool = False
    metadata_interval_us: int = 0
    """These two are ``cluster.EpochHabits``."""


class KeyedProducer(ClusterScript):
    """Ends after Stopping once the slot in flight is settled, or after ``max_slots`` slots."""

    KEEPS_CONNECTIONS = True

    def __init__(self, plan: ProducerPlan, settings: ClientSettings, random: Chance) -> None:
        assert plan.acks in (1, -1), "with acks=0 there is no response, so nothing can be recorded"
        habits = EpochHabits(plan.metadata_epoch, plan.metadata_interval_us)
        super().__init__(plan.process, settings, random, [partition.topic for partition in plan.partitions], habits)
        self.plan = plan
        self.state = ProducerState(idempotent=plan.idempotent)
        values = ValueMaker(plan.process, plan.record_bytes, random.randbytes(64))
        self.records = KeyedRecords(values, plan.partitions, plan.keys, plan.delete_percent, plan.delete_retention_us)
        self.next_sequence = 0
        self.loop = OpenLoop(self, plan.interval_us, "produce", plan.max_slots)
        self.delivery = BatchDelivery(self, self.state, self._records, self._rows, plan.acks, plan.request_wait_ms)

    def run(self) -> Steps[None]:
        if not (yield from self.find_leaders(self.plan.partitions)):
            return
        yield from self.loop.run(self._send_slot)

    @property
    def gives_up(self) -> bool:
        return self.out_of_time or self.delivery.is_overdue

    # -- one slot -----------------------------------------------------------------------------------------------

    def _send_slot(self, due_us: int) -> Steps[None]:
        yield from self.stay_informed()
        partition = self.plan.partitions[(self.loop.slots - 1) % len(self.plan.partitions)]
        operation = self.journal.begin("produce", due_us, sent=False)
        deadline_us, count = self.now.mono_us + self.plan.delivery_timeout_us, self.plan.records_per_request
        slot = Slot(operation, partition, self.next_sequence, deadline_us, count)
        self.next_sequence += count
        yield from self.delivery.deliver(slot)

    def close(self, now: Now) -> list[HistoryRow]:
        """End at once. The batch in flight may be written, so its span is recorded too."""
        return [*super().close(now), *self.delivery.rows_in_flight()]

    def _rows(self, slot: Slot, batch: ProducerBatch) -> tuple[HistoryRow, ...]:
        span = SpanRow(
            self.process,
            slot.operation.index,
            0,
            "send",
            *slot.where,
            batch.base_offset,
            batch.count,
            batch.producer_id,
            self.process,
            slot.first_sequence,
            True,
            self.plan.acks,
        )
        keyed = self.records.rows(self.process, slot.operation.index, slot.where, slot.first_sequence, slot.count)
        return (span, *keyed)

    def _records(self, slot: Slot) -> list[Record]:
        return self.records.make(slot.where, slot.first_sequence, slot.count, self.now.wall_ms)
