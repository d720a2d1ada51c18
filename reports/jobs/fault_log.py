"""Which faults there were: one row for each name with the number of its hits, and the hits themselves."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables

MOST_HITS = 60
"""A chart cannot show more of them apart."""


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, name, kind, hits, from_us, until_us, target, detail (of the first hit)."""
    first = F.min(F.struct("at_us", "target", "detail")).alias("first")
    grouped = tables.faults.groupBy("run", "name", "kind").agg(
        F.count(F.lit(1)).alias("hits"),
        F.min("at_us").alias("from_us"),
        F.max(F.greatest("at_us", "until_us")).alias("until_us"),
        first,
    )
    return grouped.select(
        "run", "name", "kind", "hits", "from_us", "until_us", F.col("first.target"), F.col("first.detail")
    )


def hits(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Up to MOST_HITS hits of each name, spread evenly over all of them. The first one is always there.

    Columns: run, name, kind, hit, at_us, until_us, target, client_id, session_epoch, detail.
    """
    in_order = Window.partitionBy("run", "name").orderBy("at_us", "hit")
    total = F.count(F.lit(1)).over(Window.partitionBy("run", "name"))
    numbered = tables.faults.withColumn("n", F.row_number().over(in_order)).withColumn("total", total)
    chosen = numbered.where((F.col("n") - 1) * MOST_HITS % F.col("total") < MOST_HITS)
    return chosen.select(
        "run",
        "name",
        "kind",
        "hit",
        "at_us",
        F.greatest("at_us", "until_us").alias("until_us"),
        "target",
        "client_id",
        "session_epoch",
        "detail",
    )
