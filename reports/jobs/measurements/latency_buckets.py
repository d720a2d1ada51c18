"""Latency as counts of buckets. Runs without recorded histograms have exact values from their operations instead.

Columns: run, operation, measure, second, low_us, high_us (exclusive), count. Whatever is computed from these counts is
exact to the bucket.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import second_of
from reports.read_tables import Tables

_KEYS = ("run", "operation", "measure", "second", "low_us", "high_us")


def transform(tables: Tables) -> DataFrame:
    """All workers together. Operations count however they ended: a fetch that timed out after 30 s took 30 s."""
    recorded = tables.latency.select(*_KEYS, "count")
    return recorded.unionByName(_from_operations(tables)).groupBy(*_KEYS).agg(F.sum("count").alias("count"))


def after_warm_up(tables: Tables) -> DataFrame:
    return tables.once(transform).where(F.col("second") * 1_000_000 >= tables.config.per_run("warm_up_us"))


def _from_operations(tables: Tables) -> DataFrame:
    bare = tables.operations.where(~F.col("run").isin(tables.runs_with("latency"))).where("complete_us >= 0")
    measures = F.expr(
        "inline(array(struct('service' as measure, complete_us - invoke_us as low_us), "
        "struct('response' as measure, complete_us - intended_us as low_us)))"
    )
    values = bare.select("run", F.col("f").alias("operation"), second_of("complete_us").alias("second"), measures)
    return values.withColumn("high_us", F.col("low_us") + 1).withColumn("count", F.lit(1).cast("long"))
