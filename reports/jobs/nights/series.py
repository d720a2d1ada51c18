"""The series of each figure of the benchmark, as ratio to the peer in the same run.

A ratio is told night by night, because both brokers took turns on the same machine. The figures themselves also change
with the machine.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.read_nights import NightTables

KEYS = ("row", "what", "nodes", "peer_name")


def transform(tables: NightTables) -> DataFrame:
    """Columns: KEYS, unit, better, night, ratio, ratio_low, ratio_high, reference, peer, pairs.

    If a night measured a figure more than once, its middle ratio counts.
    """
    columns = ("ratio", "ratio_low", "ratio_high", "reference", "peer")
    return (
        tables.figures.where("ratio is not null and ratio > 0")
        .groupBy(*KEYS, "unit", "better", "night")
        .agg(*(F.median(each).alias(each) for each in columns), F.sum("pairs").alias("pairs"))
    )
