"""Who led replicated partitions, with which in-sync replicas, and when that changed. The leaders' own notes tell it."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.jobs.notes import ISR_CHANGED, LEADS, notes, number, text
from reports.read_tables import Tables

MOST_PARTITIONS = 12
MOST_CHANGES = 400
"""The page shows at most so many changes of one partition."""


def changes(tables: Tables) -> DataFrame:
    """Columns: run, partition (topic-index), at_us, node (the leader), what, leader_epoch (null: isr_changed), isr."""
    noted = notes(tables, LEADS, ISR_CHANGED)
    return noted.select(
        "run", text("partition"), "at_us", "node", "what", number("leader_epoch"), text("isr"), "incarnation", "seq"
    )


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """The changes of the partitions that changed most. Columns: those of ``changes``, and ``place`` (1: changed
    most)."""
    rows = tables.once("leadership", changes)
    counted = rows.groupBy("run", "partition").agg(F.count(F.lit(1)).alias("changes"))
    most = counted.withColumn(
        "place", F.row_number().over(Window.partitionBy("run").orderBy(F.desc("changes"), "partition"))
    ).where(F.col("place") <= MOST_PARTITIONS)
    in_time = Window.partitionBy("run", "partition").orderBy("at_us", "node", "incarnation", "seq")
    return (
        rows.join(F.broadcast(most), ["run", "partition"])
        .withColumn("n", F.row_number().over(in_time))
        .where(F.col("n") <= MOST_CHANGES)
        .select("run", "place", "n", "partition", "at_us", "node", "what", "leader_epoch", "isr")
    )


def by_second(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, second, elected (leaders that took over), grown, shrunk (in-sync sets), of all partitions."""
    in_time = Window.partitionBy("run", "partition").orderBy("at_us", "node", "incarnation", "seq")
    size = F.size(F.split("isr", ","))
    before = F.lag(size).over(in_time)
    seen = tables.once("leadership", changes).select(
        "run",
        F.floor(F.col("at_us") / 1_000_000).cast("long").alias("second"),
        (F.col("what") == LEADS).cast("long").alias("elected"),
        F.coalesce((size > before).cast("long"), F.lit(0)).alias("grown"),
        F.coalesce((size < before).cast("long"), F.lit(0)).alias("shrunk"),
    )
    return seen.groupBy("run", "second").agg(*(F.sum(name).alias(name) for name in ("elected", "grown", "shrunk")))
