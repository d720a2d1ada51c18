"""corrupt-value: a record was read whose value no writer of ours made. Its checksum is wrong or missing."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import LOG, Judging
from reports.read_tables import Tables

NAME = "corrupt-value"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    bad = tables.reads.where(~F.col("valid") | (F.col("writer") == ""))
    detail = sentence("%s records from offset %s are not what any writer of this run sent.", "count", "first_offset")
    return anomalies(bad, NAME, detail, offset=F.col("first_offset"))


JUDGED = Judging(
    NAME,
    needs=LOG,
    evidence="records_read",
    unit="records read",
    find=transform,
)
