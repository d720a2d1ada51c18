"""The seconds before, during and after each fault (all hits of one name together).

"before" is the ``window_s`` seconds before the first hit. "during" is the seconds in which a hit lasted, and
``settle_s`` more. "after" is the ``window_s`` seconds from there. Presets are no faults: they are the state in which
the run began.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables

BEFORE, DURING, AFTER = "before", "during", "after"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:
    """Columns: run, fault, window, second; distinct."""
    hits = tables.faults.where(~F.startswith("kind", F.lit("preset"))).select(
        "run",
        F.col("name").alias("fault"),
        _second("at_us").alias("from"),
        (_second(F.greatest("at_us", "until_us")) + cfg.settle_s).alias("until"),
    )
    during = hits.select("run", "fault", F.explode(F.sequence("from", "until")).alias("second")).distinct()
    bounds = hits.groupBy("run", "fault").agg(F.min("from").alias("from"), F.max("until").alias("until"))
    before = _span(bounds, F.greatest(F.lit(0), F.col("from") - cfg.window_s), F.col("from") - 1, BEFORE)
    after = _span(bounds, F.col("until") + 1, F.col("until") + cfg.window_s, AFTER)
    return during.select("run", "fault", F.lit(DURING).alias("window"), "second").unionByName(before).unionByName(after)


def _second(time: str | Column) -> Column:
    column = F.col(time) if isinstance(time, str) else time
    return F.floor(column / 1_000_000).cast("long")


def _span(bounds: DataFrame, low: Column, high: Column, name: str) -> DataFrame:
    seconds = F.explode(F.sequence(low.cast("long"), high.cast("long")))
    return bounds.where(low <= high).select("run", "fault", F.lit(name).alias("window"), seconds.alias("second"))
