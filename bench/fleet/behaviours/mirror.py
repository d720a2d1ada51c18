"""A mirror copies a topic to another cluster, as mirroring tools do: at least once, and in order.

One client holds two behaviours. A member of the group ``mirror`` reads. An idempotent producer (``MirrorWriter``)
writes the same values to the same partitions of the target. The pipe between them is the member's sink, and the member
commits what the target has acknowledged. If a position goes back, the mirror copies again what exists there already.
That is the rewind of spec M-15. Its costs are records that are copied twice, and lost time; the table ``copies`` has
them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.group_member import GroupMember, MemberPlan
from bench.fleet.behaviours.piped import WRITER_SUFFIX, Pipe, Piped
from bench.fleet.behaviours.producers import BatchDelivery, Slot
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, Now, TopicPartition
from bench.fleet.behaviours.script import Steps
from bench.fleet.values import ValueSpan, compress, read_record
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.producer import ProducerBatch, ProducerState
from reference_broker.records.record import Record
from reports.rows import CopyRow


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """Copies records to the same partitions of another cluster. An offset is committed once the target has acknowledged
    the records before it."""

    member: MemberPlan  # the group member that reads the records
    target: ClientSettings  # how the other cluster is reached
    delivery_timeout_us: int = 30_000_000
    request_wait_ms: int = 1_000


STEP_US: Final = 20_000
"""The time after which the writer looks again whether there is something to copy."""
RECORDS_PER_BATCH: Final = 500


@dataclass(slots=True)
class MirrorPipe(Pipe[Record]):
    """Its records wait until they are acknowledged. ``copied`` is the source offset after the last of those."""

    MOST = 20_000

    copied: dict[TopicPartition, int] = field(default_factory=dict)

    def piece(self, record: ConsumerRecord) -> Record:
        return Record(record.offset, record.timestamp_ms, record.key, record.value, record.headers)

    def done(self, partition: TopicPartition, read: int, committed: int) -> int:
        return self.copied.get(partition, committed) if self.waiting.get(partition) else read

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = tuple(partitions)
        Pipe.drop(self, gone)
        for partition in gone:
            self.copied.pop(partition, None)

    def first(self) -> TopicPartition | None:
        """Return a partition with waiting records. The partitions take turns."""
        for partition in list(self.waiting):
            pieces = self.waiting.pop(partition)
            if pieces:
                self.waiting[partition] = pieces
                return partition
        return None

    def take(self, partition: TopicPartition) -> list[Record]:
        """Return the records of the next batch, and keep them until ``settle``. The partition moves to the end of the
        queue."""
        pieces = self.waiting.pop(partition)
        self.waiting[partition] = pieces
        return list(islice(pieces, RECORDS_PER_BATCH))

    def settle(self, partition: TopicPartition, pieces: Sequence[Record]) -> None:
        """The target has acknowledged these records. Nothing changes if they were dropped meanwhile."""
        waiting = self.waiting.get(partition)
        if waiting and waiting[0] is pieces[0]:
            for _ in pieces:
                waiting.popleft()
            self.copied[partition] = pieces[-1].offset + 1


class MirrorWriter(ClusterScript):
    """Ends when the pipe has ended and is empty, or time is over."""

    KEEPS_CONNECTIONS = True

    def __init__(self, plan: MirrorPlan, random: Chance, pipe: MirrorPipe) -> None:
        super().__init__(f"{plan.member.process}{WRITER_SUFFIX}", plan.target, random, plan.member.topics)
        self.plan = plan
        self.pipe = pipe
        self.delivery = BatchDelivery(self, ProducerState(), self._records, self._rows, -1, plan.request_wait_ms)
        self._pieces: list[Record] = []

    @property
    def gives_up(self) -> bool:
        return self.out_of_time or self.delivery.is_overdue

    def run(self) -> Steps[None]:
        if not (yield from self.find_leaders(self.plan.member.partitions)):
            return
        while not self.gives_up:
            where = self.pipe.first()
            if where is not None:
                yield from self._copy(where)
            elif self.pipe.ended:
                return
            else:
                yield from self.sleep_until(self.now.mono_us + STEP_US)

    def _copy(self, partition: TopicPartition) -> Steps[None]:
        self._pieces = self.pipe.take(partition)
        operation = self.journal.begin("copy", sent=False)
        deadline_us = self.now.mono_us + self.plan.delivery_timeout_us
        slot = Slot(operation, partition, 0, deadline_us, len(self._pieces))
        if (yield from self.delivery.deliver(slot)):
            self.pipe.settle(partition, self._pieces)

    def _rows(self, slot: Slot, batch: ProducerBatch) -> tuple[CopyRow, ...]:
        rows: list[CopyRow] = []
        done = 0
        for span in _spans(self._pieces):
            target = batch.base_offset + done if batch.base_offset >= 0 else -1
            rows.append(
                CopyRow(
                    self.process,
                    slot.operation.index,
                    *slot.where,
                    span.first_offset,
                    span.count,
                    target,
                    span.writer,
                    span.first_sequence,
                    self.now.mono_us,
                )
            )
            done += span.count
        return tuple(rows)

    def close(self, now: Now) -> list[HistoryRow]:
        """End at once. What is in flight may be in the target."""
        return [*super().close(now), *self.delivery.rows_in_flight()]

    def _records(self, slot: Slot) -> list[Record]:  # noqa: ARG002
        return self._pieces


class Mirror(Piped[Record]):
    """A member of the group and an idempotent producer to the other cluster."""

    writer: MirrorWriter

    def __init__(self, plan: MirrorPlan, settings: ClientSettings, random: Chance) -> None:
        self.plan = plan
        pipe = MirrorPipe()
        reader = GroupMember(plan.member, settings, random, sink=pipe)
        super().__init__(reader, MirrorWriter(plan, random, pipe), pipe)


def _spans(pieces: Sequence[Record]) -> list[ValueSpan]:
    """Return the records as spans, which are consecutive in the source and in their writer's numbers."""
    return compress(
        ValueSpan(piece.offset, 1, -1, value.writer, value.sequence, value.valid)
        for piece in pieces
        for value in (read_record(piece.value, piece.headers),)
    )
