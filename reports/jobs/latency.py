"""Latency: buckets, quantiles, percentiles around faults, distributions, and the heatmap.

All of it is computed from counts of buckets and exact to the bucket. A quantile is the upper bound of the bucket that
holds value number ceil(p * n).
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import second_of, so_far
from reports.jobs.faults import fault_windows
from reports.jobs.load import offered_load
from reports.read_tables import Tables

_BUCKET = ("run", "operation", "measure", "second", "low_us", "high_us")


def latency_buckets(tables: Tables) -> DataFrame:
    """Latency as counts of buckets. Runs without recorded histograms have exact values from their operations instead.

    Columns: run, operation, measure, second, low_us, high_us (exclusive), count. Whatever is computed from these counts
    is exact to the bucket.

    All workers together. Operations count however they ended: a fetch that timed out after 30 s took 30 s.
    """
    recorded = tables.latency.select(*_BUCKET, "count")
    return recorded.unionByName(_buckets_of_operations(tables)).groupBy(*_BUCKET).agg(F.sum("count").alias("count"))


def buckets_after_warm_up(tables: Tables) -> DataFrame:
    return tables.once(latency_buckets).where(F.col("second") * 1_000_000 >= tables.config.per_run("warm_up_us"))


def _buckets_of_operations(tables: Tables) -> DataFrame:
    bare = tables.operations.where(~F.col("run").isin(tables.runs_with("latency"))).where("complete_us >= 0")
    measures = F.expr(
        "inline(array(struct('service' as measure, complete_us - invoke_us as low_us), "
        "struct('response' as measure, complete_us - intended_us as low_us)))"
    )
    values = bare.select("run", F.col("f").alias("operation"), second_of("complete_us").alias("second"), measures)
    return values.withColumn("high_us", F.col("low_us") + 1).withColumn("count", F.lit(1).cast("long"))


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


_PERCENTILE = ("run", "operation", "measure", "fault", "window")
CALM, FAULTY = "calm", "faulty"


def latency_percentiles(tables: Tables) -> DataFrame:
    """Latency percentiles of each operation and measure: over the whole run, and around each fault.

    Over the whole run (fault "") they are computed three times: for all seconds (window ""), for those of the load that
    lie outside faults, and for those of the load that do not. The last polls and the final read belong to neither.
    Around a fault they are computed apart for before, during and after.

    Columns: run, operation, measure, fault, window ("", CALM, FAULTY, or one of fault_windows), count, min_us, p50_us
    ... p9999_us, max_us.
    """
    buckets = buckets_after_warm_up(tables)
    whole = _loaded_seconds(tables).unionByName(fault_windows(tables))
    around = buckets.join(F.broadcast(whole), ["run", "second"])
    everything = buckets.withColumn("fault", F.lit("")).withColumn("window", F.lit(""))
    return quantiles(everything.unionByName(around), _PERCENTILE)


def _loaded_seconds(tables: Tables) -> DataFrame:
    """The seconds in which the schedule offered load. Columns: run, second, fault (""), window (CALM or FAULTY)."""
    window = F.when(F.col("calm"), CALM).otherwise(FAULTY)
    loaded = tables.once(offered_load).where("in_load")
    return loaded.select("run", F.lit("").alias("fault"), window.alias("window"), "second")


def latency_over_time(tables: Tables) -> DataFrame:
    """Latency second by second: p50, p99 and max per operation and measure.

    Columns: run, operation, measure, second, count, min_us, p50_us, p99_us, max_us. Warm-up included.
    """
    buckets = tables.once(latency_buckets)
    return quantiles(buckets, ("run", "operation", "measure", "second"), ("p50_us", "p99_us"))


DISTRIBUTION_STEPS_PER_OCTAVE = 16


def latency_distribution(tables: Tables) -> DataFrame:
    """The whole latency distribution of each operation and measure, for the percentile plot.

    Neighbouring buckets are merged, so that at most some hundred points are left.

    Columns: run, operation, measure, high_us (largest value of the step), count. Steps are 1/16 octave (4.4 %).
    """
    return merged_buckets(buckets_after_warm_up(tables))


def merged_buckets(buckets: DataFrame) -> DataFrame:
    """Columns as above, of these buckets alone."""
    step = F.floor(F.log2(F.greatest(F.col("high_us") - 1, F.lit(1))) * DISTRIBUTION_STEPS_PER_OCTAVE)
    steps = buckets.groupBy("run", "operation", "measure", step.alias("step"))
    return steps.agg(F.max(F.col("high_us") - 1).alias("high_us"), F.sum("count").alias("count"))


HEATMAP_STEPS_PER_OCTAVE = 4


def latency_heatmap(tables: Tables) -> DataFrame:
    """Counts per second and latency step (1/4 octave), which show the modes that quantile lines hide.

    Columns: run, operation, second, step, count; service time. A step's lower bound is 2^(step/4) us.
    """
    buckets = tables.once(latency_buckets).where("measure = 'service'")
    step = F.floor(F.log2(F.greatest("low_us", F.lit(1))) * HEATMAP_STEPS_PER_OCTAVE).cast("long")
    return buckets.groupBy("run", "operation", "second", step.alias("step")).agg(F.sum("count").alias("count"))
