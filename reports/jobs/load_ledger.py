"""The verdict of a benchmark's load from its history: what was lost, repeated, reordered, damaged or refused but read.

``bench/load/ledger.py`` computes the same in the memory of the workers. The two share no code. Here spans of sequences
are intervals. Unions and differences are sweeps over their bounds and cost one sort, however long the load was.
"""

from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.errors import SetupError
from reports.jobs.expressions import before
from reports.jobs.intervals import merged, subtracted
from reports.load_rows import RUN_NAME, SPANS, JudgedLoad
from reports.parts import read_progress
from reports.read_tables import struct_type
from reports.schema import files_of, is_whole
from reports.verdict import Outcome

_WRITER = ("run", "subscription", "writer")
_READER = ("run", "subscription", "client", "writer")
_LENGTH = "last - first + 1"


@dataclass(frozen=True, slots=True)
class LoadCounts:
    """Counts of records."""

    acknowledged: int = 0
    """Summed over subscriptions, each with its own."""
    read: int = 0
    lost: int = 0
    """Summed over subscriptions, each with its own."""
    repeated: int = 0
    reordered: int = 0
    damaged: int = 0
    refused_but_read: int = 0
    unknown: int = 0
    """Records whose producer does not know whether they were written."""
    unread: int = 0
    """Records of unknown outcome that were not read."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.repeated or self.reordered or self.damaged or self.refused_but_read)


def judge_load(spark: SparkSession, folder: Path) -> tuple[JudgedLoad, LoadCounts]:
    """Judge a stored run. Raise SetupError if its folder is not one of a load, or not whole."""
    try:
        run = msgspec.json.decode((folder / RUN_NAME).read_bytes(), type=JudgedLoad)
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{folder / RUN_NAME} cannot be read ({error}).") from error
    spans = read_spans(spark, folder, run.workers).select(F.lit(0).alias("run"), "*")
    counts = load_counts(spans, run.subscriptions, run.exactly_once, run.compacted_keys)
    return run, counts.get(0, LoadCounts())


def differing_counts(run: JudgedLoad, counts: LoadCounts) -> list[str]:
    """Return the names of counts of which the run's own ledger has another. Older runs lack the newest counts."""
    return [name for name, count in asdict(counts).items() if run.found.get(name, count) != count]


def outcome_of(run: JudgedLoad, counts: LoadCounts) -> Outcome:
    """Return the outcome of a stored run. It is INVALID if the counts of its ledger differ, because the history is then
    not the one that the run wrote."""
    if differing_counts(run, counts):
        return Outcome.INVALID
    return Outcome.PASSED if counts.is_clean else Outcome.FAILED


def read_spans(spark: SparkSession, folder: Path, workers: int) -> DataFrame:
    """Return the spans of a run. Raise SetupError if a worker's history is missing or not whole."""
    closed = sum(progress.closed for progress in read_progress(folder))
    if closed < workers:
        raise SetupError(f"{folder}: the history of {workers - closed} of {workers} load workers is missing.")
    files = files_of(folder, SPANS)
    if not files:
        raise SetupError(f"{folder} has no {SPANS.path}: restore it from a copy, or play the run again.")
    damaged = next((file for file in files if not is_whole(Path(file))), None)
    if damaged is not None:
        raise SetupError(f"{damaged} is damaged or cut short: restore it from a copy, or play the run again.")
    return spark.read.schema(struct_type(SPANS)).parquet(*files)


def load_counts(
    spans: DataFrame, subscriptions: int, exactly_once: bool, compacted_keys: int = 0
) -> dict[int, LoadCounts]:
    """Judge the spans of runs, which have the number of their run in the column ``run``. Return the counts by it.

    Without ``exactly_once``, what is read twice is no violation. If topics are compacted, ``compacted_keys`` take turns
    in each partition, and of each key only the last acknowledged record must be read, unless a later one is perhaps
    written.
    """
    closed = spans.select(
        "*", F.col("first_sequence").alias("first"), (F.col("first_sequence") + F.col("records") - 1).alias("last")
    )
    numbers = spans.sparkSession.range(subscriptions).select(F.col("id").alias("subscription"))
    sent = closed.where("subscription < 0").drop("subscription").crossJoin(F.broadcast(numbers))
    taken = closed.where("subscription >= 0 and kind = 'read'")

    # What each reader has read, and what a subscription's readers have read together of writers that sent anything.
    by_reader = merged(taken, _READER, "first", "last")
    by_known = by_reader.join(sent.select("run", "writer").distinct(), ["run", "writer"])
    read = merged(by_known, _WRITER, "first", "last")
    # What was acknowledged, and what was refused, once for each subscription.
    ok = merged(sent.where("kind = 'ok'"), _WRITER, "first", "last")
    refused = merged(sent.where("kind not in ('ok', 'info')"), _WRITER, "first", "last")
    unknown = merged(sent.where("kind = 'info'"), _WRITER, "first", "last")
    # A cleaner may have removed a record for a later one that is perhaps written, which itself need not be there.
    newest = latest(sent.where("kind in ('ok', 'info')"), compacted_keys) if compacted_keys else ok
    due = subtracted(newest, unknown, _WRITER) if compacted_keys else ok

    parts = {
        "acknowledged": [(ok, 1)],
        "read": [(read, 1)],
        "lost": [(subtracted(due, read, _WRITER), 1)],
        "repeated": [(taken, 1), (by_reader, -1), (by_known, 1), (read, -1)] if exactly_once else [],
        "reordered": [(behind(taken), 1), (_read_before(taken), -1)],
        "damaged": [(closed.where("subscription >= 0 and kind = 'damaged'"), 1)],
        "refused_but_read": [(refused, 1), (subtracted(refused, read, _WRITER), -1)],
        "unknown": [(unknown, 1)],
        "unread": [(subtracted(unknown, read, _WRITER), 1)],
    }
    sums = [
        frame.groupBy("run").agg((sign * F.sum(F.expr(_LENGTH))).alias("records")).withColumn("name", F.lit(name))
        for name, several in parts.items()
        for frame, sign in several
    ]
    by_run: dict[int, dict[str, int]] = {}
    for row in reduce(DataFrame.unionByName, sums).collect():
        own = by_run.setdefault(row["run"], {})
        own[row["name"]] = own.get(row["name"], 0) + row["records"]
    return {run: LoadCounts(**counts) for run, counts in by_run.items()}


def latest(sent: DataFrame, keys: int) -> DataFrame:
    """The last record of each key, merged. Sequences of a key are ``keys`` apart. Of an interval only its
    end can have them, so that no more rows than keys are made of each."""
    place = (*_WRITER, "topic", "partition")
    ends = merged(sent, place, "first", "last").withColumn("first", F.greatest("first", F.col("last") - (keys - 1)))
    single = ends.select(*place, F.explode(F.sequence("first", "last")).alias("sequence"))
    newest = single.groupBy(*place, F.expr(f"sequence % {keys}").alias("key")).agg(F.max("sequence").alias("first"))
    return merged(newest.withColumn("last", F.col("first")), _WRITER, "first", "last")


def behind(taken: DataFrame) -> DataFrame:
    """The parts of spans below the highest sequence that their reader took before, of this partition and writer."""
    in_order = Window.partitionBy(*_READER, "topic", "partition").orderBy("number")
    reached = taken.withColumn("reached", F.max("last").over(before(in_order)))
    return reached.where("first <= reached").withColumn("last", F.least("last", "reached"))


def _read_before(taken: DataFrame) -> DataFrame:
    """Return those parts that the same reader had read before, of whatever partition. Such records are repeated."""
    late = behind(taken).select(*_READER, F.col("number").alias("late"), "first", "last")
    earlier = taken.select(*_READER, "number", F.col("first").alias("from"), F.col("last").alias("to"))
    pairs = late.join(earlier, list(_READER)).where("number < late and from <= last and to >= first")
    clipped = pairs.select(
        *_READER, "late", F.greatest("first", "from").alias("first"), F.least("last", "to").alias("last")
    )
    return merged(clipped, [*_READER, "late"], "first", "last")
