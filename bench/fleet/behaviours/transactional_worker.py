"""Workers that consume, transform and produce, with the offsets in the transaction (KIP-98, KIP-447).

One client holds two behaviours, as a mirror does. A member of the group reads committed records. A transactional
producer makes one value of its own of each record, and writes it to the partition of the same number in the target.
The pipe between them is the member's sink. What a transaction has taken stays in the pipe until it is committed, so
what was aborted is done again with new values. The table ``transforms`` maps offsets to values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bench.fleet.behaviours.group_member import GroupMember, MemberPlan
from bench.fleet.behaviours.piped import Pipe, Piped
from bench.fleet.behaviours.protocol import Chance, ClientSettings, TopicPartition
from bench.fleet.behaviours.transactional_client import NOTHING, Open, ProducerHabits, TransactionalClient
from bench.fleet.values import ValueMaker
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.transactional_producer import TransactionalProducer
from reference_broker.records.record import Record
from reports.rows import CommitRow, TransformRow

RECORDS_PER_TRANSACTION: Final = 500


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The plan of one worker."""

    member: MemberPlan
    habits: ProducerHabits
    target: str  # the topic to which it writes
    target_partitions: int  # number of partitions of the target
    interval_us: int  # time between transactions, if there is anything to do
    record_bytes: int = 100


@dataclass(slots=True)
class WorkerPipe(Pipe[int]):
    """It holds the offsets that were read and are not in a committed transaction."""

    MOST = 5_000

    def piece(self, record: ConsumerRecord) -> int:
        return record.offset

    def done(self, partition: TopicPartition, read: int, committed: int) -> int:  # noqa: ARG002
        return committed

    @property
    def is_empty(self) -> bool:
        return not any(self.waiting.values())

    def settle(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        """These are in a committed transaction. Nothing changes if they were dropped meanwhile."""
        waiting = self.waiting.get(partition)
        while waiting and waiting[0] <= offsets[-1]:
            waiting.popleft()


class WorkerWriter(TransactionalClient):
    """Ends when the pipe has ended and is empty, or time is over."""

    def __init__(
        self, plan: WorkerPlan, settings: ClientSettings, random: Chance, pipe: WorkerPipe, reader: GroupMember
    ):
        super().__init__(plan.habits, settings, random)
        self.plan = plan
        self.pipe = pipe
        self.reader = reader
        self.values = ValueMaker(plan.habits.process, plan.record_bytes)
        self.next_sequence = 0
        self._due_us = 0
        self._taken: dict[TopicPartition, list[int]] = {}

    def due_at_us(self) -> int | None:
        is_idle = self.pipe.is_empty or self.reader.identity is None
        return None if is_idle else max(self._due_us, self.now_us)  # No schedule waits for it.

    @property
    def has_more(self) -> bool:
        has_open = self._life is not None and self._life.current is not None
        return has_open or not self.pipe.ended or (not self.pipe.is_empty and self.reader.identity is not None)

    def fill(self, producer: TransactionalProducer, current: Open) -> None:
        identity = self.reader.identity
        assert identity is not None, "a transaction of a client that is no member"
        self._due_us = self.now_us + self.plan.interval_us
        self._taken = {
            partition: list(islice(offsets, RECORDS_PER_TRANSACTION))
            for partition, offsets in self.pipe.waiting.items()
            if offsets
        }
        for partition, offsets in self._taken.items():
            self._transform(producer, current, partition, offsets)
        after = {partition: OffsetToCommit(offsets[-1] + 1) for partition, offsets in self._taken.items()}
        producer.send_offsets(after, identity)
        current.rows += [
            CommitRow(
                self.process,
                current.operation.index,
                "transaction",
                identity.group_id,
                identity.generation_id,
                identity.member_id,
                *partition,
                each.offset,
                each.leader_epoch,
                -1,
                False,
                None,
                self.now_us,
            )
            for partition, each in after.items()
        ]

    def _transform(
        self, producer: TransactionalProducer, current: Open, partition: TopicPartition, offsets: list[int]
    ) -> None:
        target = TopicPartition(self.plan.target, partition.partition % self.plan.target_partitions)
        wall_ms, first = self.journal.now.wall_ms, self.next_sequence
        self.next_sequence += len(offsets)
        values = [self.values.make(sequence) for sequence in range(first, self.next_sequence)]
        records = [Record(timestamp_ms=wall_ms, key=None, value=value) for value in values]
        self.send(producer, current, target, records, first)
        for start, length in _consecutive(offsets):
            current.rows.append(
                TransformRow(
                    self.process,
                    current.operation.index,
                    self.plan.member.group,
                    *partition,
                    offsets[start],
                    length,
                    *target,
                    self.process,
                    first + start,
                )
            )

    def ended(self, current: Open) -> None:
        """Take committed records as done. After an unknown end, or a death, the group's committed offsets decide where
        the worker resumes."""
        taken, self._taken = self._taken, {}
        if current.kind == "ok":
            for partition, offsets in taken.items():
                self.pipe.settle(partition, offsets)
        elif current.kind == "info" or current.wants == NOTHING:
            self.reader.restart()


def _consecutive(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Yield the spans of consecutive offsets: where each begins in the list, and how long it is."""
    starts = [at for at, offset in enumerate(offsets) if not at or offset != offsets[at - 1] + 1]
    return [(start, end - start) for start, end in zip(starts, [*starts[1:], len(offsets)], strict=True)]


class Worker(Piped[int]):
    """A member of the group and a transactional producer, which ends once everything is committed."""

    writer_hears_of_stopping = True

    def __init__(self, plan: WorkerPlan, settings: ClientSettings, random: Chance) -> None:
        self.plan = plan
        pipe = WorkerPipe()
        reader = GroupMember(plan.member, settings, random, sink=pipe)
        super().__init__(reader, WorkerWriter(plan, settings, random, pipe, reader), pipe)
