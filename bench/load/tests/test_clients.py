"""Other client libraries against a sink, and whole benchmarks with them."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from bench.fleet.values import read_value
from bench.load.ledger import Read, Sent, judge
from bench.load.lots import FetchedRecord, Lot, LotProducer, LotReader
from bench.load.options import LoadOptions
from bench.load.producer import SEQUENCES, LoadPlan, Settled
from bench.load.reader import ReadPlan, Taken
from bench.load.run import run
from bench.load.target import started
from bench.load.tests.test_load import WHERE
from bench.load.workload import workload_of
from reference_broker.client.partitions import TopicPartition

LIBRARIES = ("librdkafka", "kafka-python")


@pytest.mark.live
@pytest.mark.parametrize("client", LIBRARIES)
@pytest.mark.rotated(4, "load")
def test_benchmark_with_a_library_is_verified(client: str, tmp_path: Path) -> None:
    table = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 2_000, "subscriptionsPerTopic": 2}
    with started("reference", lambda _: None) as target:
        options = LoadOptions(seconds=3, warmup_s=1, client=client)
        result = run(workload_of(table, "w", "w"), target, options, tmp_path, lambda _: None)
    assert result.findings.is_clean, result.reason
    assert result.findings.acknowledged == result.findings.read > 2 * 2_000
    assert not result.unfinished
    assert result.samples("publish") == result.samples("response") > 0
    assert result.samples("end_to_end") > 0


def test_lot_whose_records_end_differently_is_counted_by_its_parts() -> None:
    ends: list[Settled] = []
    lot = Lot(WHERE[0], 100, 4, 1, 2, ends.append, open=4)
    lot.ended(100, "ok", None, 7)
    lot.ended(101, "ok", None, 8)
    lot.ended(102, "info", "_MSG_TIMED_OUT", -1)
    lot.ended(103, "ok", None, 9)
    assert [(end.first_sequence, end.count, end.kind, end.base_offset) for end in ends] == [
        (100, 2, "ok", 7),
        (102, 1, "info", -1),
        (103, 1, "ok", 9),
    ]


class Library:
    """A library that keeps what it gets, and acknowledges it when it is served. Its queue takes ``room`` records."""

    def __init__(self, room: int) -> None:
        self.records: list[FetchedRecord] = []
        self._room = room
        self._queue: deque[tuple[Lot, int, bytes]] = deque()

    def send(self, lot: Lot, sequence: int, value: bytes, key: bytes | None) -> bool:  # noqa: ARG002
        if len(self._queue) >= self._room:
            return False
        self._queue.append((lot, sequence, value))
        return True

    def serve(self) -> None:
        while self._queue:
            lot, sequence, value = self._queue.popleft()
            offset = sum(record.where == lot.where for record in self.records)
            self.records.append(FetchedRecord(lot.where, offset, 1, value))
            lot.ended(sequence, "ok", None, offset)

    def fetch(self) -> tuple[list[FetchedRecord], list[tuple[TopicPartition, str]]]:
        records, self.records = self.records, []
        return records, []

    def lag(self, partition: TopicPartition, position: int) -> int:  # noqa: ARG002
        return len(self.records)

    def close(self) -> None:
        pass


def sent(library: Library, plan: LoadPlan, lots: int) -> list[Settled]:
    """Run a producer until this number of lots is settled."""
    ends: list[Settled] = []

    def settled(each: Settled) -> None:
        ends.append(each)
        if len(ends) >= lots:
            producer.stop()

    producer = LotProducer(plan, [], settled, lambda _, __: library)
    producer.run()
    return ends


def test_lots_are_due_at_their_time_and_go_to_partitions_in_turn() -> None:
    library = Library(room=100_000)
    ends = sent(library, LoadPlan("p", WHERE, batch_records=10, records_per_s=2_000), 40)
    due_us = dict.fromkeys(end.due_us for end in ends)  # A lot whose records end at two times counts twice.
    assert {after - before for before, after in pairwise(due_us)} == {5_000}
    assert [end.where for end in ends[:8]] == [*WHERE, *WHERE]
    assert [end.first_sequence for end in ends if end.where == WHERE[1]][:3] == [
        SEQUENCES + 10 * number for number in range(3)
    ]
    assert all(end.end_us >= end.first_sent_us >= end.due_us for end in ends)


def test_full_queue_delays_lots_and_loses_no_record() -> None:
    library = Library(room=3)
    ends = sent(library, LoadPlan("p", WHERE, batch_records=10), 40)
    assert sum(end.count for end in ends) == len(library.records)
    assert [read_value(record.value).sequence for record in library.records if record.where == WHERE[0]] == list(
        range(sum(record.where == WHERE[0] for record in library.records))
    )


@pytest.mark.parametrize(
    ("plant", "counts"),
    [
        (lambda records: records, (0, 0, 0, 0)),
        (lambda records: records[:20] + records[21:], (1, 0, 0, 0)),
        (lambda records: [*records, records[20]], (0, 1, 0, 0)),
        (lambda records: [*records[:20], records[20]._replace(value=b"x" * 100), *records[21:]], (1, 0, 0, 1)),
    ],
    ids=("healthy", "lost", "repeated", "damaged"),
)
def test_values_returned_by_library_are_verified(
    plant: Callable[[list[FetchedRecord]], list[FetchedRecord]], counts: tuple[int, int, int, int]
) -> None:
    library = Library(room=1_000)
    ledger, read = Sent(), Read()
    for each in sent(library, LoadPlan("p", WHERE, batch_records=10), 40):
        ledger.add(each.kind, each.error, each.first_sequence, each.first_sequence + each.count)
    library.records = plant(library.records)

    def taken(each: Taken) -> None:
        for span in each.spans:
            read.add(*each.where, span.writer, span.first_sequence, span.count, span.valid)
        if not library.records:
            reader.stop()

    reader = LotReader(ReadPlan("r", WHERE), [], taken, lambda _, __: library)
    reader.run()
    findings = judge({"p": ledger}, [[read]], exactly_once=True)
    assert (findings.lost, findings.repeated, findings.reordered, findings.damaged) == counts
