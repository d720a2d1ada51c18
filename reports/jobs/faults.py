"""The faults of a run: each fault with its hits, and the seconds before, during and after it."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import second_of, without_presets
from reports.read_tables import Tables

MAX_HITS = 60
"""A chart cannot show more of them apart."""


def fault_log(tables: Tables) -> DataFrame:
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


def spread_hits(tables: Tables) -> DataFrame:
    """Up to MAX_HITS hits of each name, spread evenly over all of them. The first one is always there.

    Columns: run, name, kind, hit, at_us, until_us.
    """
    of_name = Window.partitionBy("run", "name")
    numbered = tables.faults.withColumn("n", F.row_number().over(of_name.orderBy("at_us", "hit")))
    counted = numbered.withColumn("total", F.count("*").over(of_name))
    chosen = counted.where(f"(n - 1) * {MAX_HITS} % total < {MAX_HITS}")
    return chosen.select("run", "name", "kind", "hit", "at_us", F.greatest("at_us", "until_us").alias("until_us"))


BEFORE, DURING, AFTER = "before", "during", "after"


def fault_windows(tables: Tables) -> DataFrame:
    """The seconds before, during and after each fault (all hits of one name together).

    "before" is the ``window_s`` seconds before the first hit. "during" is the seconds in which a hit lasted, and
    ``settle_s`` more. "after" is the ``window_s`` seconds from there. Presets are no faults: they are the state in
    which the run began.

    Columns: run, fault, window, second; distinct.
    """
    config = tables.config
    hits = without_presets(tables.faults).select(
        "run",
        F.col("name").alias("fault"),
        second_of("at_us").alias("from"),
        (second_of("until_us") + config.settle_s).alias("until"),
    )
    during = _window_seconds(hits, DURING, F.col("from"), F.col("until")).distinct()
    bounds = hits.groupBy("run", "fault").agg(F.min("from").alias("from"), F.max("until").alias("until"))
    before = _window_seconds(bounds, BEFORE, F.greatest(F.lit(0), F.col("from") - config.window_s), F.col("from") - 1)
    after = _window_seconds(bounds, AFTER, F.col("until") + 1, F.col("until") + config.window_s)
    return during.unionByName(before).unionByName(after)


def troubled_seconds(tables: Tables) -> DataFrame:
    """The seconds from the beginning of a hit of any fault until ``calm_after_s`` after its end. All others are calm.
    Columns: run, second; distinct."""
    hits = without_presets(tables.faults).select(
        "run", second_of("at_us").alias("from"), second_of("until_us").alias("until")
    )
    last = F.greatest("from", "until") + tables.config.calm_after_s
    return (
        _window_seconds(hits.withColumn("fault", F.lit("")), DURING, F.col("from"), last)
        .select("run", "second")
        .distinct()
    )


def _window_seconds(bounds: DataFrame, name: str, low: Column, high: Column) -> DataFrame:
    seconds = F.explode(F.sequence(low.cast("long"), high))
    return bounds.where(low <= high).select("run", "fault", F.lit(name).alias("window"), seconds.alias("second"))
