"""Contents of logs as the history proves them. Several jobs share these frames."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import LEADS, PARTITION, notes, text, without_match
from reports.jobs.intervals import merged
from reports.read_tables import Tables

_VALUE = (
    *PARTITION,
    "first_offset",
    "last_offset",
    "producer_id",
    "writer",
    "first_sequence",
    "last_sequence",
    "shift",
    "process",
    "index",
    "complete_us",
)


def ours(reads: DataFrame) -> DataFrame:
    """Return the reads of values that a writer of this run made."""
    return reads.where("valid and writer != ''")


def placed_values(tables: Tables) -> DataFrame:
    """Our values at known offsets: every read, and every send that was durably acknowledged with an offset."""
    return ours(tables.reads).select(*_VALUE).unionByName(durably_acknowledged(tables).select(*_VALUE))


def read_values(tables: Tables) -> DataFrame:
    """All reads as merged intervals of offsets. They are fewer, since every fetcher reads the same records. Columns:
    PARTITION, isolation, is_ok (so the operation ended), is_ours, writer, producer_id, shift, first, last."""
    is_ours = F.expr("valid and writer != ''").alias("is_ours")
    reads = tables.reads.select("*", is_ours, F.expr("type = 'ok'").alias("is_ok"))
    keys = [*PARTITION, "isolation", "is_ok", "is_ours", "writer", "producer_id", "shift"]
    return merged(reads, keys, "first_offset", "last_offset")


def sequences(values: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The sequences of ``read_values``, or of some of them: merged intervals. Columns: keys, first, last."""
    low, high = (F.col("first") + F.col("shift")).alias("low"), (F.col("last") + F.col("shift")).alias("high")
    return merged(values.select(*keys, low, high), keys, "low", "high")


def agreed_values(tables: Tables) -> DataFrame:
    """``placed_values`` as merged intervals of offsets. Columns: PARTITION, writer, producer_id, shift, first, last."""
    keys = [*PARTITION, "writer", "producer_id", "shift"]
    read = tables.once(read_values).where("is_ours").select(*keys, "first", "last")
    sent = durably_acknowledged(tables).select(
        *keys, F.col("first_offset").alias("first"), F.col("last_offset").alias("last")
    )
    return merged(read.unionByName(sent), keys, "first", "last")


def acknowledged(tables: Tables) -> DataFrame:
    return tables.sends.where("type = 'ok' and first_offset >= 0")


def durably_acknowledged(tables: Tables) -> DataFrame:
    return without_leaders_word(acknowledged(tables), tables)


def without_leaders_word(sends: DataFrame, tables: Tables) -> DataFrame:
    """Exclude what only the leader of a replicated partition had acknowledged (acks=1).

    E-7 speaks of acks=all. Such records may be lost when the leader dies, and the next leader writes something else at
    their offsets.
    """
    led = notes(tables, LEADS).select("run", text("partition")).distinct()
    leader_only = "this.acks = 1 and other.partition = concat(this.topic, '-', this.partition)"
    return without_match(sends, F.broadcast(led), ["run"], leader_only)


def ok_reads(tables: Tables) -> DataFrame:
    return tables.reads.where("type = 'ok'")


def group_reads(tables: Tables) -> DataFrame:
    """Return the runs of records that members read while they were members, with their group."""
    return ok_reads(tables).join(F.broadcast(members(tables)), ["run", "process"])


def members(tables: Tables) -> DataFrame:
    """The clients that were ever members of a group. Columns: run, group, process."""
    return tables.memberships.select("run", "group", "process").distinct()


def committed_reads(tables: Tables) -> DataFrame:
    """Return the reads of our values by readers with read_committed."""
    return ours(ok_reads(tables)).where("isolation = 1")


def occupied(tables: Tables) -> DataFrame:
    """Offsets at which a record was read: merged intervals ``first``, ``last`` per partition and ``isolation``.

    Offsets that hold no record for a reader (control batches, compacted records) are in no interval. Readers with
    read_committed (1) see no records of aborted transactions, so only what such readers read counts for them.
    """
    levels = F.explode(F.expr("if(isolation = 1, array(0L, 1L), array(0L))")).alias("isolation")
    reads = tables.once(read_values).select(*PARTITION, "first", "last", levels)
    return merged(reads, [*PARTITION, "isolation"], "first", "last")


def with_clock_steps(frame: DataFrame, tables: Tables) -> DataFrame:
    """Add by how much the faults of the run may have moved a clock, all steps together (``stepped_us``). It is null if
    the evidence of a step lacks its size."""
    step_ms = "cast(nullif(regexp_extract(detail, 'step_ms=(-?[0-9]+)', 1), '') as bigint)"
    steps = tables.faults.where("kind = 'clock_stepped'").selectExpr("run", f"abs({step_ms}) * 1000 as step_us")
    moved = steps.groupBy("run").agg(F.expr("if(count(*) = count(step_us), sum(step_us), null) as stepped_us"))
    joined = frame.join(F.broadcast(moved.withColumn("is_stepped", F.lit(True))), "run", "left")
    return joined.withColumn("stepped_us", F.expr("if(is_stepped, stepped_us, 0L)")).drop("is_stepped")


def log_starts(tables: Tables) -> DataFrame:
    """The highest log start that was seen of each partition (``start_offset``). What is below it may be gone."""
    fetched = tables.positions.where("log_start_offset >= 0").select(*PARTITION, "log_start_offset")
    seen = fetched.unionByName(tables.ends.select(*PARTITION, "log_start_offset"))
    return seen.groupBy(*PARTITION).agg(F.max("log_start_offset").alias("start_offset"))


def with_witness(
    clashes: DataFrame, values: DataFrame, first: str, last: str, keys: Sequence[str], tag: Sequence[str]
) -> DataFrame:
    """Add to each clash the operation (process, index, complete_us) that showed it.

    A clash has two sides, ``tag`` and ``other_<tag>``. It shows once values of both are known at one place that they
    share: the later of the two operations is the witness, of all such pairs the earliest.
    """
    here = _shown(clashes, values, first, last, {**{key: key for key in keys}, **{name: name for name in tag}})
    there = _shown(
        clashes, values, first, last, {**{key: key for key in keys}, **{name: f"other_{name}" for name in tag}}
    )
    same = [F.col(f"here.{name}").eqNullSafe(F.col(f"there.{name}")) for name in clashes.columns]
    meet = F.expr("here.low <= there.high and there.low <= here.high")
    both = here.alias("here").join(there.alias("there"), [*same, meet])
    witness = F.min(F.greatest("here.shown", "there.shown")).alias("witness")
    columns = [F.col(f"here.{name}").alias(name) for name in clashes.columns]
    return both.groupBy(*columns).agg(witness).select(*clashes.columns, "witness.*")


def _shown(clashes: DataFrame, values: DataFrame, first: str, last: str, same: Mapping[str, str]) -> DataFrame:
    """The first operation that showed each part (``low``, ``high``) of one side of the clashes. ``same`` names the
    columns of ``values`` and those of ``clashes`` that must equal them."""
    operation = F.struct("complete_us", "process", "index").alias("operation")
    runs = values.select(
        *(F.col(name).alias(f"v_{name}") for name in same),
        F.col(first).alias("low"),
        F.col(last).alias("high"),
        operation,
    )
    equal = [F.col(f"v_{name}") == F.col(other) for name, other in same.items()]
    hits = F.broadcast(clashes).join(runs, [*equal, F.expr("low <= last and high >= first")])
    parts = hits.withColumns({"low": F.greatest("low", "first"), "high": F.least("high", "last")})
    return parts.groupBy(*clashes.columns, "low", "high").agg(F.min("operation").alias("shown"))
