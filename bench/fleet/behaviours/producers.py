"""Keyed producers with unique values, on an open-loop schedule.

Slot n of a producer is due at ``start + n * interval``, whatever happened to the slots before. All overdue slots are
sent, one after the other. The intended time of an operation is the time at which its slot was due. One slot is one
request to one partition. An idempotent producer sends a batch again, with its sequence, until it knows how it ended or
the delivery time is over.
"""

from dataclasses import dataclass

from bench.fleet.behaviours.batch_delivery import BatchDelivery, Slot
from bench.fleet.behaviours.cluster import ClusterScript, EpochHabits
from bench.fleet.behaviours.keyed_records import NOT_COMPACTED, KeyedRecords
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.script import OpenLoop, Steps
from bench.fleet.values import ValueMaker
from reference_broker.client.producer import Batch, ProducerState
from reference_broker.records.record import Record
from reports.rows import RunRow


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """What one producer does.

    Each slot sends to the next of ``partitions``. With ``interval_us`` 0 every slot is due at once. With ``max_slots``
    0 only Stopping ends the producer. A value has ``record_bytes``. Each partition has so many ``keys``. Of the records
    ``delete_percent`` are tombstones, which the topic keeps for ``delete_retention_us`` if it is compacted.
    """

    process: str
    partitions: tuple[TopicPartition, ...]
    interval_us: int = 100_000
    records_per_request: int = 10
    record_bytes: int = 100
    acks: int = -1
    idempotent: bool = True
    keys: int = 16
    delete_percent: int = 0
    delete_retention_us: int = NOT_COMPACTED
    max_slots: int = 0
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
        assert plan.acks in (1, -1), "with acks=0 nothing is answered, so nothing can be recorded"
        habits = EpochHabits(plan.metadata_epoch, plan.metadata_interval_us)
        super().__init__(plan.process, settings, random, [each.topic for each in plan.partitions], habits)
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
        where = self.plan.partitions[(self.loop.slots - 1) % len(self.plan.partitions)]
        operation = self.journal.begin("produce", due_us, sent=False)
        deadline_us, count = self.now.mono_us + self.plan.delivery_timeout_us, self.plan.records_per_request
        slot = Slot(operation, where, self.next_sequence, deadline_us, count)
        self.next_sequence += count
        yield from self.delivery.deliver(slot)

    def close(self, now: Now) -> list[HistoryRow]:
        """Ends at once. The batch in flight may be written, so its run is recorded too."""
        return [*super().close(now), *self.delivery.rows_in_flight()]

    def _rows(self, slot: Slot, batch: Batch) -> tuple[HistoryRow, ...]:
        run = RunRow(
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
        return (run, *keyed)

    def _records(self, slot: Slot) -> list[Record]:
        return self.records.make(slot.where, slot.first_sequence, slot.count, self.now.wall_ms)
