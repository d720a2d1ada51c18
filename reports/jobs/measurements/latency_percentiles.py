"""Latency percentiles of each operation and measure: over the whole run, and around each fault.

Over the whole run (fault "") they are computed three times: for all seconds (window ""), for those of the load that lie
outside faults, and for those of the load that do not. The last polls and the final read belong to neither. Around a
fault they are computed apart for before, during and after.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements import fault_windows, offered_load
from reports.jobs.measurements.latency_buckets import after_warm_up
from reports.jobs.shared.quantiles import quantiles
from reports.read_tables import Tables

KEYS = ("run", "operation", "measure", "fault", "window")
CALM, STRUCK = "calm", "struck"


def transform(tables: Tables) -> DataFrame:
    """Columns: run, operation, measure, fault, window ("", CALM, STRUCK, or one of fault_windows), count, min_us,
    p50_us ... p9999_us, max_us."""
    buckets = after_warm_up(tables)
    whole = _loaded_seconds(tables).unionByName(fault_windows.transform(tables))
    around = buckets.join(F.broadcast(whole), ["run", "second"])
    everything = buckets.withColumn("fault", F.lit("")).withColumn("window", F.lit(""))
    return quantiles(everything.unionByName(around), KEYS)


def _loaded_seconds(tables: Tables) -> DataFrame:
    """The seconds in which the schedule offered load. Columns: run, second, fault (""), window (CALM or STRUCK)."""
    window = F.when(F.col("calm"), CALM).otherwise(STRUCK)
    loaded = tables.once(offered_load.transform).where("in_load")
    return loaded.select("run", F.lit("").alias("fault"), window.alias("window"), "second")
