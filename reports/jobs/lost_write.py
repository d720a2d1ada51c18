"""lost-write: nobody read an acknowledged record, although reads went beyond it.

Records below a log start that some client was told are not missed, since retention or DeleteRecords may have removed
them.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import LOG, Judging
from reports.jobs.unread import unread
from reports.read_tables import Tables

NAME = "lost-write"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    lost = tables.once("unread", unread).where(F.col("first_offset") <= F.col("reach"))
    lost = lost.withColumn("until", F.least("last_offset", "reach"))
    detail = sentence(
        "Acknowledged at offset %s (value %s of %s), never read, though reads went on to offset %s; %s records lost.",
        "first_offset",
        "first_sequence",
        "writer",
        "reach",
        F.col("until") - F.col("first_offset") + 1,
    )
    return anomalies(lost, NAME, detail, offset=F.col("first_offset"))


JUDGED = Judging(
    NAME,
    needs=LOG,
    evidence="records_acked",
    unit="records acknowledged",
    find=transform,
)
