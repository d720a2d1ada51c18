"""Quantiles of bucket counts, exact to the bucket.

A quantile is the upper bound of the bucket that holds value number ceil(p * n).
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import so_far

PER_100K: Mapping[str, int] = {
    "p50_us": 50_000,
    "p75_us": 75_000,
    "p90_us": 90_000,
    "p95_us": 95_000,
    "p99_us": 99_000,
    "p999_us": 99_900,
    "p9999_us": 99_990,
}


def quantiles(buckets: DataFrame, keys: Sequence[str], names: Sequence[str] = tuple(PER_100K)) -> DataFrame:
    """Columns: keys, count, min_us, the named quantiles, max_us (the largest value of its bucket, so it is never too
    small)."""
    summed = buckets.groupBy(*keys, "low_us", "high_us").agg(F.sum("count").alias("count"))
    whole = Window.partitionBy(*keys)
    rank = F.sum("count").over(so_far(whole.orderBy("low_us")))
    ranked = summed.withColumn("rank", rank).withColumn("n", F.sum("count").over(whole))
    largest = F.col("high_us") - 1
    chosen = [
        F.min(F.when(F.col("rank") * 100_000 >= F.col("n") * PER_100K[name], largest)).alias(name) for name in names
    ]
    return ranked.groupBy(*keys).agg(
        F.sum("count").alias("count"), F.min("low_us").alias("min_us"), *chosen, F.max(largest).alias("max_us")
    )
