"""Keyed producers with unique values, on an open-loop schedule.

Slot n of a producer is due at ``start + n * interval``, whatever happened to the slots before; all overdue slots are
sent, one after the other, and the operation's intended time is the slot's. One slot is one request to one partition.
An idempotent producer sends a batch again, with its sequence, until it knows its end or the delivery time is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from bench.fleet.behaviours.batch_delivery import BatchDelivery, Slot
from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import Answered, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.script import Steps
from bench.fleet.values import ValueMaker
from reference_broker.client.producer import Batch, Next, ProducerState
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reports.rows import RunRow

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
        self.delivery = BatchDelivery(self, self.state, self._encode, plan.acks, plan.request_wait_ms)

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
        return self.out_of_time or self.delivery.is_overdue

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
        deadline_us, count = self.now.mono_us + self.plan.delivery_timeout_us, self.plan.records_per_request
        slot = Slot(operation, where, self.next_sequence, deadline_us, count)
        self.next_sequence += count
        result, error, answer = yield from self.delivery.deliver(slot)
        self._settle(slot, result, error, answer)

    def _settle(self, slot: Slot, result: Next, error: str | None, answer: Answered | None) -> None:
        kind = {Next.DONE: "ok", Next.UNKNOWN: "info"}.get(result, "fail")
        rows = () if slot.batch is None else (self._run_row(slot, slot.batch),)
        answered = -1 if answer is None else 1
        self.end(slot.operation, kind, error, answer, -1, answered, rows)

    def close(self, now: Now) -> list[HistoryRow]:
        """Hard end: the batch in flight may be written, so its run is recorded too."""
        rows = super().close(now)
        slot = self.delivery.pending
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
