"""What a mirror copied from one cluster to another, how far it came, what it copied twice and where it went back."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION
from reports.jobs.config import JobConfig
from reports.jobs.intervals import merged
from reports.read_tables import Tables

SLOT_US = 250_000
"""The page shows positions over time in steps of this size."""
MOST_REWINDS = 200


def steps(tables: Tables) -> DataFrame:
    """COPIES with ``end`` (offset behind the run), ``before`` (the end of the run before it) and ``again`` (how many of
    its records had been copied already), in the order in which the target acknowledged the runs."""
    in_time = Window.partitionBy(*PARTITION).orderBy("at_us", "process", "index", "source_offset")
    reached = F.max("end").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    rows = tables.copies.where(F.col("target_offset") >= 0).withColumn("end", F.col("source_offset") + F.col("count"))
    again = F.least(F.col("count"), F.greatest(F.lit(0), reached - F.col("source_offset")))
    return rows.withColumn("again", F.coalesce(again, F.lit(0))).withColumn("before", F.lag("end").over(in_time))


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, topic, partitions, records, again, rewinds, farthest (offsets that it went back at once)."""
    back = F.greatest(F.lit(0), F.coalesce(F.col("before") - F.col("source_offset"), F.lit(0)))
    rows = tables.once("mirror_steps", steps).withColumn("back", back)
    return rows.groupBy("run", "topic").agg(
        F.countDistinct("partition").alias("partitions"),
        F.sum("count").alias("records"),
        F.sum("again").alias("again"),
        F.sum((F.col("back") > 0).cast("long")).alias("rewinds"),
        F.max("back").alias("farthest"),
    )


def positions(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, topic, partition, slot (of SLOT_US), position (offset behind the last copy), again (records)."""
    rows = tables.once("mirror_steps", steps).withColumn("slot", _slot("at_us"))
    order = F.struct("at_us", "process", "index", "source_offset")
    return rows.groupBy(*PARTITION, "slot").agg(F.max_by("end", order).alias("position"), F.sum("again").alias("again"))


def rewinds(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, topic, partition, at_us, from_offset, to_offset. Each row is the first copy after the mirror went
    back."""
    back = tables.once("mirror_steps", steps).where(F.col("source_offset") < F.col("before"))
    first = F.row_number().over(Window.partitionBy("run").orderBy("at_us", "topic", "partition"))
    return (
        back.withColumn("n", first)
        .where(F.col("n") <= MOST_REWINDS)
        .select(*PARTITION, "at_us", F.col("before").alias("from_offset"), F.col("source_offset").alias("to_offset"))
    )


def source_ends(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, topic, partition, slot, end (offset behind the last record acknowledged). Only topics
    that were copied."""
    topics = tables.copies.select("run", "topic").distinct()
    sends = tables.sends.where((F.col("type") == "ok") & (F.col("first_offset") >= 0))
    ends = sends.join(F.broadcast(topics), ["run", "topic"], "left_semi").withColumn("slot", _slot("complete_us"))
    return ends.groupBy(*PARTITION, "slot").agg((F.max("last_offset") + 1).alias("end"))


def targets(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, topic, held (records in the target at the end), twice (how many of them it holds already)."""
    held = tables.target_runs.where(F.col("count") > 0)
    numbered = held.withColumn("last_sequence", F.col("first_sequence") + F.col("count") - 1)
    values = merged(numbered, (*PARTITION, "writer"), "first_sequence", "last_sequence")
    different = values.groupBy("run", "topic").agg(F.sum(F.col("last") - F.col("first") + 1).alias("different"))
    found = held.groupBy("run", "topic").agg(F.sum("count").alias("held")).join(different, ["run", "topic"])
    return found.select("run", "topic", "held", (F.col("held") - F.col("different")).alias("twice"))


def _slot(at_us: str) -> Column:
    return F.floor(F.col(at_us) / SLOT_US).cast("long")
