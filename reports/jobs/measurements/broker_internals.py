"""The broker's metrics over time: the last sample of each metric at each node in each second."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import second_of
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    """Columns: run, node, metric, second, value."""
    grouped = tables.broker.groupBy("run", "node", "metric", second_of("at_us").alias("second"))
    return grouped.agg(F.max_by("value", "at_us").alias("value"))
