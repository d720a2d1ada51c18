"""Latency as bucket counts. They come from the recorded histograms, or else as exact values from operations.

Columns: run, operation, measure, second, low_us, high_us (exclusive), count. Whatever is computed from these counts is
exact to the bucket.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables

_KEYS = ("run", "operation", "measure", "second", "low_us", "high_us")


def transform(tables: Tables) -> DataFrame:
    """The workers are merged. Operations count however they ended: a fetch that timed out after 30 s was a 30 s
    fetch."""
    recorded = tables.latency.select(*_KEYS, "count")
    derived = _from_operations(tables, [run for run, name in tables.present if name == "latency"])
    return recorded.unionByName(derived).groupBy(*_KEYS).agg(F.sum("count").alias("count"))


def _from_operations(tables: Tables, recorded_runs: list[int]) -> DataFrame:
    bare = tables.operations.where(~F.col("run").isin(sorted(recorded_runs)) & (F.col("complete_us") >= 0))
    measures = F.array(
        F.struct(F.lit("service").alias("measure"), (F.col("complete_us") - F.col("invoke_us")).alias("low_us")),
        F.struct(F.lit("response").alias("measure"), (F.col("complete_us") - F.col("intended_us")).alias("low_us")),
    )
    values = bare.select("run", F.col("f").alias("operation"), "complete_us", F.explode(measures).alias("m"))
    return values.select(
        "run",
        "operation",
        "m.measure",
        F.floor(F.col("complete_us") / 1_000_000).cast("long").alias("second"),
        "m.low_us",
        (F.col("m.low_us") + 1).alias("high_us"),
        F.lit(1).cast("long").alias("count"),
    )
