"""Latency percentiles of each operation and measure: over the whole run (fault ""), and around each fault.

Around a fault they are computed apart for before, during and after.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs import fault_windows, latency_buckets
from reports.jobs.config import JobConfig
from reports.jobs.quantiles import quantiles
from reports.read_tables import Tables

KEYS = ("run", "operation", "measure", "fault", "window")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:
    """Columns: run, operation, measure, fault, window ("" = whole run), count, min_us, p50_us ... p9999_us, max_us."""
    buckets = after_warm_up(latency_buckets.transform(tables), cfg)
    whole = buckets.withColumn("fault", F.lit("")).withColumn("window", F.lit(""))
    windows = buckets.join(F.broadcast(fault_windows.transform(tables, cfg)), ["run", "second"])
    columns = [*KEYS, "low_us", "high_us", "count"]
    return quantiles(whole.select(*columns).unionByName(windows.select(*columns)), KEYS)


def after_warm_up(buckets: DataFrame, cfg: JobConfig) -> DataFrame:
    return buckets.where(F.col("second") * 1_000_000 >= cfg.per_run("warm_up_us"))
