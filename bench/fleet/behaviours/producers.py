"""Keyed producers with unique values, on an open-loop schedule.

Slot n of a producer is due at ``start + n * interval``, whatever happened to the slots before; all overdue slots are
sent, one after the other, and the operation's intended time is the slot's. One slot is one request to one partition.
An idempotent producer sends a batch again, with its sequence, until it knows its end or the delivery time is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast
from zlib import crc32

from bench.fleet.behaviours.bodies import INIT_PRODUCER_ID, PRODUCE, init_producer_id_request
from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.cluster import PATIENT_FAILURES, ClusterScript
from bench.fleet.behaviours.protocol import Answered, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.script import Operation, Steps
from bench.fleet.values import ValueMaker
from reference_broker.client.producer import Batch, Next, ProducerState
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reference_broker.wire.errors import error_name
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from reports.rows import RunRow

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

LAST_VERSION_BY_NAME: Final = 12
MAX_UNSENT_RECORDED: Final = 100_000
"""Slots that were overdue but never sent when load ended: at most so many are written down."""


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """``partitions``: in turn, one a slot. ``interval_us`` 0: every slot is due at once. ``max_slots`` 0: no end before
    Stopping. ``record_bytes``: size of a value. ``keys``: different keys for each partition."""

    process: str
    partitions: tuple[TopicPartition, ...]
    interval_us: int = 100_000
    records_per_request: int = 10
    record_bytes: int = 100
    acks: int = -1
    idempotent: bool = True
    keys: int = 16
    max_slots: int = 0
    delivery_timeout_us: int = 30_000_000
    request_wait_ms: int = 1_000
    """``timeout_ms`` of the request: how long the broker may wait for replicas."""


def partition_keys(partitions: Sequence[TopicPartition], keys: int) -> dict[TopicPartition, tuple[bytes, ...]]:
    """For each partition ``keys`` keys whose CRC-32 leads to it, so that a key never changes its partition."""
    found: dict[TopicPartition, list[bytes]] = {where: [] for where in partitions}
    counts: dict[str, int] = {}
    for where in partitions:
        counts[where.topic] = max(counts.get(where.topic, 0), where.partition + 1)
    for topic, count in counts.items():
        for number in range(count * keys * 8):
            key = b"k%06d" % number
            bucket = found.get(TopicPartition(topic, crc32(key) % count))
            if bucket is not None and len(bucket) < keys:
                bucket.append(key)
    return {where: tuple(each) or (b"k",) for where, each in found.items()}


@dataclass(slots=True)
class Slot:
    """One slot's records. ``batch`` None: none made yet, or an idempotent producer needs another ID first."""

    operation: Operation
    where: TopicPartition
    first_sequence: int
    deadline_us: int
    batch: Batch | None = None
    records: bytes = b""
    count: int = 0
    """of its records, 0: as many as the plan says"""


class KeyedProducer(ClusterScript):
    """Ends after Stopping once the slot in flight is settled, or after ``max_slots`` slots."""

    KEEPS_CONNECTIONS = True

    def __init__(self, plan: ProducerPlan, settings: ClientSettings, random: Chance) -> None:
        assert plan.acks in (1, -1), "with acks=0 nothing is answered, so nothing can be recorded"
        super().__init__(plan.process, settings, random, [each.topic for each in plan.partitions])
        self.plan = plan
        self.state = ProducerState(idempotent=plan.idempotent)
        self.values = ValueMaker(plan.process, plan.record_bytes, random.randbytes(64))
        self.keys = partition_keys(plan.partitions, plan.keys)
        self.next_sequence = 0
        self.slots = 0
        self._pending: Slot | None = None

    def run(self) -> Steps[None]:
        if not (yield from self.find_leaders(self.plan.partitions)):
            return
        interval = self.plan.interval_us
        start_us = self.now.mono_us + (self.random.randrange(interval) if interval else 0)
        while not self.stopping and (self.plan.max_slots == 0 or self.slots < self.plan.max_slots):
            due_us = start_us + self.slots * interval
            if self.now.mono_us < due_us:
                yield from self.sleep_until(due_us)
                continue
            self.slots += 1
            yield from self._send_slot(due_us)
        if self.stopping and self.stopping_at_us is not None:
            self._record_unsent(start_us, self.stopping_at_us)

    @property
    def gives_up(self) -> bool:
        return self.out_of_time or (self._pending is not None and self.now.mono_us >= self._pending.deadline_us)

    def _record_unsent(self, start_us: int, end_us: int) -> None:
        """Slots that were overdue by an interval at the end of load and never sent: offered, and failed."""
        if self.plan.interval_us == 0:
            return
        for _ in range(MAX_UNSENT_RECORDED):
            due_us = start_us + self.slots * self.plan.interval_us
            if due_us + self.plan.interval_us >= end_us:
                return
            self.slots += 1
            self.end(self.begin("produce", due_us, sent=False), "fail", "not_sent")

    # -- one slot -----------------------------------------------------------------------------------------------

    def _send_slot(self, due_us: int) -> Steps[None]:
        where = self.plan.partitions[(self.slots - 1) % len(self.plan.partitions)]
        operation = self.begin("produce", due_us, sent=False)
        slot = Slot(operation, where, self.next_sequence, self.now.mono_us + self.plan.delivery_timeout_us)
        self.next_sequence += self.plan.records_per_request
        self._pending = slot
        result, error, answer = yield from self._deliver(slot)
        self._pending = None
        self._settle(slot, result, error, answer)

    def _deliver(self, slot: Slot) -> Steps[tuple[Next, str | None, Answered | None]]:
        """Attempts until the batch's end is known, or time is over."""
        error: str | None = "not_sent"
        while not self.gives_up:
            if (yield from self._ready(slot)):
                result, error, answer = yield from self._attempt(slot)
                if result in (Next.DONE, Next.FAILED, Next.UNKNOWN):
                    return result, error, answer
                if result is Next.RETRY_ELSEWHERE:
                    if self._leads(slot.operation.node, slot.where):  # The answer did not say who else does.
                        yield from self.back_off()
                        yield from self.refresh()
                    continue
                if self.strand.failures > PATIENT_FAILURES:
                    yield from self.refresh()  # A leader that has been replaced, and does not know, times out for ever.
            yield from self.back_off()
        if slot.batch is None:
            return Next.FAILED, error, None
        return self.state.give_up(slot.batch), error, None

    def _ready(self, slot: Slot) -> Steps[bool]:
        """A connection to the leader and a batch with a producer ID. One attempt at each leader that metadata names."""
        leader = self.metadata.leader_of(slot.where)
        while leader is None or not (yield from self.connect_to_node(leader)):
            before = leader
            if not (yield from self.refresh()):
                return False
            leader = self.metadata.leader_of(slot.where)
            if leader == before:
                return False
        slot.operation.node = leader.node_id
        if self.state.needs_producer_id and not (slot.batch is not None and slot.batch.maybe_written):
            if not (yield from self._init_producer_id()):
                yield from self.refresh()  # It may be dead behind a proxy that goes on accepting.
                return False
            if slot.batch is not None:
                self.state.renew(slot.batch)
                slot.records = self._encode(slot)
        if slot.batch is None:
            slot.batch = self.state.add(slot.where, slot.count or self.plan.records_per_request)
            slot.records = self._encode(slot)
        return True

    def _leads(self, node_id: int, where: TopicPartition) -> bool:
        leader = self.metadata.leader_of(where)
        return leader is None or leader.node_id == node_id

    def _attempt(self, slot: Slot) -> Steps[tuple[Next, str | None, Answered | None]]:
        batch = slot.batch
        assert batch is not None, "a slot is sent before its batch is made"
        if slot.operation.invoke_us < 0:
            slot.operation.invoke_us = self.now.mono_us
        slot.operation.partitions_sent = 1
        self.state.sent(batch)
        answer = yield from self.call(*self._request(slot), self.plan.request_wait_ms * 1000)
        if isinstance(answer, str):
            return self.state.lost(batch), answer, None
        found = _partition_of(cast(ProduceResponse, answer.body))
        if found is None:
            return self.state.lost(batch), "INVALID_ANSWER", answer
        result = self.state.answered(batch, found.error_code, found.base_offset)
        if result is Next.DONE:
            self.succeeded()
            return result, None, answer
        leader = found.current_leader
        if leader is not None and leader.leader_id >= 0:
            self.metadata = self.metadata.learn_leader(slot.where, leader.leader_id, leader.leader_epoch)
        return result, error_name(found.error_code), answer

    def _settle(self, slot: Slot, result: Next, error: str | None, answer: Answered | None) -> None:
        kind = {Next.DONE: "ok", Next.UNKNOWN: "info"}.get(result, "fail")
        rows = () if slot.batch is None else (self._run_row(slot, slot.batch),)
        answered = -1 if answer is None else 1
        self.end(slot.operation, kind, error, answer, -1, answered, rows)

    def close(self, now: Now) -> list[HistoryRow]:
        """Hard end: the batch in flight may be written, so its run is recorded too."""
        rows = super().close(now)
        slot = self._pending
        if slot is not None and slot.batch is not None:
            rows.append(self._run_row(slot, slot.batch))
        return rows

    def _run_row(self, slot: Slot, batch: Batch) -> RunRow:
        return RunRow(
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

    # -- bytes and requests -------------------------------------------------------------------------------------

    def _encode(self, slot: Slot) -> bytes:
        batch = slot.batch
        assert batch is not None, "a slot is encoded before its batch is made"
        keys, make, wall_ms = self.keys[slot.where], self.values.make, self.now.wall_ms
        records = [
            Record(timestamp_ms=wall_ms, key=keys[sequence % len(keys)], value=make(sequence))
            for sequence in range(slot.first_sequence, slot.first_sequence + batch.count)
        ]
        return build(
            records,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )

    def _request(self, slot: Slot) -> tuple[int, int, ProduceRequest]:
        topic_id = self.metadata.topic_id(slot.where.topic)
        version = self.settings.versions.produce
        if topic_id == NO_TOPIC_ID:
            version = min(version, LAST_VERSION_BY_NAME)
        said = (slot.where.topic, NO_TOPIC_ID) if version <= LAST_VERSION_BY_NAME else ("", topic_id)
        topic = ProduceTopic(*said, [ProducePartition(slot.where.partition, slot.records)])
        return PRODUCE, version, ProduceRequest(self.plan.acks, self.plan.request_wait_ms, [topic])

    def _init_producer_id(self) -> Steps[bool]:
        operation = self.begin("init_producer_id", self.now.mono_us)
        version = self.settings.versions.init_producer_id
        answer = yield from self.call(INIT_PRODUCER_ID, version, init_producer_id_request())
        if isinstance(answer, str):
            self.end(operation, "fail", answer)
            return False
        body = cast("InitProducerIdResponse", answer.body)
        code = int(body.error_code.value)
        if code:
            self.end(operation, "fail", error_name(code), answer)
            return False
        self.state.assign(int(body.producer_id), int(body.producer_epoch))
        self.end(operation, "ok", None, answer)
        return True


def _partition_of(body: ProduceResponse) -> ProducePartitionResponse | None:
    """A request names one partition, so its answer must too."""
    partitions = [each for topic in body.responses for each in topic.partitions]
    return partitions[0] if len(partitions) == 1 else None
