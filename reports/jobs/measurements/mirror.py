"""What a mirror copied from one cluster to another, how far it came, what it copied twice and where it went back."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.evidence import acknowledged
from reports.jobs.shared.expressions import PARTITION, before, first_rows
from reports.jobs.shared.intervals import merged
from reports.read_tables import Tables

SLOT_US = 250_000
"""The page shows positions over time in steps of this size."""
MOST_REWINDS = 200


def steps(tables: Tables) -> DataFrame:
    """COPIES with ``end`` (offset behind the run), ``previous`` (the end of the run before it) and ``again`` (how many
    of its records had been copied already), in the order in which the target acknowledged the runs."""
    in_time = Window.partitionBy(*PARTITION).orderBy("at_us", "process", "index", "source_offset")
    rows = tables.copies.where("target_offset >= 0").withColumn("end", F.col("source_offset") + F.col("count"))
    reached = rows.withColumn("reached", F.max("end").over(before(in_time)))
    again = F.expr("least(count, greatest(0, coalesce(reached - source_offset, 0)))")
    return reached.withColumn("again", again).withColumn("previous", F.lag("end").over(in_time))


def transform(tables: Tables) -> DataFrame:
    """Columns: run, topic, partitions, records, again, rewinds, farthest (offsets that it went back at once)."""
    rows = tables.once(steps).withColumn("back", F.expr("greatest(0, coalesce(previous - source_offset, 0))"))
    return rows.groupBy("run", "topic").agg(
        F.countDistinct("partition").alias("partitions"),
        F.sum("count").alias("records"),
        F.sum("again").alias("again"),
        F.count_if(F.col("back") > 0).alias("rewinds"),
        F.max("back").alias("farthest"),
    )


def positions(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, slot (of SLOT_US), position (offset behind the last copy)."""
    rows = tables.once(steps).withColumn("slot", _slot("at_us"))
    order = F.struct("at_us", "process", "index", "source_offset")
    return rows.groupBy(*PARTITION, "slot").agg(F.max_by("end", order).alias("position"))


def rewinds(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, at_us, from_offset, to_offset. Each row is the first copy after the mirror went
    back."""
    back = tables.once(steps).where("source_offset < previous")
    first = first_rows(back, MOST_REWINDS, Window.partitionBy("run").orderBy("at_us", "topic", "partition"))
    return first.select(
        *PARTITION, "at_us", F.col("previous").alias("from_offset"), F.col("source_offset").alias("to_offset")
    )


def source_ends(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, slot, end (offset behind the last record acknowledged). Only topics
    that were copied."""
    topics = tables.copies.select("run", "topic").distinct()
    ends = acknowledged(tables).join(F.broadcast(topics), ["run", "topic"], "left_semi")
    slots = ends.groupBy(*PARTITION, _slot("complete_us").alias("slot"))
    return slots.agg((F.max("last_offset") + 1).alias("end"))


def held_by_target(tables: Tables) -> DataFrame:
    """TARGET_RUNS that hold records, with ``last_sequence``."""
    held = tables.target_runs.where("count > 0")
    return held.withColumn("last_sequence", F.col("first_sequence") + F.col("count") - 1)


def targets(tables: Tables) -> DataFrame:
    """Columns: run, topic, held (records in the target at the end), twice (how many it holds a second time)."""
    held = held_by_target(tables)
    values = merged(held, [*PARTITION, "writer"], "first_sequence", "last_sequence").groupBy("run", "topic")
    different = values.agg(F.sum(F.col("last") - F.col("first") + 1).alias("different"))
    found = held.groupBy("run", "topic").agg(F.sum("count").alias("held")).join(different, ["run", "topic"])
    return found.select("run", "topic", "held", (F.col("held") - F.col("different")).alias("twice"))


def _slot(at_us: str) -> Column:
    return F.floor(F.col(at_us) / SLOT_US).cast("long")
