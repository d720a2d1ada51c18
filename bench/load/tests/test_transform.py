"""Clients that consume, transform and produce exactly once, on the reference broker and on brokers that break it."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bench.load.command import table_of
from bench.load.comparison import Entry
from bench.load.ledger import Findings, Read, Sent, judge
from bench.load.options import LoadOptions
from bench.load.producer import LoadPlan, LoadProducer, Settled, TransactionPlan
from bench.load.reader import LoadReader, ReadPlan, Taken
from bench.load.results import LoadResult
from bench.load.run import run
from bench.load.sink import Sink, SinkPlan, serving
from bench.load.target import LoadTarget, started
from bench.load.topics import topics_for
from bench.load.transform import Transformer, TransformPlan, transformed
from bench.load.workload import UnplayableError, WorkloadError, check_topics, workload_of
from reference_broker.client.consumer import READ_COMMITTED, TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.producer import ProducerBatch
from reference_broker.records.batch import Buffer, read_header
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build, read_records

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0
TABLE = {"partitionsPerTopic": 4, "messageSize": 200, "producersPerTopic": 2, "producerRate": 1_000}
OFTEN_ABORTED = {"instances": 2, "commitIntervalS": 0.05, "abortRatio": 0.3}
INPUT = tuple(TopicPartition("in", index) for index in range(6))
OUTPUT = tuple(TopicPartition("out", index) for index in range(6))


@pytest.fixture(scope="module")
def target() -> Iterator[LoadTarget]:
    with started("reference", lambda _: None) as found:
        yield found


def played(target: LoadTarget, folder: Path, seconds: float = 2) -> LoadResult:
    workload = workload_of({**TABLE, "crucible": {"transform": OFTEN_ABORTED}}, "w", "w")
    return run(workload, target, LoadOptions(seconds=seconds, warmup_s=1), folder, lambda _: None)


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_each_input_record_is_once_in_the_output_beside_aborts(target: LoadTarget, tmp_path: Path) -> None:
    result = played(target, tmp_path)
    assert result.findings.is_clean
    assert result.findings.acknowledged == result.findings.read > 1_500
    assert not result.unfinished
    assert not result.errors
    committed = sum(second.transactions for second in result.measures.seconds.values())
    ended = sum(result.measures.histogram("commit", 0, result.end + 60).values())
    assert 0 < committed < ended, "no transaction was aborted"
    assert result.quantile_ms("end_to_end", 0.5) > result.quantile_ms("publish", 0.5)
    rows = {row[0]: row[1] for row in table_of([Entry(result)], [])[1]}
    assert float(rows["transactions committed, in a second"]) > 1
    assert "aborted by the plan, records/s" not in rows, "the producers abort nothing"
    run_of = msgspec.json.decode((tmp_path / "load-run.json").read_bytes())
    assert run_of["exactly_once"]


ABORTS_NOT_HONOURED = """
from reference_broker.log.unified_log import UnifiedLog
UnifiedLog.aborted_transactions = lambda self, offset, end_offset: []
"""
MUTANT = """
from chaos.mutants.mutant import apply
from chaos.mutants.registry import by_name
apply(by_name({name!r}))
"""
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
{change}
from crucible_kafka.cli import main
main(prog_name="crucible")
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("change", "violated"),
    [
        (ABORTS_NOT_HONOURED, "repeated"),
        (MUTANT.format(name="offsets_kept_after_abort"), "lost"),
    ],
    ids=["aborts not honoured", "offsets of aborts"],
)
@pytest.mark.rotated(4, "load")
def test_broker_that_breaks_transactions_fails_the_benchmark(tmp_path: Path, change: str, violated: str) -> None:
    program = tmp_path / "broken.py"
    program.write_text(PROGRAM.format(root=str(ROOT), change=change))
    described = (ROOT / "bench" / "targets" / "reference.toml").read_text()
    broken = tmp_path / "broken.toml"
    broken.write_text(described.replace("{root}/crucible_kafka", str(program)))
    assert str(program) in broken.read_text()
    with started(str(broken), lambda _: None) as target:
        result = played(target, tmp_path / "run")
    assert getattr(result.findings, violated) > 0
    assert result.outcome == "FAILED"


class Stage:
    """A transformer in a thread."""

    def __init__(self, target: LoadTarget, name: str, made: type[Transformer] = Transformer) -> None:
        self.errors: list[str] = []
        self.committed = self.aborted = 0
        plan = TransformPlan(
            ReadPlan(name, INPUT, isolation_level=READ_COMMITTED, group_id="transform"),
            LoadPlan(name, OUTPUT, transaction=TransactionPlan(name, duration_us=50_000, abort_ratio=0.2)),
        )
        self.client = made(plan, target.bootstrap, self._taken, self._ended)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.client.prepare()
        self.client.run()

    def _taken(self, taken: Taken) -> None:
        if taken.error:
            self.errors.append(taken.error)

    def _ended(self, committed: bool, *_: int) -> None:
        self.committed += committed
        self.aborted += not committed

    def end(self) -> None:
        self.client.stop()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.02)


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_members_that_join_and_leave_repeat_and_lose_nothing(target: LoadTarget) -> None:
    sent, read, ends = Sent(), Read(), 0

    def settled(each: Settled) -> None:
        nonlocal ends
        sent.add(each.kind, each.error, each.first_sequence, each.first_sequence + each.count)
        ends += 1

    def taken(each: Taken) -> None:
        for span in each.spans:
            read.add(*each.where, span.writer, span.first_sequence, span.count, span.valid)

    with topics_for(target.bootstrap, ["in", "out"], len(INPUT), 1):
        producer = LoadProducer(LoadPlan("p", INPUT, batch_records=20, records_per_s=1_000), target.bootstrap, settled)
        reader = LoadReader(ReadPlan("r", OUTPUT, isolation_level=READ_COMMITTED), target.bootstrap, taken)
        threads = [threading.Thread(target=each.run) for each in (producer, reader)]
        stages = [Stage(target, "t0")]
        for thread in threads:
            thread.start()
        until(lambda: stages[0].committed >= 3, "a first transaction")
        stages.append(Stage(target, "t1"))
        until(lambda: stages[1].committed >= 3, "a transaction of the second member")
        assert stages[0].client.source.rebalances == 2
        stages.pop(0).end()
        before = ends
        until(lambda: ends >= before + 30, "a load for one member")
        producer.stop()
        threads[0].join(LIMIT_S)
        until(lambda: stages[0].client.lag == 0, "the transformation of all that was sent")
        until(lambda: judged(sent, read).read == judged(sent, read).acknowledged, "the reading of all")
        stages[0].end()
        reader.stop()
        threads[1].join(LIMIT_S)
    assert judged(sent, read).is_clean
    assert not stages[0].errors


class Unlucky(Transformer):
    """It loses partitions in each fifth transaction, as a member whose session has timed out."""

    lost_in = -1

    def _step(self) -> None:
        super()._step()
        if self._number % 5 == 2 and self._made_of and self.lost_in != self._number:
            self.lost_in = self._number
            self.lose(tuple(self._made_of))


@pytest.mark.live
@pytest.mark.rotated(4, "load")
def test_what_was_made_of_lost_partitions_is_aborted_and_made_again(target: LoadTarget) -> None:
    sent, read = Sent(), Read()

    def settled(each: Settled) -> None:
        sent.add(each.kind, each.error, each.first_sequence, each.first_sequence + each.count)

    def taken(each: Taken) -> None:
        for span in each.spans:
            read.add(*each.where, span.writer, span.first_sequence, span.count, span.valid)

    with topics_for(target.bootstrap, ["in", "out"], len(INPUT), 1):
        producer = LoadProducer(LoadPlan("p", INPUT, batch_records=20, records_per_s=1_000), target.bootstrap, settled)
        reader = LoadReader(ReadPlan("r", OUTPUT, isolation_level=READ_COMMITTED), target.bootstrap, taken)
        threads = [threading.Thread(target=each.run) for each in (producer, reader)]
        stage = Stage(target, "unlucky", Unlucky)
        for thread in threads:
            thread.start()
        until(lambda: stage.committed >= 12, "twelve transactions")
        producer.stop()
        threads[0].join(LIMIT_S)
        until(lambda: stage.client.lag == 0, "the transformation of all that was sent")
        until(lambda: judged(sent, read).read == judged(sent, read).acknowledged, "the reading of all")
        stage.end()
        reader.stop()
        threads[1].join(LIMIT_S)
    assert isinstance(stage.client, Unlucky)
    assert stage.client.lost_in >= 7
    assert stage.aborted >= 4, "two of five are aborted: one by the plan, and one that has lost partitions"
    assert judged(sent, read).is_clean


def judged(sent: Sent, read: Read) -> Findings:
    return judge({"p": sent}, [[read]], exactly_once=True)


class Slow(Sink):
    """A sink that is stuck for a while, and keeps the timestamps of batches."""

    def __init__(self) -> None:
        super().__init__(SinkPlan(partitions=1))
        self.timestamps_ms: list[int] = []

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        header = read_header(batch)
        self.timestamps_ms.append(header.max_timestamp_ms)
        if len(self.timestamps_ms) == 1:
            time.sleep(0.3)
        return super().append(partition, batch)


@pytest.mark.parametrize("stamps_due_time", [True, False])
def test_timestamp_is_the_intended_send_time(stamps_due_time: bool) -> None:
    """A batch is due each 10 ms, and a partition that is stuck makes the next ones late."""
    sink, ends = Slow(), 0

    def settled(_: Settled) -> None:
        nonlocal ends
        ends += 1
        if ends == 20:
            producer.stop()

    plan = LoadPlan(
        "p", INPUT[:1], 40, 10, 1_000.0, requests_in_flight=1, idempotent=False, stamps_due_time=stamps_due_time
    )
    with serving(sink) as address:
        producer = LoadProducer(plan, address, settled)
        producer.run()
    gaps_ms = [after - before for before, after in zip(sink.timestamps_ms, sink.timestamps_ms[1:], strict=False)]
    assert (max(gaps_ms) <= 12) is stamps_due_time


def test_batch_is_made_again_from_where_the_reader_begins() -> None:
    records = [Record(timestamp_ms=1_000 + number, key=b"k", value=b"v%d" % number) for number in range(5)]
    data = build(records, base_offset=10, producer_id=1, producer_epoch=0, base_sequence=3)
    batch = ProducerBatch(OUTPUT[0], 7, 2, 40, 5)
    for from_offset, values in ((10, [b"v0", b"v1", b"v2", b"v3", b"v4"]), (12, [b"v2", b"v3", b"v4"])):
        made = transformed(TakenBatch(read_header(data), memoryview(data), from_offset), batch)
        header = read_header(made)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
        assert header.is_transactional
        found = list(read_records(made))
        assert [record.value for record in found] == values
        assert {record.key for record in found} == {b"k"}
        assert [record.timestamp_ms for record in found] == [int(value[1:]) + 1_000 for value in values]


def test_compressed_batch_stays_compressed() -> None:
    data = build([Record(timestamp_ms=1, value=bytes(1_000))], compression=Compression.GZIP)
    made = transformed(TakenBatch(read_header(data), memoryview(data), 0), ProducerBatch(OUTPUT[0], 7, 2, 0, 1))
    assert len(made) < 200
    assert [record.value for record in read_records(made)] == [bytes(1_000)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"transform": {"instances": 5}}, "no partition"),
        ({"transform": {}, "readFromStart": True}, "readFromStart"),
        ({"transform": {}, "client": "librdkafka"}, r"crucible\.transform"),
        ({"transform": {"abortRatio": 1}}, "abortRatio"),
    ],
)
def test_transformation_that_nothing_can_come_out_of_is_refused(table: dict[str, object], why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        workload_of({**TABLE, "crucible": table}, "w", "w")


def test_compacted_topics_are_no_input() -> None:
    workload = workload_of({**TABLE, "keyDistributor": "KEY_ROUND_ROBIN", "crucible": {"transform": {}}}, "w", "w")
    with pytest.raises(UnplayableError, match="all records"):
        check_topics(workload, {"cleanup.policy": "compact"})
