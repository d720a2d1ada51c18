"""The interface for other client libraries.

``LotProducer`` has the schedule of ``LoadProducer``: lot n, a batch of the plan, is due at ``start + n * interval`` and
goes to the partition ``n % partitions``, whatever became of the lots before. Its records are given to the library one
by one, and the library makes batches of its own. A library whose queue is full delays the lots that are due.

Values are those of ``LoadProducer``, sequence for sequence, so the same ledger proves them. A library knows how to send
a record (``RecordSender``) or to fetch some (``RecordFetcher``); ``librdkafka.py`` and ``kafka_python.py`` have both.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from bench.fleet.values import ValueMaker, ValueSpan, compress, read_value
from bench.load.producer import SEQUENCES, LoadPlan, Settled, monotonic_us
from bench.load.reader import ReadPlan, Taken
from reference_broker.client.partitions import TopicPartition

SERVE_S: Final = 0.001
"""A library's callbacks run at least this often, so an acknowledgement is noticed at most 1 ms late."""
SAME_END_US: Final = 500
"""Records of a lot that end within this time are counted together, with the time of the last one."""


class RecordSender(Protocol):
    """A library's producer. It calls ``Lot.ended`` for each record, from within ``send`` or ``serve``, or from another
    greenlet."""

    def send(self, lot: "Lot", sequence: int, value: bytes, key: bytes | None) -> bool:
        """Take a record. Return False if the queue is full."""
        ...

    def serve(self) -> None:
        """Run callbacks that are due, without waiting."""
        ...

    def close(self) -> None: ...


class FetchedRecord(NamedTuple):
    where: TopicPartition
    offset: int
    timestamp_ms: int
    value: bytes | None


class RecordFetcher(Protocol):
    """A library's consumer, assigned to partitions."""

    def fetch(self) -> "tuple[Sequence[FetchedRecord], Sequence[tuple[TopicPartition, str]]]":
        """Return records, and errors by Kafka's names. Wait for a millisecond at most."""
        ...

    def lag(self, partition: TopicPartition, position: int) -> int:
        """Return how many records the partition has beyond a position; 1 if that is not known."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Lot:
    """Records of a partition that are due at one time. Times are of the monotonic clock."""

    where: TopicPartition
    first_sequence: int
    count: int
    due_us: int
    first_sent_us: int
    settled: Callable[[Settled], None]
    open: int = 0  # records that the library has taken and whose end is not known
    _runs: list[Settled] = field(default_factory=list)

    def ended(self, sequence: int, kind: str, error: str | None, offset: int) -> None:
        """Note the end of one record. ``kind`` is that of ``Settled``."""
        self.open -= 1
        now_us = monotonic_us()
        run = self._runs[-1] if self._runs else None
        if (
            run is not None
            and sequence == run.first_sequence + run.count
            and (kind, error) == (run.kind, run.error)
            and now_us - run.end_us < SAME_END_US
        ):
            self._runs[-1] = self._run(run.first_sequence, run.count + 1, kind, error, run.base_offset, now_us)
        else:
            self._flush()
            self._runs.append(self._run(sequence, 1, kind, error, offset, now_us))
        if not self.open:
            self._flush()

    def withdraw(self) -> None:
        """Note that the library did not take a record."""
        self.open -= 1
        if not self.open:
            self._flush()

    def _run(self, first: int, count: int, kind: str, error: str | None, offset: int, now_us: int) -> Settled:
        return Settled(self.where, kind, error, first, count, -1, offset, self.due_us, self.first_sent_us, now_us)

    def _flush(self) -> None:
        if self._runs:
            self.settled(self._runs.pop())


class LotProducer:
    """Call ``run`` in a thread or greenlet of its own. ``stop`` may be called from any."""

    def __init__(
        self,
        plan: LoadPlan,
        bootstrap: Sequence[tuple[str, int]],
        settled: Callable[[Settled], None],
        connect: Callable[[LoadPlan, Sequence[tuple[str, int]]], RecordSender],
    ) -> None:
        self.plan = plan
        self._bootstrap = bootstrap
        self._settled = settled
        self._connect = connect
        self._values = ValueMaker(plan.process, plan.value_bytes, plan.padding)
        self._keys = [b"k%06d" % number for number in range(plan.keys)]
        self._interval_us = plan.batch_records * 1e6 / plan.records_per_s if plan.records_per_s else 0.0
        self._stopping = False

    def stop(self) -> None:
        """Send nothing new. ``run`` returns when the end of each record is known."""
        self._stopping = True

    def run(self) -> None:
        sender = self._connect(self.plan, self._bootstrap)
        open_lots: list[Lot] = []
        try:
            start_us, number = monotonic_us(), 0
            while not self._stopping:
                due_us = start_us + int(number * self._interval_us) if self._interval_us else monotonic_us()
                if (left_us := due_us - monotonic_us()) > 0:
                    sender.serve()
                    time.sleep(min(SERVE_S, left_us / 1e6))
                    continue
                lot = self._lot(number, due_us)
                number += 1
                open_lots.append(lot)
                self._give(sender, lot)
                sender.serve()
                if len(open_lots) > 64:
                    open_lots = [open_lot for open_lot in open_lots if open_lot.open]
                time.sleep(0)  # Other greenlets have their turn even if lots are late.
            while any(open_lot.open for open_lot in open_lots):
                sender.serve()
                time.sleep(SERVE_S)
        finally:
            sender.close()

    def _lot(self, number: int, due_us: int) -> Lot:
        partitions, count = self.plan.partitions, self.plan.batch_records
        index = number % len(partitions)
        first = index * SEQUENCES + number // len(partitions) * count
        return Lot(partitions[index], first, count, due_us, monotonic_us(), self._settled)

    def _give(self, sender: RecordSender, lot: Lot) -> None:
        """Give the library all records of a lot. While its queue is full, wait; a stop then leaves the rest unsent."""
        for sequence in range(lot.first_sequence, lot.first_sequence + lot.count):
            value = self._values.make(sequence)
            key = self._keys[sequence % len(self._keys)] if self._keys else None
            lot.open += 1  # before the library can say that the record has ended
            while not sender.send(lot, sequence, value, key):
                if self._stopping:
                    lot.withdraw()
                    return
                sender.serve()
                time.sleep(SERVE_S)


class LotReader:
    """Call ``run`` in a thread or greenlet of its own. ``stop`` may be called from any."""

    def __init__(
        self,
        plan: ReadPlan,
        bootstrap: Sequence[tuple[str, int]],
        taken: Callable[[Taken], None],
        connect: Callable[[ReadPlan, Sequence[tuple[str, int]]], RecordFetcher],
    ) -> None:
        self.plan = plan
        self._bootstrap = bootstrap
        self._taken = taken
        self._connect = connect
        self._positions = dict.fromkeys(plan.partitions, plan.from_offset)
        self._fetcher: RecordFetcher | None = None
        self._stopping = False
        self.paused = False  # which this client does not carry out

    def stop(self) -> None:
        self._stopping = True

    @property
    def lag(self) -> int:
        """Number of records that the partitions have beyond the positions. A partition of which nothing is known counts
        1."""
        fetcher = self._fetcher
        if fetcher is None:
            return len(self._positions)
        return sum(fetcher.lag(partition, position) for partition, position in self._positions.items())

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to read."""
        return self._positions[partition]

    def run(self) -> None:
        fetcher = self._fetcher = self._connect(self.plan, self._bootstrap)
        try:
            while not self._stopping:
                records, errors = fetcher.fetch()
                now_us = monotonic_us()
                for partition, name in errors:
                    self._taken(Taken(partition, (), (), 0, -1, now_us, name))
                for topic_partition, group in groupby(records, lambda record: record.where):
                    self._take(topic_partition, list(group), now_us)
                if not records:
                    time.sleep(SERVE_S)
                else:
                    time.sleep(0)
        finally:
            self._fetcher = None
            fetcher.close()

    def _take(self, partition: TopicPartition, records: Sequence[FetchedRecord], now_us: int) -> None:
        spans = []
        for record in records:
            value = read_value(record.value)
            spans.append(ValueSpan(record.offset, 1, -1, value.writer, value.sequence, value.valid))
        written = [(at, sum(1 for _ in group)) for at, group in groupby(record.timestamp_ms for record in records)]
        self._positions[partition] = records[-1].offset + 1
        size_bytes = sum(len(record.value or b"") for record in records)
        self._taken(Taken(partition, compress(spans), written, size_bytes, -1, now_us))
