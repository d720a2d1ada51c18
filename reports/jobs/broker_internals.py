"""Broker metrics on the run's time axis: per node, metric and second, the last sample's value."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, node, metric, second, value."""
    second = F.floor(F.col("at_us") / 1_000_000).cast("long")
    grouped = tables.broker.groupBy("run", "node", "metric", second.alias("second"))
    return grouped.agg(F.max_by("value", "at_us").alias("value"))
