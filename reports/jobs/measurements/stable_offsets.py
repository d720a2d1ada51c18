"""How long the last stable offset stood behind the high watermark, as the answers to readers showed it.

A *stand* is one value of it in one partition. It begins with the first answer that shows this value below the high
watermark, and ends with the first answer that shows a greater one. Answers of all nodes count together, so a value that
is shown only after a greater one is no stand. Runs without transactions have none.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import PARTITION, first_rows, with_operation
from reports.jobs.shared.quantiles import quantiles
from reports.read_tables import Tables

MOST_STANDS = 2_000
"""The page shows at most so many stands of one run, the longest ones."""


def transform(tables: Tables) -> DataFrame:
    """Columns: run, topic, count (stands), min_us, p50_us, p99_us, max_us (how long they lasted)."""
    lasted = (F.col("until_us") - F.col("from_us")).alias("low_us")
    each = tables.once(all_stands).select("run", "topic", lasted)
    each = each.withColumns({"high_us": F.col("low_us") + 1, "count": F.lit(1)})
    return quantiles(each, ("run", "topic"), ("p50_us", "p99_us"))


def longest(tables: Tables) -> DataFrame:
    """The rows of ``all_stands`` that lasted longest."""
    lasted = Window.partitionBy("run").orderBy(F.desc(F.col("until_us") - F.col("from_us")), *PARTITION, "offset")
    return first_rows(tables.once(all_stands), MOST_STANDS, lasted).drop("n")


def all_stands(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, offset (the last stable offset), from_us, until_us, behind (the most offsets that
    it was behind), moved (false: it stood there when it was last seen, at until_us)."""
    columns = [*PARTITION, "last_stable_offset", "high_watermark"]
    answered = with_operation(tables.positions.where("error is null"), tables, "complete_us")
    told = answered.select(*columns, F.col("complete_us").alias("at_us"))
    told = told.unionByName(tables.ends.select(*columns, F.col("end_us").alias("at_us")))
    transactional = tables.transactions.select("run").distinct()
    known = told.where("last_stable_offset >= 0 and high_watermark >= 0")
    behind = F.col("high_watermark") - F.col("last_stable_offset")
    values = (
        known.join(F.broadcast(transactional), "run", "left_semi")
        .groupBy(*PARTITION, F.col("last_stable_offset").alias("offset"))
        .agg(
            F.min("at_us").alias("first_us"),
            F.max("at_us").alias("last_us"),
            F.min(F.when(behind > 0, F.col("at_us"))).alias("from_us"),
            F.max(behind).alias("behind"),
        )
    )
    greater = Window.partitionBy(*PARTITION).orderBy("offset").rowsBetween(1, Window.unboundedFollowing)
    moves = values.withColumn("moved_us", F.min("first_us").over(greater))
    ended = moves.withColumn("until_us", F.coalesce("moved_us", "last_us")).where("from_us < until_us")
    moved = F.col("moved_us").isNotNull().alias("moved")
    return ended.select(*PARTITION, "offset", "from_us", "until_us", "behind", moved)
