"""nonmonotonic-send: a producer's next acknowledged send to a partition lies at or before its last one.

A new leader may write again at offsets that only the old one had acknowledged (acks=1). Such sends are left out.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.evidence import without_leaders_word
from reports.jobs.shared.expressions import READER
from reports.jobs.shared.judging import LOG, Judging
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    placed = without_leaders_word(tables.sends.where("type in ('ok', 'info') and first_offset >= 0"), tables)
    in_order = Window.partitionBy(*READER).orderBy("index", "position")
    back = placed.withColumn("previous", F.lag("last_offset").over(in_order)).where("first_offset <= previous")
    detail = sentence("A send was acknowledged at offset %s after one at offset %s.", "first_offset", "previous")
    return anomalies(back, detail, offset="first_offset")


JUDGED = Judging(
    "nonmonotonic-send",
    needs=LOG,
    evidence="acked_sends",
    unit="acknowledged sends",
    find=transform,
)
