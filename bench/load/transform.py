"""A client that consumes, transforms and produces: exactly once, as a stream thread of Kafka Streams does (KIP-447).

The client reads an input topic as a member of a group, with read_committed, and writes each record to the same
partition of an output topic. Each interval is one transaction: the records and the group's offsets take effect
together, or not at all (AddOffsetsToTxn and TxnOffsetCommit). After an abort the client fetches the committed offsets
from the group's coordinator, goes back to them, and writes the output again. Before partitions are revoked, the
client commits the transaction. When partitions are lost, the client aborts it, because another member may own them
already.

Records keep their values, timestamps and sizes, so that readers of the output verify each input record, and measure
its latency from the time at which the input was due (``LoadPlan.stamps_due_time``). A batch is not decoded: its header
is written again, with the producer's sequence and a CRC.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.load.group_reader import GroupLoadReader
from bench.load.producer import (
    LONGEST_WAIT_US,
    LoadBatch,
    LoadPartition,
    LoadPlan,
    Settled,
    monotonic_us,
    receive_first,
)
from bench.load.reader import ReadPlan, Taken
from bench.load.transactional import TransactionalLoadProducer, TransactionEnded
from reference_broker.client.consumer import READ_COMMITTED, TakenBatch
from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import ProducerBatch
from reference_broker.records import batch as batches
from reference_broker.records.batch import HEADER_BYTES, sealed
from reference_broker.records.compression import Compression
from reference_broker.records.record import build, read_records

MAX_QUEUED_BYTES: Final = 16 << 20
"""Nothing more is fetched while this much waits to be written."""
_PLACING_WAIT_US: Final = 5_000
"""Length of one wait while partitions have no position yet, since their requests are sent step by step."""


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """The plan of a transform. The partitions of source and sink have the same order."""

    source: ReadPlan  # read by a group
    sink: LoadPlan  # written in transactions


class _Source(GroupLoadReader):
    """The consuming side. It passes batches on unchanged, and never commits an offset itself."""

    def __init__(
        self, plan: ReadPlan, bootstrap: Sequence[tuple[str, int]], taken: Callable[[Taken], None], owner: "Transformer"
    ) -> None:
        assert plan.isolation_level == READ_COMMITTED, "exactly once needs an input without aborted records"
        super().__init__(plan, bootstrap, taken)
        self._owner = owner

    @property
    def identity(self) -> MemberIdentity:
        return self._consumer.identity

    @property
    def unplaced(self) -> int:
        """Number of its partitions without a position."""
        return sum(partition not in self.assigned for partition in self._consumer.partitions.held)

    def step(self) -> None:
        """Send what is due, and wait for nothing."""
        self._step(monotonic_us())

    def end(self) -> None:
        """Leave the group and close the connections."""
        for link in self._links.values():
            self._leave(link)
        self._leave_group()
        self._connections.close_all()

    def rewind(self) -> None:
        """Fetch the group's committed offsets, and continue there."""
        held = self._consumer.partitions
        wanted = [partition for partition, each in held.held.items() if not each.is_revoked]
        held.drop(wanted)
        held.add(wanted)
        self._consumer.pause(wanted)
        self._drop(wanted)
        self._refresh_not_before_us = 0

    def _wait(self) -> None:
        """The owner waits for both sides."""

    def _commit_now_and_then(self) -> None:
        """Offsets take part in the owner's transactions."""

    def _read_so_far(self) -> dict[TopicPartition, OffsetToCommit]:
        return {}

    def _take(self, partition: TopicPartition, batches: list[TakenBatch], *_: object) -> None:
        self._owner.take(partition, batches)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._owner.finish(partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._owner.lose(partitions)


class Transformer(TransactionalLoadProducer):
    """Call ``prepare`` and then ``run`` in a thread or greenlet of its own. ``stop`` may be called from any, and lets
    it commit what it has made.

    ``taken`` gets the errors of the consuming side, and ``ended`` each transaction's end.
    """

    def __init__(
        self,
        plan: TransformPlan,
        bootstrap: Sequence[tuple[str, int]],
        taken: Callable[[Taken], None],
        ended: TransactionEnded,
    ) -> None:
        super().__init__(plan.sink, bootstrap, self._note, ended)
        self._taken = taken
        self.source = _Source(plan.source, bootstrap, taken, self)
        self._inputs = plan.source.partitions
        self._queues: dict[TopicPartition, deque[TakenBatch]] = {partition: deque() for partition in self._inputs}
        self._queued_bytes = 0
        self._made_of: dict[TopicPartition, OffsetToCommit] = {}
        """The offsets after what this transaction has made its records of."""
        self._is_last_chance = False  # partitions are being revoked
        self._has_lost = False  # partitions that this transaction has read from

    @property
    def lag(self) -> int:
        """Amount of work left: records to read, batches to write, partitions without a position, and whether a
        transaction is open."""
        queued = sum(map(len, self._queues.values()))
        return self.source.lag + self.source.unplaced + queued + bool(self._first_us)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.source.end()

    def _note(self, settled: Settled) -> None:
        """Report a batch whose transaction did not end as planned."""
        if settled.kind in ("fail", "info"):
            error = f"transaction: {settled.error}"
            self._taken(Taken(settled.where, (), (), 0, -1, settled.end_us, error))

    # The consuming side

    def take(self, partition: TopicPartition, taken: list[TakenBatch]) -> None:
        """Queue what was read of an input partition."""
        if not taken:
            return
        self._queues[partition].extend(taken)
        self._queued_bytes += sum(batch.header.size_bytes for batch in taken)
        self._unpark(self._partitions[self._inputs.index(partition)])

    def finish(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit what was made of these partitions, before another member reads on from the committed offsets."""
        self._drop(partitions)
        self._is_last_chance = True
        while self._first_us:
            super()._step()
        self._is_last_chance = False

    def lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Another member may go on from the committed offsets of these partitions already."""
        self._drop(partitions)
        self._has_lost = self._has_lost or bool(self._made_of.keys() & set(partitions))

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            queue = self._queues[partition]
            self._queued_bytes -= sum(each.header.size_bytes for each in queue)
            queue.clear()

    def _step(self) -> None:
        self.source.paused = self._queued_bytes > MAX_QUEUED_BYTES
        self.source.step()
        super()._step()

    def _wait(self) -> None:
        wait_us = min(self._wait_us(), _PLACING_WAIT_US if self.source.unplaced else LONGEST_WAIT_US)
        receive_first({**self.awaited(), **self.source.awaited()}, wait_us)

    # The producing side

    def _may_add(self, partition: LoadPartition) -> bool:
        return bool(self._queues[self._inputs[partition.index]]) and super()._may_add(partition)

    def _make_batch(self, partition: LoadPartition, now_us: int) -> LoadBatch:
        """Make an output batch of the next input batch."""
        where = self._inputs[partition.index]
        taken = self._queues[where].popleft()
        header = taken.header
        self._queued_bytes -= header.size_bytes
        self._made_of[where] = OffsetToCommit(header.last_offset + 1, header.leader_epoch)
        self._first_us = self._first_us or now_us
        number = partition.made
        partition.made += 1
        count = header.last_offset - max(header.base_offset, taken.from_offset) + 1
        self._records += count
        batch = self._state.add(partition.where, count)
        records = transformed(taken, batch)
        return LoadBatch(number, 0, now_us, now_us, now_us + self.plan.delivery_timeout_us, batch, records)

    @property
    def _is_full(self) -> bool:
        return self._is_last_chance or self._has_lost or super()._is_full

    @property
    def _aborts(self) -> bool:
        return self._has_lost or super()._aborts

    def _send_offsets(self) -> None:
        """Send the group's offsets. Those of a transaction that is aborted are sent as well, and must not take
        effect."""
        if self._has_lost:
            return
        manager = self._manager
        manager.send_offsets(self._made_of, self.source.identity)
        self._converse(lambda: not manager.sends_offsets or manager.has_failed, False)

    def _end_transaction(self) -> str:
        kind = super()._end_transaction()
        self._made_of.clear()
        self._has_lost = False
        if kind != "ok":
            self._drop(self._inputs)
            self.source.rewind()
        return kind


def transformed(taken: TakenBatch, batch: ProducerBatch) -> bytes:
    """Return the records of an input batch, from where the reader begins, as a batch of the producer."""
    header, data, from_offset = taken
    if from_offset > header.base_offset:
        return build(
            [record for record in read_records(data) if record.offset >= from_offset],
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            compression=Compression(header.compression),
            is_transactional=True,
        )
    own = header._replace(
        base_offset=0,
        leader_epoch=batches.NO_LEADER_EPOCH,
        attributes=header.compression | batches.TRANSACTIONAL,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
    return sealed(own, bytes(data[HEADER_BYTES : header.size_bytes]))
