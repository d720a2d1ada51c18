"""The seconds before, during and after each fault (all hits of one name together).

"before" is the ``window_s`` seconds before the first hit. "during" is the seconds in which a hit lasted, and
``settle_s`` more. "after" is the ``window_s`` seconds from there. Presets are no faults: they are the state in which
the run began.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import second_of, without_presets
from reports.read_tables import Tables

BEFORE, DURING, AFTER = "before", "during", "after"


def transform(tables: Tables) -> DataFrame:
    """Columns: run, fault, window, second; distinct."""
    config = tables.config
    hits = without_presets(tables.faults).select(
        "run",
        F.col("name").alias("fault"),
        second_of("at_us").alias("from"),
        (second_of("until_us") + config.settle_s).alias("until"),
    )
    during = _seconds(hits, DURING, F.col("from"), F.col("until")).distinct()
    bounds = hits.groupBy("run", "fault").agg(F.min("from").alias("from"), F.max("until").alias("until"))
    before = _seconds(bounds, BEFORE, F.greatest(F.lit(0), F.col("from") - config.window_s), F.col("from") - 1)
    after = _seconds(bounds, AFTER, F.col("until") + 1, F.col("until") + config.window_s)
    return during.unionByName(before).unionByName(after)


def troubled(tables: Tables) -> DataFrame:
    """The seconds from the beginning of a hit of any fault until ``calm_after_s`` after its end. All others are calm.
    Columns: run, second; distinct."""
    hits = without_presets(tables.faults).select(
        "run", second_of("at_us").alias("from"), second_of("until_us").alias("until")
    )
    last = F.greatest("from", "until") + tables.config.calm_after_s
    return _seconds(hits.withColumn("fault", F.lit("")), DURING, F.col("from"), last).select("run", "second").distinct()


def _seconds(bounds: DataFrame, name: str, low: Column, high: Column) -> DataFrame:
    seconds = F.explode(F.sequence(low.cast("long"), high))
    return bounds.where(low <= high).select("run", "fault", F.lit(name).alias("window"), seconds.alias("second"))
