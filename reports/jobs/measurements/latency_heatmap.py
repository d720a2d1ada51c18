"""Counts per second and latency step (1/4 octave), which show the modes that quantile lines hide."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements import latency_buckets
from reports.read_tables import Tables

STEPS_PER_OCTAVE = 4


def transform(tables: Tables) -> DataFrame:
    """Columns: run, operation, second, step, count; service time. A step's lower bound is 2^(step/4) us."""
    buckets = tables.once(latency_buckets.transform).where("measure = 'service'")
    step = F.floor(F.log2(F.greatest("low_us", F.lit(1))) * STEPS_PER_OCTAVE).cast("long")
    return buckets.groupBy("run", "operation", "second", step.alias("step")).agg(F.sum("count").alias("count"))
