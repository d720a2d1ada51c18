"""The whole latency distribution of each operation and measure, for the percentile plot.

Neighbouring buckets are merged, so that at most some hundred points are left.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements.latency_buckets import after_warm_up
from reports.read_tables import Tables

STEPS_PER_OCTAVE = 16


def transform(tables: Tables) -> DataFrame:
    """Columns: run, operation, measure, high_us (largest value of the step), count. Steps are 1/16 octave (4.4 %)."""
    return merged(after_warm_up(tables))


def merged(buckets: DataFrame) -> DataFrame:
    """Columns as above, of these buckets alone."""
    step = F.floor(F.log2(F.greatest(F.col("high_us") - 1, F.lit(1))) * STEPS_PER_OCTAVE)
    steps = buckets.groupBy("run", "operation", "measure", step.alias("step"))
    return steps.agg(F.max(F.col("high_us") - 1).alias("high_us"), F.sum("count").alias("count"))
