"""How much was lost of what was acknowledged: the figures of the verdict's first sentence."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.unread import lost
from reports.read_tables import Tables

_UNTIL = "if(is_gone or high_watermark is not null, last_offset, least(last_offset, reach))"
"""In a partition that nobody read to its end only what reads overtook is lost for sure."""


def transform(tables: Tables) -> DataFrame:
    """Columns: run, topic, is_gone (all that is lost lies beyond the end of its log), records."""
    counted = tables.once(lost).where("is_gone or first_offset <= reach or high_watermark is not null")
    return counted.groupBy("run", "topic").agg(
        F.min("is_gone").alias("is_gone"),
        F.sum(F.expr(f"{_UNTIL} - first_offset + 1")).alias("records"),
    )
