"""The history of a load: rows that stand for many records, and the same verdict by Spark as by the ledger."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest

from bench.fleet.parquet_sink import native_thread
from bench.load.command import RUNS_KEPT, run_folder
from bench.load.history import LoadHistory, Spans, write_judged
from bench.load.ledger import Findings, Read, Sent, judge
from bench.load.measures import LoadSecond, Measures
from bench.load.options import LoadOptions
from bench.load.producer import SEQUENCES
from bench.load.run import run, spec_of
from bench.load.target import LoadTarget, started
from bench.load.workload import read_workload, workload_of
from bench.locust.processes import ROOT
from reports.errors import SetupError
from reports.load_rows import SPANS, LoadSpan
from reports.schema import files_of
from reports.verdict import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = LoadTarget("reference", [("127.0.0.1", 9092)], None)
WRITERS = ("p0", "p1")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a client did: a producer's batch ended, or a reader took a span."""

    client: int  # of three readers, of which two share the first subscription; -1: a producer
    kind: str
    partition: int
    writer: str
    first: int
    records: int
    at_us: int


def drawn(seed: int) -> list[Event]:
    """A history of small overlapping ranges, most of which are violations."""
    chance = Random(seed)
    events = []
    for _ in range(chance.randrange(30)):
        client = chance.choice((-1, -1, 0, 1, 2))
        if client < 0:
            kind, writer = chance.choice(("ok", "ok", "ok", "info", "fail", "aborted")), chance.choice(WRITERS)
        else:
            kind, writer = chance.choice((*["read"] * 8, "damaged")), chance.choice((*WRITERS, "unknown"))
        place = (chance.randrange(2), writer, chance.randrange(30), chance.randint(1, 10))
        events.append(Event(client, kind, *place, chance.randrange(2_500_000)))
    return events


def good(records: int) -> list[Event]:
    """A load without a violation: two writers, whose batches of ten both subscriptions read."""
    made = []
    for at in range(0, records, 10):
        for partition, writer in enumerate(WRITERS):
            made.append(Event(-1, "ok", partition, writer, at, 10, at * 50_000))
            made.extend(Event(client, "read", partition, writer, at, 10, at * 50_000) for client in ((partition, 2)))
    return made


def by_ledger(events: Sequence[Event], exactly_once: bool, compacted_keys: int = 0) -> Findings:
    sent: dict[str, Sent] = {}
    readers = [Read(), Read(), Read()]
    for event in events:
        if event.client < 0:
            sent.setdefault(event.writer, Sent()).add(event.kind, None, event.first, event.first + event.records)
        else:
            readers[event.client].add(
                "t", event.partition, event.writer, event.first, event.records, event.kind == "read"
            )
    return judge(sent, [readers[:2], readers[2:]], exactly_once, compacted_keys)


def write(folder: Path, events: Sequence[Event], start_thread: Callable[[Callable[[], None]], None]) -> LoadHistory:
    history = LoadHistory(folder, 0, start_thread)
    producers = {writer: history.client(writer) for writer in WRITERS}
    readers = [history.client(f"r{number}", number // 2) for number in range(3)]
    for event in events:
        spans: Spans = producers[event.writer] if event.client < 0 else readers[event.client]
        spans.add(event.kind, "t", event.partition, event.writer, event.first, event.records, event.at_us)
    return history


def later(threads: list[Callable[[], None]]) -> Callable[[Callable[[], None]], None]:
    return threads.append


def rows_of(events: Sequence[Event]) -> list[LoadSpan]:
    """Return the rows that a history of these events writes."""
    history = write(Path(), events, lambda _: None)
    for client in history._clients:
        client.end()
    return [row for row in history._rows if isinstance(row, LoadSpan)]


LATER = [Event(2, "read", partition, "p0", first, 10, 0) for partition, first in ((0, 0), (1, 20), (1, 10), (0, 10))]
"""The third is reordered: what the fourth reads again comes later, though it continues the first."""


def test_neighbours_of_a_second_are_one_row() -> None:
    rows = rows_of(good(1_000))
    assert sum(row.records for row in rows if row.kind == "ok") == 2_000
    assert len(rows) == 2 * 3 * 50  # of two partitions, sent and read twice, in fifty seconds


def test_earlier_reads_end_rows_of_reader() -> None:
    """Otherwise a row would stand for records that came before it, and after it."""
    rows = sorted(rows_of(LATER), key=lambda row: row.number)
    assert [(row.number, row.partition, row.first_sequence, row.records) for row in rows] == [
        (1, 0, 0, 10),
        (2, 1, 20, 10),
        (3, 1, 10, 10),
        (4, 0, 10, 10),
    ]


def test_file_is_written_each_minute_and_the_last_at_the_end(tmp_path: Path) -> None:
    threads: list[Callable[[], None]] = []
    history = write(tmp_path, good(100), later(threads))
    history.roll(61_000_000)
    history.client("p9").add("ok", "t", 0, "p9", 0, 5, 62_000_000)
    history.roll(63_000_000)
    history._items.put(None)
    threads[0]()
    assert len(files_of(tmp_path, SPANS)) == 1
    whole = LoadHistory(tmp_path / "whole", 3, later(threads))
    whole.client("p9").add("ok", "t", 0, "p9", 0, 5, 62_000_000)
    whole._ended.put(None)
    whole.close(Measures(seconds={0: LoadSecond(offered=5)}))
    threads[1]()
    (name,) = files_of(tmp_path / "whole", SPANS)
    assert pq.read_table(name).to_pylist()[0]["records"] == 5
    assert pq.read_table(tmp_path / "whole/history/load_seconds-worker-3.parquet").to_pylist()[0]["offered"] == 5


def test_old_runs_go(tmp_path: Path) -> None:
    for number in range(RUNS_KEPT + 3):
        (tmp_path / f"20260101-{number:06}-a").mkdir()
    new = run_folder(tmp_path, "host:9092")
    assert new.name.endswith("-host-9092")
    assert len(list(tmp_path.iterdir())) == RUNS_KEPT - 1


def by_spark(
    spark: "SparkSession", histories: Sequence[Sequence[Event]], exactly_once: bool, compacted_keys: int = 0
) -> list[dict[str, Any]]:
    """Return the counts of each history. Spark judges them in one go."""
    from pyspark.sql.types import LongType, StructField, StructType

    from reports.jobs.load_ledger import LoadCounts, load_counts
    from reports.read_tables import struct_type

    rows = [(run, *row.values()) for run, events in enumerate(histories) for row in rows_of(events)]
    schema = StructType([StructField("run", LongType()), *struct_type(SPANS).fields])
    counts = load_counts(spark.createDataFrame(rows, schema), 2, exactly_once, compacted_keys)
    return [asdict(counts.get(run, LoadCounts())) for run in range(len(histories))]


def expected(events: Sequence[Event], exactly_once: bool, compacted_keys: int = 0) -> dict[str, Any]:
    found = asdict(by_ledger(events, exactly_once, compacted_keys))
    del found["first_lost"]
    return found


PLANTED = {
    "clean": good(60),
    "lost": [each for each in good(60) if not (each.client == 2 and each.first == 20)],
    "repeated": [*good(60), Event(0, "read", 0, "p0", 15, 7, 9_000_000)],
    "by another reader": [*good(60), Event(1, "read", 0, "p0", 15, 7, 9_000_000)],
    "reordered": [*good(60), Event(2, "read", 0, "p0", 80, 5, 0), Event(2, "read", 0, "p0", 70, 5, 0)],
    "refused": [*good(60), Event(-1, "fail", 0, "p0", 70, 5, 0), Event(2, "read", 0, "p0", 72, 9, 0)],
    "unknown": [*good(60), Event(-1, "info", 0, "p0", 70, 5, 0), Event(2, "read", 0, "p0", 70, 5, 0)],
    "damaged": [*good(60), Event(2, "damaged", 0, "p0", 0, 5, 0)],
    "nothing read": [each for each in good(60) if each.client < 0],
    "read again later": [*good(60), *LATER],
    "nothing": [],
}


@pytest.mark.spark
def test_spark_judges_as_the_ledger_does(spark: "SparkSession") -> None:
    from reports.jobs.load_ledger import LoadCounts

    histories = [*PLANTED.values(), *map(drawn, range(400))]
    found = by_spark(spark, histories, True)
    for name, counts in zip(PLANTED, found, strict=False):
        assert LoadCounts(**counts).is_clean == (name in ("clean", "unknown", "nothing")), name
    for number, (history, counts) in enumerate(zip(histories, found, strict=True)):
        assert counts == expected(history, True), number
    kinds = {name for counts in found for name, count in counts.items() if count}
    assert len(kinds) == 9


COMPACTED_KEYS = 4


def compacted(seed: int) -> list[Event]:
    """A history of two writers with a partition each, of which readers have taken some parts. Batches of a key's last
    records may be refused, or end without a response."""
    chance = Random(seed)
    events, reads_all = [], chance.random() < 0.5
    for partition, writer in enumerate(WRITERS):
        begin = partition * SEQUENCES
        for at in range(0, chance.randrange(1, 12) * 3, 3):
            place = (partition, writer, begin + at, 3, 0)
            events.append(Event(-1, chance.choice(("ok", "ok", "ok", "ok", "info", "fail")), *place))
        for client in (partition, 2):
            events += [Event(client, "read", partition, writer, begin + 9, 27, 0)] * reads_all
            for _ in range(chance.randrange(6)):
                place = (partition, writer, begin + chance.randrange(36), chance.randint(1, 12), 0)
                events.append(Event(client, "read", *place))
    return events


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_judges_compacted_topics_as_the_ledger_does(spark: "SparkSession") -> None:
    histories = [PLANTED["lost"], *map(compacted, range(120))]
    found = by_spark(spark, histories, True, COMPACTED_KEYS)
    for number, (history, counts) in enumerate(zip(histories, found, strict=True)):
        assert counts == expected(history, True, COMPACTED_KEYS), number
    assert found[0]["lost"] == 0, "a later record has each key of those that were not read"
    assert by_ledger(PLANTED["lost"], True).lost == 20
    assert 20 < sum(bool(counts["lost"]) for counts in found) < 110


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.rotated(4, "load")
def test_compacted_run_is_judged_by_both(spark: "SparkSession", tmp_path: Path) -> None:
    from reports.jobs.load_ledger import judge_load

    workload = read_workload(ROOT / "docs" / "workloads" / "compacted.yaml")
    settings = workload.crucible.broker_settings
    with started("reference", lambda _: None, settings) as target:
        result = run(
            workload, target, LoadOptions(records_per_s=8_000, seconds=8, warmup_s=1), tmp_path, lambda _: None
        )
    judged, counts = judge_load(spark, tmp_path)
    assert judged.compacted_keys == 10_000
    assert result.findings.is_clean
    assert {name: judged.found[name] for name in asdict(counts)} == asdict(counts)
    assert counts.acknowledged >= counts.read > 10_000


@pytest.mark.spark
def test_without_idempotence_repeats_are_no_violation(spark: "SparkSession") -> None:
    (found,) = by_spark(spark, [PLANTED["repeated"]], False)
    assert found == expected(PLANTED["repeated"], False)


@pytest.mark.spark
def test_history_that_is_not_whole_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    from reports.jobs.load_ledger import judge_load, read_spans

    with pytest.raises(SetupError, match="the history of 2 of 2 load workers is missing"):
        read_spans(spark, tmp_path, 2)
    with pytest.raises(SetupError, match=r"load-run.json cannot be read"):
        judge_load(spark, tmp_path)


@pytest.mark.spark
def test_stored_run_is_judged(spark: "SparkSession", tmp_path: Path) -> None:
    from reports.jobs.load_ledger import judge_load, outcome_of

    history = write(tmp_path, PLANTED["lost"], native_thread)
    history.close(Measures())
    spec = spec_of(workload_of({"subscriptionsPerTopic": 2}, "w", "w"), TARGET, LoadOptions(), ["t"], tmp_path)
    write_judged(tmp_path, spec, True, by_ledger(PLANTED["lost"], True))
    run, counts = judge_load(spark, tmp_path)
    assert (run.workers, run.subscriptions, run.exactly_once) == (1, 2, True)
    assert {name: run.found[name] for name in asdict(counts)} == asdict(counts)
    assert counts.lost == 20
    assert outcome_of(run, counts) is Outcome.FAILED
    other = msgspec.structs.replace(run, found={**run.found, "acknowledged": counts.acknowledged + 1})
    assert outcome_of(other, counts) is Outcome.INVALID, "the ledger saw records of which the history has none"
    (spans,) = map(Path, files_of(tmp_path, SPANS))
    spans.write_bytes(spans.read_bytes()[:-9])
    with pytest.raises(SetupError, match=r"load_spans.*\.parquet is damaged or cut short"):
        judge_load(spark, tmp_path)
    spans.unlink()
    with pytest.raises(SetupError, match=r"has no history/load_spans.*\.parquet: restore it"):
        judge_load(spark, tmp_path)
