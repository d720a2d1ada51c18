"""Which faults there were: one row for each name with the number of its hits, and the hits themselves."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables

MOST_HITS = 60
"""A chart cannot show more of them apart."""


def transform(tables: Tables) -> DataFrame:
    """Columns: run, name, kind, hits, from_us, until_us, and of the first hit: target, detail, api_key."""
    grouped = tables.faults.groupBy("run", "name", "kind").agg(
        F.count("*").alias("hits"),
        F.min("at_us").alias("from_us"),
        F.max(F.greatest("at_us", "until_us")).alias("until_us"),
        F.min(F.struct("at_us", "target", "detail", "api_key")).alias("first"),
    )
    return grouped.select(
        "run", "name", "kind", "hits", "from_us", "until_us", "first.target", "first.detail", "first.api_key"
    )


def hits(tables: Tables) -> DataFrame:
    """Up to MOST_HITS hits of each name, spread evenly over all of them. The first one is always there.

    Columns: run, name, kind, hit, at_us, until_us.
    """
    of_name = Window.partitionBy("run", "name")
    numbered = tables.faults.withColumn("n", F.row_number().over(of_name.orderBy("at_us", "hit")))
    counted = numbered.withColumn("total", F.count("*").over(of_name))
    chosen = counted.where(f"(n - 1) * {MOST_HITS} % total < {MOST_HITS}")
    return chosen.select("run", "name", "kind", "hit", "at_us", F.greatest("at_us", "until_us").alias("until_us"))
