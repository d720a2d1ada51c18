"""Latency second by second: p50, p99 and max per operation and measure."""

from pyspark.sql import DataFrame

from reports.jobs.measurements import latency_buckets
from reports.jobs.shared.quantiles import quantiles
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    """Columns: run, operation, measure, second, count, min_us, p50_us, p99_us, max_us. Warm-up included."""
    buckets = tables.once(latency_buckets.transform)
    return quantiles(buckets, ("run", "operation", "measure", "second"), ("p50_us", "p99_us"))
