"""corrupt-value: a record was read whose value no writer of ours made. Its checksum is wrong or missing."""

from pyspark.sql import DataFrame

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.judging import LOG, Judging
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    bad = tables.reads.where("not valid or writer = ''")
    records = counted("count", "one record is", "%s records are")
    detail = sentence("From offset %s on %s not what any writer of this run sent.", "first_offset", records)
    return anomalies(bad, detail, offset="first_offset")


JUDGED = Judging(
    "corrupt-value",
    needs=LOG,
    evidence="records_read",
    unit="records read",
    find=transform,
)
