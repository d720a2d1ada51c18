"""nonmonotonic-send: a producer's next acknowledged send to a partition lies at or before its last one.

A new leader may write again at offsets that only the old one had acknowledged (acks=1). Such sends are left out.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.evidence import without_leaders_word
from reports.jobs.judging import LOG, Judging
from reports.read_tables import Tables

NAME = "nonmonotonic-send"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    placed = tables.sends.where(F.col("type").isin("ok", "info") & (F.col("first_offset") >= 0))
    placed = without_leaders_word(placed, tables)
    in_order = Window.partitionBy("run", "process", "topic", "partition").orderBy("index", "position")
    steps = placed.withColumn("previous", F.lag("last_offset").over(in_order))
    back = steps.where(F.col("first_offset") <= F.col("previous"))
    detail = sentence("Acknowledged at offset %s after one at offset %s.", "first_offset", "previous")
    return anomalies(back, NAME, detail, offset=F.col("first_offset"))


JUDGED = Judging(
    NAME,
    needs=LOG,
    evidence="acked_sends",
    unit="acknowledged sends",
    find=transform,
)
