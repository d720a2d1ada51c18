"""How hard each load worker worked, and for how long it was itself the limit.

A second counts as limited when the worker's loop wanted a processor nearly all the time, had one for at least half of
it, and its own timer came late. Then it was the worker's own fault that it sent late. A worker that waits for the
broker sleeps. A worker that others keep from the processor wants one and hardly has it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    """Columns: run, worker, seconds (of load), limited_seconds, cpu_permille, wanted_permille (means), worst_lag_us."""
    config = tables.config
    measured = tables.load.where("offered > 0 and wanted_permille is not null")
    busy = (F.col("wanted_permille") >= config.busy_permille) & (F.col("cpu_permille") >= config.working_permille)
    return measured.groupBy("run", "worker").agg(
        F.count("*").alias("seconds"),
        F.count_if(busy & (F.col("lag_us") >= config.late_us)).alias("limited_seconds"),
        F.round(F.avg("cpu_permille")).cast("long").alias("cpu_permille"),
        F.round(F.avg("wanted_permille")).cast("long").alias("wanted_permille"),
        F.max("lag_us").alias("worst_lag_us"),
    )
