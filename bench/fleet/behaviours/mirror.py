"""Copies a topic to another cluster, as mirroring tools do: at least once, and in order.

One client holds two behaviours. A member of the group ``mirror`` reads. An idempotent producer (``MirrorWriter``)
writes the same values to the same partitions of the target. The pipe between them is the member's sink, and the member
commits what the target has acknowledged. If a position goes back, the mirror copies again what is there already. That
is the rewind of spec M-15. Its costs are records that are copied twice, and lost time; the table ``copies`` shows them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from bench.fleet.behaviours import protocol
from bench.fleet.behaviours.batch_delivery import BatchDelivery, Slot
from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.group_member import GroupMember
from bench.fleet.behaviours.group_plans import MirrorPlan
from bench.fleet.behaviours.protocol import (
    ClientSettings,
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Leaving,
    Now,
    Started,
    Stopping,
    TopicPartition,
)
from bench.fleet.behaviours.script import Steps
from bench.fleet.runs import Run, compress
from bench.fleet.values import read_value
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.producer import Batch, ProducerState
from reference_broker.records.record import Record
from reports.rows import CopyRow

WRITER_SUFFIX: Final = "-writer"
WRITER_LANES: Final = 1_000
"""The number of the writer's first lane."""
STEP_US: Final = 20_000
"""The time after which the writer looks again whether there is something to copy."""
RECORDS_PER_BATCH: Final = 500
MAX_WAITING: Final = 20_000
"""The number of a partition's records in the pipe at which the member stops reading it."""


@dataclass(slots=True)
class Pipe:
    """The reader's sink. ``waiting`` holds what was read and not yet acknowledged, by partition. ``copied`` is the
    source offset after the last acknowledged record. ``ended`` says that the reader brings no more."""

    waiting: dict[TopicPartition, deque[Record]] = field(default_factory=dict)
    copied: dict[TopicPartition, int] = field(default_factory=dict)
    ended: bool = False

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        for each in records:
            piece = Record(each.offset, each.timestamp_ms, each.key, each.value, each.headers)
            self.waiting.setdefault(TopicPartition(each.topic, each.partition), deque()).append(piece)

    def done(self, where: TopicPartition, read: int, committed: int) -> int:
        return self.copied.get(where, committed) if self.waiting.get(where) else read

    def is_full(self, where: TopicPartition) -> bool:
        return len(self.waiting.get(where, ())) >= MAX_WAITING

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        return any(self.waiting.get(each) for each in partitions)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self.waiting.pop(where, None)
            self.copied.pop(where, None)

    def first(self) -> TopicPartition | None:
        """Returns a partition with waiting records. The partitions take turns."""
        for where in list(self.waiting):
            pieces = self.waiting.pop(where)
            if pieces:
                self.waiting[where] = pieces
                return where
        return None

    def take(self, where: TopicPartition) -> list[Record]:
        """Returns the records of the next batch, which stay until ``settle``. The partition goes to the queue's end."""
        pieces = self.waiting.pop(where)
        self.waiting[where] = pieces
        return list(islice(pieces, RECORDS_PER_BATCH))

    def settle(self, where: TopicPartition, pieces: Sequence[Record]) -> None:
        """The target has acknowledged these records. Nothing changes if they were dropped meanwhile."""
        waiting = self.waiting.get(where)
        if waiting and waiting[0] is pieces[0]:
            for _ in pieces:
                waiting.popleft()
            self.copied[where] = pieces[-1].offset + 1


class MirrorWriter(ClusterScript):
    """Ends when the pipe has ended and is empty, or time is over."""

    KEEPS_CONNECTIONS = True

    def __init__(self, plan: MirrorPlan, random: Chance, pipe: Pipe) -> None:
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

    def _copy(self, where: TopicPartition) -> Steps[None]:
        self._pieces = self.pipe.take(where)
        operation = self.journal.begin("copy", sent=False)
        deadline_us = self.now.mono_us + self.plan.delivery_timeout_us
        slot = Slot(operation, where, 0, deadline_us, len(self._pieces))
        if (yield from self.delivery.deliver(slot)):
            self.pipe.settle(where, self._pieces)

    def _rows(self, slot: Slot, batch: Batch) -> tuple[CopyRow, ...]:
        rows: list[CopyRow] = []
        done = 0
        for run in _runs(self._pieces):
            target = batch.base_offset + done if batch.base_offset >= 0 else -1
            rows.append(
                CopyRow(
                    self.process,
                    slot.operation.index,
                    *slot.where,
                    run.first_offset,
                    run.count,
                    target,
                    run.writer,
                    run.first_sequence,
                    self.now.mono_us,
                )
            )
            done += run.count
        return tuple(rows)

    def close(self, now: Now) -> list[HistoryRow]:
        """Ends at once. What is in flight may be in the target."""
        return [*super().close(now), *self.delivery.rows_in_flight()]

    def _records(self, slot: Slot) -> list[Record]:  # noqa: ARG002
        return self._pieces


class Mirror:
    """The reader and the writer as one behaviour. Stopping goes to the reader. Once the reader has ended, the writer
    finishes what is in the pipe."""

    def __init__(self, plan: MirrorPlan, settings: ClientSettings, random: Chance) -> None:
        self.plan = plan
        self.pipe = Pipe()
        self.reader = GroupMember(plan.member, settings, random, sink=self.pipe)
        self.writer = MirrorWriter(plan, random, self.pipe)
        self._open = 2

    @property
    def process(self) -> str:
        return self.reader.process

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        if isinstance(event, Started):
            return self._merged(self.reader.step(now, event), self.writer.step(now, event))
        if isinstance(event, Stopping | Leaving):
            return self._merged(self.reader.step(now, event), [])
        if event.lane >= WRITER_LANES:
            return self._merged([], self.writer.step(now, replace(event, lane=event.lane - WRITER_LANES)))
        return self._merged(self.reader.step(now, event), [])

    def _merged(self, read: list[FleetAction], wrote: list[FleetAction]) -> list[FleetAction]:
        """Merges the actions of both. The mirror is finished when both are."""
        both = [*read, *(_shifted(each) for each in wrote)]
        left: list[FleetAction] = [each for each in both if not isinstance(each, Finished)]
        self._open -= len(both) - len(left)
        self.pipe.ended = self.pipe.ended or any(isinstance(each, Finished) for each in read)
        return left if self._open or len(left) == len(both) else [*left, Finished()]

    def close(self, now: Now) -> list[HistoryRow]:
        return [*self.reader.close(now), *self.writer.close(now)]


def _shifted(action: FleetAction) -> FleetAction:
    if isinstance(action, protocol.Record | Finished):
        return action
    return replace(action, lane=action.lane + WRITER_LANES)


def _runs(pieces: Sequence[Record]) -> list[Run]:
    """Returns the records as runs, which are consecutive in the source and in their writer's numbers."""
    return compress(
        Run(piece.offset, 1, -1, value.writer, value.sequence, value.valid)
        for piece in pieces
        for value in (read_value(piece.value),)
    )
