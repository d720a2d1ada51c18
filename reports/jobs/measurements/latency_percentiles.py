"""Latency percentiles of each operation and measure: over the whole run (fault ""), and around each fault.

Around a fault they are computed apart for before, during and after.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements import fault_windows
from reports.jobs.measurements.latency_buckets import after_warm_up
from reports.jobs.shared.quantiles import quantiles
from reports.read_tables import Tables

KEYS = ("run", "operation", "measure", "fault", "window")


def transform(tables: Tables) -> DataFrame:
    """Columns: run, operation, measure, fault, window ("" = whole run), count, min_us, p50_us ... p9999_us, max_us."""
    buckets = after_warm_up(tables)
    whole = buckets.withColumn("fault", F.lit("")).withColumn("window", F.lit(""))
    around = buckets.join(F.broadcast(fault_windows.transform(tables)), ["run", "second"])
    return quantiles(whole.unionByName(around), KEYS)
