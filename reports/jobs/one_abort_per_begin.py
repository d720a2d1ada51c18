"""one-abort-per-begin: in the committed metadata log each Begin is closed once, by End or Abort, before the next.

Every node notes each batch that it loads from the committed log. Together they tell the whole log, however often a node
was killed. The nodes that wrote a snapshot had noted what it replaced. Two nodes that noted different kinds at one
offset disagree about the log itself.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.jobs.notes import METADATA_COMMITTED, notes, number, text
from reports.read_tables import Tables

NAME = "one-abort-per-begin"
_MARKERS = ("begin", "end", "abort")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    committed = notes(tables, METADATA_COMMITTED).select("run", "at_us", number("offset"), text("kind"))
    seen = committed.groupBy("run", "offset", "kind").agg(F.min("at_us").alias("at_us"))
    in_order = Window.partitionBy("run").orderBy("offset", "at_us")
    steps = seen.where(F.col("kind").isin(*_MARKERS)).select(
        "run",
        "offset",
        "kind",
        "at_us",
        F.lag("kind").over(in_order).alias("before"),
        F.lag("offset").over(in_order).alias("before_offset"),
    )
    open_before = F.coalesce(F.col("before") == "begin", F.lit(False))
    begins = F.col("kind") == "begin"
    told_twice = F.coalesce(F.col("before_offset") == F.col("offset"), F.lit(False))
    wrong = steps.where(told_twice | (begins == open_before))
    last = F.coalesce(F.concat(F.col("before"), F.lit(" at "), F.col("before_offset").cast("string")), F.lit("none"))
    detail = sentence("A committed %s at offset %s follows this marker: %s.", "kind", "offset", last)
    return anomalies(
        wrong,
        NAME,
        detail,
        at_us="at_us",
        topic=F.lit("__cluster_metadata"),
        partition=0,
        process=F.lit(""),
        index=-1,
    )


JUDGED = Judging(
    NAME,
    needs=("trace",),
    evidence="metadata_markers",
    unit="committed markers noted",
    find=transform,
)
