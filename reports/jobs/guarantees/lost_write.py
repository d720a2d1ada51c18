"""lost-write: nobody read an acknowledged record, although reads went beyond it, or it is not in its log at the end.

A log whose end is below what was acknowledged has lost it, and so has a partition that does not exist any more, even if
somebody had read the records before. So has a log that begins above it, unless retention may have deleted the record.

While the run goes on, a later read may still show the record. If a fetcher's read jumped over it, though, somebody is
wrong in any case: if nobody reads it, it is lost, and if somebody does, that fetcher has skipped it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.judging import LOG, Judging
from reports.jobs.shared.polls import steps_between_operations, steps_inside_operations, with_log_start
from reports.jobs.shared.unread import lost, unread
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    found = tables.once(lost)
    return _told(found.where("not is_gone and first_offset <= reach")).unionByName(_gone(found.where("is_gone")))


def _gone(found: DataFrame) -> DataFrame:
    began = sentence("the log began at offset %s in the end, which retention does not explain", "begins_at")
    why = (
        F.when(F.col("error").isNotNull(), sentence("the partition does not exist any more (%s)", "error"))
        .when(F.col("begins_at").isNotNull(), began)
        .otherwise(sentence("the log ended at offset %s in the end", "high_watermark"))
    )
    detail = sentence(
        "Offset %s (value %s of %s) was acknowledged, and %s. %s",
        "first_offset",
        "first_sequence",
        "writer",
        why,
        counted(F.col("last_offset") - F.col("first_offset") + 1, "One record is lost.", "%s records are lost."),
    )
    return anomalies(found, detail, offset="first_offset")


def jumped_over(tables: Tables) -> DataFrame:
    """Those that a fetcher's read has left out already. Readers with read_committed may leave out aborted records."""
    steps = tables.once(steps_between_operations).unionByName(tables.once(steps_inside_operations))
    jumps = with_log_start(tables, steps.where("first_offset > expected and isolation = 0"))
    low = F.greatest("expected", "log_start_offset").alias("low")
    jumps = jumps.select(*PARTITION, low, F.col("first_offset").alias("high"))
    missing = tables.once(unread)
    same = [F.col(f"lost.{key}") == F.col(f"jump.{key}") for key in PARTITION]
    over = F.expr("jump.low <= lost.last_offset and jump.high > lost.first_offset")
    return _told(missing.alias("lost").join(jumps.alias("jump"), [*same, over], "left_semi"))


def _told(found: DataFrame) -> DataFrame:
    detail = sentence(
        "Offset %s (value %s of %s) was acknowledged and never read, though reads went on to offset %s. %s",
        "first_offset",
        "first_sequence",
        "writer",
        "reach",
        counted(
            F.least("last_offset", "reach") - F.col("first_offset") + 1, "One record is lost.", "%s records are lost."
        ),
    )
    return anomalies(found, detail, offset="first_offset")


JUDGED = Judging(
    "lost-write",
    needs=LOG,
    evidence="records_acked",
    unit="records acknowledged",
    find=transform,
    early=jumped_over,
)
