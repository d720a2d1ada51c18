"""Writers of transactions: each sends records to a few partitions, and then commits, aborts on purpose, or dies."""

from dataclasses import dataclass

from bench.fleet.behaviours.producers import NOT_COMPACTED, KeyedRecords
from bench.fleet.behaviours.protocol import Chance, ClientSettings, TopicPartition
from bench.fleet.behaviours.transactions.client import Open, ProducerHabits, TransactionalClient
from bench.fleet.values import ValueMaker
from reference_broker.client.transactions.producer import TransactionalProducer


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """A transaction begins every ``interval_us``, or as soon as the one before has ended. It sends
    ``records_per_partition`` records to each of the next ``partitions_at_once`` of ``partitions``. ``keys`` and what
    follows are as in ``KeyedRecords``."""

    habits: ProducerHabits
    partitions: tuple[TopicPartition, ...]
    interval_us: int
    partitions_at_once: int = 2
    records_per_partition: int = 5
    record_bytes: int = 100
    keys: int = 16
    delete_percent: int = 0
    delete_retention_us: int = NOT_COMPACTED


class TransactionalWriter(TransactionalClient):
    """Begins no more transactions after Stopping."""

    def __init__(self, plan: WriterPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.habits, settings, random)
        self.plan = plan
        values = ValueMaker(plan.habits.process, plan.record_bytes)
        self.records = KeyedRecords(values, plan.partitions, plan.keys, plan.delete_percent, plan.delete_retention_us)
        self.next_sequence = 0
        self._next_partition = 0
        self._due_us = -1

    def due_at_us(self) -> int:
        if self._due_us < 0:
            self._due_us = self.now_us + self.random.randrange(self.plan.interval_us)
        return self._due_us

    @property
    def has_more(self) -> bool:
        return self._life is not None and self._life.current is not None

    def fill(self, producer: TransactionalProducer, current: Open) -> None:
        plan = self.plan
        self._due_us = max(self.due_at_us() + plan.interval_us, self.now_us)
        for _ in range(plan.partitions_at_once):
            where = plan.partitions[self._next_partition % len(plan.partitions)]
            self._next_partition += 1
            first, count = self.next_sequence, plan.records_per_partition
            self.next_sequence += count
            records = self.records.make(where, first, count, self.journal.now.wall_ms)
            self.send(producer, current, where, records, first)
            current.rows += self.records.rows(self.process, current.operation.index, where, first, count)

    def ended(self, current: Open) -> None:
        """Values are never sent again, whatever has become of them."""
