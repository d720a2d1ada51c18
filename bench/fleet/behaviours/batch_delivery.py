"""Sends the batches of a producer. A batch is sent again with its sequence until its end is known or time is over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from bench.fleet.behaviours.bodies import init_producer_id_request
from bench.fleet.behaviours.cluster import PATIENT_FAILURES, ClusterScript
from bench.fleet.behaviours.protocol import Answered, HistoryRow, TopicPartition
from bench.fleet.behaviours.script import Operation, Steps
from reference_broker.client.producer import Batch, Next, ProducerState
from reference_broker.records.builder import build
from reference_broker.records.record import Record
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

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

LAST_VERSION_BY_NAME: Final = 12
PLAIN_HEADERS: Final = ((-1, -1), (-1, 0), (0, 0))
"""Producer epoch and base sequence of a batch without a producer ID, as clients write them (``bench/peers/captured``):
the Java client and librdkafka; sarama, franz-go and aiokafka; KafkaJS and platformatic. They are used in turn."""


@dataclass(slots=True)
class Slot:
    """The records of one request. ``batch`` is None until a leader and a producer ID are known."""

    operation: Operation
    where: TopicPartition
    first_sequence: int
    deadline_us: int
    count: int
    batch: Batch | None = None
    records: bytes = b""


@dataclass(slots=True)
class BatchDelivery:
    """Delivers one batch at a time for one script. ``records`` makes the records of a slot. ``rows`` makes what the
    history says of a slot whose batch was made. ``pending`` is the slot whose end is not known yet. The script may give
    up after its deadline."""

    script: ClusterScript
    state: ProducerState
    records: Callable[[Slot], list[Record]]
    rows: Callable[[Slot, Batch], tuple[HistoryRow, ...]]
    acks: int = -1
    request_wait_ms: int = 1_000
    pending: Slot | None = None

    @property
    def is_overdue(self) -> bool:
        return self.pending is not None and self.script.now.mono_us >= self.pending.deadline_us

    def deliver(self, slot: Slot) -> Steps[bool]:
        """Tries until the batch's end is known or the script gives up, and records the end. Returns whether the batch
        is written."""
        self.pending = slot
        result, error, answer = yield from self._attempts(slot)
        rows = self.rows_in_flight()
        self.pending = None
        kind = {Next.DONE: "ok", Next.UNKNOWN: "info"}.get(result, "fail")
        self.script.journal.end(slot.operation, kind, error, answer, -1, -1 if answer is None else 1, rows)
        return result is Next.DONE

    def rows_in_flight(self) -> tuple[HistoryRow, ...]:
        """The rows of the pending slot, if its batch was made."""
        slot = self.pending
        return () if slot is None or slot.batch is None else self.rows(slot, slot.batch)

    def _encoded(self, slot: Slot, batch: Batch) -> bytes:
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        if not self.state.idempotent:
            epoch, sequence = PLAIN_HEADERS[slot.operation.index % len(PLAIN_HEADERS)]
        return build(self.records(slot), producer_id=batch.producer_id, producer_epoch=epoch, base_sequence=sequence)

    def _attempts(self, slot: Slot) -> Steps[tuple[Next, str | None, Answered | None]]:
        error: str | None = "not_sent"
        while not self.script.gives_up:
            if (yield from self._ready(slot)):
                result, error, answer = yield from self._attempt(slot)
                if result in (Next.DONE, Next.FAILED, Next.UNKNOWN):
                    return result, error, answer
                if result is Next.RETRY_ELSEWHERE:
                    if self._leads(slot.operation.node, slot.where):  # The answer did not name the new leader.
                        yield from self.script.back_off()
                        yield from self.script.refresh()
                    continue
                if self.script.strand.failures > PATIENT_FAILURES:
                    # A leader that was replaced and does not know it answers with timeouts for ever.
                    yield from self.script.refresh()
            yield from self.script.back_off()
        if slot.batch is None:
            return Next.FAILED, error, None
        return self.state.give_up(slot.batch), error, None

    def _ready(self, slot: Slot) -> Steps[bool]:
        """Connects to the leader and makes the batch with a producer ID. Tries each leader that metadata names once."""
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

    def _leads(self, node_id: int, where: TopicPartition) -> bool:
        leader = self.script.metadata.leader_of(where)
        return leader is None or leader.node_id == node_id

    def _attempt(self, slot: Slot) -> Steps[tuple[Next, str | None, Answered | None]]:
        batch = slot.batch
        assert batch is not None, "a slot is sent before its batch is made"
        if slot.operation.invoke_us < 0:
            slot.operation.invoke_us = self.script.now.mono_us
        slot.operation.partitions_sent = 1
        answer = yield from self.script.call(*self._request(slot), self.request_wait_ms * 1000)
        if isinstance(answer, str):
            return self.state.lost(batch), answer, None
        found = _partition_of(cast(ProduceResponse, answer.body))
        if found is None:
            return self.state.lost(batch), "INVALID_ANSWER", answer
        result = self.state.answered(batch, found.error_code, found.base_offset)
        if result is Next.DONE:
            self.script.succeeded()
            return result, None, answer
        leader = found.current_leader
        if leader is not None and leader.leader_id >= 0:
            self.script.metadata = self.script.metadata.learn_leader(slot.where, leader.leader_id, leader.leader_epoch)
        return result, error_name(found.error_code), answer

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
        answer = yield from self.script.call(ApiKey.INIT_PRODUCER_ID, version, init_producer_id_request())
        if isinstance(answer, str):
            self.script.journal.end(operation, "fail", answer)
            return False
        body = cast("InitProducerIdResponse", answer.body)
        code = int(body.error_code.value)
        if code:
            self.script.journal.end(operation, "fail", error_name(code), answer)
            return False
        self.state.assign(int(body.producer_id), int(body.producer_epoch))
        self.script.journal.end(operation, "ok", None, answer)
        return True


def _partition_of(body: ProduceResponse) -> ProducePartitionResponse | None:
    """Returns the answer's only partition. None means that it does not fit the request, which named one."""
    partitions = [each for topic in body.responses for each in topic.partitions]
    return partitions[0] if len(partitions) == 1 else None
