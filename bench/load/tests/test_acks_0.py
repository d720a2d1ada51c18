"""Producers with acks=0: nothing is acknowledged, and what is lost is counted."""

import threading
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from bench.fleet.batch_reader import BatchReader
from bench.load.command import BenchOptions, check_call, table_of
from bench.load.comparison import Entry
from bench.load.ledger import Read, Sent, judge
from bench.load.options import LoadError, LoadOptions
from bench.load.producer import LoadPlan, LoadProducer, Settled, monotonic_us
from bench.load.requirements import check_playable
from bench.load.run import run
from bench.load.sink import Sink, SinkPlan, serving
from bench.load.target import started
from bench.load.tests.planted import result
from bench.load.workload import workload_of
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import Buffer, read_header

WHERE = tuple(TopicPartition("t", index) for index in range(4))
OPTIONS = LoadOptions(acks=0, idempotent=False, seconds=2, warmup_s=1)
LIMIT_S = 30.0


class Forgetful(Sink):
    """A sink that keeps what it has taken, except each ``loses``-th batch. ``ends`` are batches at which the connection
    is closed."""

    def __init__(self, loses: int = 0, ends: tuple[int, ...] = ()) -> None:
        super().__init__(SinkPlan(len(WHERE)))
        self.taken = Read()
        self._loses, self._ends_at = loses, ends
        self._batches = 0

    def await_rest(self) -> None:
        """Wait until nothing more comes out of the sockets."""
        before = -1
        while before != self._batches:
            before = self._batches
            time.sleep(0.3)

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        self._batches += 1
        if self._batches in self._ends_at:
            raise ConnectionAbortedError
        if not self._loses or self._batches % self._loses:
            for span in BatchReader().read(partition, [TakenBatch(read_header(batch), memoryview(batch), 0)]):
                self.taken.add(*partition, span.writer, span.first_sequence, span.count, span.valid)
        return super().append(partition, batch)


def produced(sink: Forgetful, batches: int, records_per_s: float = 0.0) -> tuple[Sent, list[Settled]]:
    sent, ends = Sent(), list[Settled]()

    def settled(each: Settled) -> None:
        sent.add(each.kind, each.error, each.first_sequence, each.first_sequence + each.count)
        ends.append(each)
        if len(ends) >= batches:
            producer.stop()

    plan = LoadPlan("p", WHERE, batch_records=20, records_per_s=records_per_s, acks=0, idempotent=False)
    with serving(sink) as address:
        producer = LoadProducer(plan, address, settled)
        limit = threading.Timer(LIMIT_S, producer.stop)
        limit.start()
        producer.run()
        limit.cancel()
        sink.await_rest()
    assert len(ends) >= batches
    return sent, ends


def test_losses_are_counted_and_no_violation() -> None:
    sink = Forgetful(loses=10)
    sent, ends = produced(sink, 200)
    findings = judge({"p": sent}, [[sink.taken]], exactly_once=False)
    assert findings.is_clean
    assert (findings.acknowledged, findings.lost) == (0, 0)
    assert findings.unknown == len(ends) * 20
    assert findings.read + findings.unread == findings.unknown
    assert 300 <= findings.unread <= findings.unknown // 2
    assert {(end.kind, end.error, end.base_offset) for end in ends} == {("info", None, -1)}


def test_damage_and_reordering_remain_violations() -> None:
    sent, read = Sent(), Read()
    sent.add("info", None, 0, 40)
    read.add("t", 0, "p", 20, 20, valid=True)
    read.add("t", 0, "p", 0, 20, valid=True)
    assert judge({"p": sent}, [[read]], exactly_once=False).reordered == 20


def test_producer_goes_on_after_the_broker_has_closed_its_connection() -> None:
    sink = Forgetful(ends=(50, 90))
    sent, _ = produced(sink, 600, records_per_s=20_000)
    findings = judge({"p": sent}, [[sink.taken]], exactly_once=False)
    assert findings.is_clean
    assert findings.read > 20 * 300
    assert findings.unread >= 40


def test_batches_are_sent_at_their_times() -> None:
    begin_us = monotonic_us()
    _, ends = produced(Forgetful(), 50, records_per_s=2_000)
    assert monotonic_us() - begin_us > 450_000
    gaps = [after.due_us - before.due_us for before, after in pairwise(ends)]
    assert set(gaps) == {10_000}


@pytest.mark.parametrize(
    ("table", "options", "complaint"),
    [
        ({"crucible": {"transactions": {"seconds": 1}}}, OPTIONS, r"crucible\.transactions needs acknowledgements"),
        ({"crucible": {"transform": {}}}, OPTIONS, r"crucible\.transform needs acknowledgements"),
        ({"producerRate": 1, "consumerBacklogSizeGB": 1}, OPTIONS, "consumerBacklogSizeGB needs acknowledgements"),
        ({"crucible": {"client": "librdkafka"}}, OPTIONS, "the client librdkafka does not carry out acks=0"),
        ({"crucible": {"faults": [{"kind": "node_killed", "atS": 1}]}}, OPTIONS, r"crucible\.faults needs"),
    ],
)
def test_what_needs_acknowledgements_is_refused(table: dict[str, object], options: LoadOptions, complaint: str) -> None:
    with pytest.raises(LoadError, match=complaint):
        check_playable(workload_of(table, "w", "w"), options, "reference", [0], False, None)


def test_search_is_refused() -> None:
    options = BenchOptions([], ["reference"], OPTIONS, search=True)
    with pytest.raises(LoadError, match="--max judges rates by acknowledgements"):
        check_call(workload_of({}, "w", "w"), "reference", options)


def test_rate_that_is_reached_is_the_one_that_was_sent() -> None:
    found = msgspec.structs.replace(result(acknowledged=0.0), acks=0)
    assert found.reached
    assert found.outcome == "PASSED"
    assert result(acknowledged=0.0).outcome == "INVALID"


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_workload_without_acknowledgements(tmp_path: Path) -> None:
    table = {"partitionsPerTopic": 4, "producerRate": 2_000, "messageSize": 200}
    with started("reference", lambda _: None) as target:
        result = run(workload_of(table, "w", "w"), target, OPTIONS, tmp_path, lambda _: None)
    if not result.reason.startswith("The load generator was the limit"):  # So it is on a starved machine.
        assert result.outcome == "PASSED"
        assert "nothing is acknowledged" in result.reason
    assert result.findings.unknown > 1_000
    assert result.findings.read + result.findings.unread == result.findings.unknown
    assert result.findings.unread <= 100
    rows = {row[0]: row[1] for row in table_of([Entry(result)], [])[1]}
    assert not [name for name in rows if name.startswith(("publish latency", "acknowledged"))]
    assert rows["records sent without an acknowledgement"] == f"{result.findings.unknown:,}"
    assert "of those: never read" in rows
    assert "end-to-end p50, ms" in rows
