"""redelivery: a member that was given a partition begins to read below the group's committed offset.

The next owner reads again what was read but not committed. That is as promised, and is only counted. ``rewinds`` judges
positions that were out of range or truncated.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.commits import STORED, written
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "redelivery"
_OWNER = ("run", "process", "topic", "partition")


def first_reads(tables: Tables) -> DataFrame:
    """A row for each time that a member was given a partition and read from it. Columns: run, process, topic,
    partition, group, generation, given_us, index, invoke_us, at_us, first_offset."""
    given = tables.memberships.where(F.col("event") == "assigned").select(
        *_OWNER,
        "group",
        "generation",
        F.col("at_us").alias("given_us"),
        F.col("at_us").alias("point_us"),
        F.lit(0).alias("is_read"),
    )
    reads = tables.reads.where(F.col("type") == "ok").select(
        *_OWNER,
        "index",
        "position",
        "invoke_us",
        F.col("complete_us").alias("at_us"),
        "first_offset",
        F.col("invoke_us").alias("point_us"),
        F.lit(1).alias("is_read"),
    )
    in_time = Window.partitionBy(*_OWNER).orderBy("point_us", "is_read", "index", "position")
    both = given.unionByName(reads, allowMissingColumns=True)
    for name in ("group", "generation", "given_us"):
        both = both.withColumn(name, F.last(name, ignorenulls=True).over(in_time))
    place = Window.partitionBy(*_OWNER, "given_us").orderBy("point_us", "index", "position")
    owned = both.where((F.col("is_read") == 1) & F.col("given_us").isNotNull())
    return owned.withColumn("n", F.row_number().over(place)).where(F.col("n") == 1).drop("n", "is_read", "point_us")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    commits = written(tables)
    reads = tables.once("first_reads", first_reads)
    ends = commits.where(F.col("end") == "ok").select(
        *STORED,
        F.col("at_us").alias("point_us"),
        F.lit(1).alias("is_end"),
        F.struct("invoke_us", "offset").alias("committed"),
    )
    starts = reads.withColumn("point_us", F.col("given_us")).withColumn("is_end", F.lit(0))
    before = Window.partitionBy(*STORED).orderBy("point_us", "is_end").rowsBetween(Window.unboundedPreceding, -1)
    both = starts.unionByName(ends, allowMissingColumns=True)
    known = both.withColumn("last", F.max("committed").over(before)).where(F.col("is_end") == 0)
    back = known.where(F.col("first_offset") < F.col("last.offset"))
    left = _without_moves(_without_later_commits(back, commits), tables)
    detail = sentence(
        "%s was given the partition in generation %s and read from offset %s; the group had committed %s: %s records.",
        "process",
        "generation",
        "first_offset",
        "last.offset",
        F.col("last.offset") - F.col("first_offset"),
    )
    return anomalies(left, NAME, detail, at_us="at_us", offset=F.col("first_offset"))


def _without_later_commits(back: DataFrame, commits: DataFrame) -> DataFrame:
    """Leaves out first reads that a commit of unknown end, or a later commit, explains."""
    later = commits.select(
        *(F.col(name).alias(f"w_{name}") for name in STORED),
        F.col("offset").alias("w_offset"),
        F.col("until_us").alias("w_until_us"),
        F.col("invoke_us").alias("w_invoke_us"),
    )
    same = (
        (F.col("w_offset") <= F.col("first_offset"))
        & (F.col("w_until_us") > F.col("last.invoke_us"))
        & (F.col("w_invoke_us") < F.col("invoke_us"))
    )
    for name in STORED:
        same = same & (F.col(name) == F.col(f"w_{name}"))
    return back.join(later, same, "left_anti")


def _without_moves(back: DataFrame, tables: Tables) -> DataFrame:
    moved = tables.resets.where(F.col("reason") != "no_offset").select(
        *(F.col(name).alias(f"m_{name}") for name in _OWNER), F.col("at_us").alias("m_at_us")
    )
    same = (F.col("m_at_us") >= F.col("given_us")) & (F.col("m_at_us") <= F.col("at_us"))
    for name in _OWNER:
        same = same & (F.col(name) == F.col(f"m_{name}"))
    return back.join(moved, same, "left_anti")


JUDGED = Judging(
    NAME,
    needs=("operations", "runs", "commits", "memberships"),
    evidence="partitions_given",
    unit="partitions given to members",
    find=transform,
)
