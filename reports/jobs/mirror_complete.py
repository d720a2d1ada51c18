"""mirror-complete: the target of a mirror holds at the end whatever the source holds.

Only partitions that were read to their end in both clusters are judged. Partitions in which the mirror's position was
moved forward do not count (its reset policy is ``latest``, or records were deleted before it came to them). The target
may hold a record twice, since the promise is at least once; that is only counted.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION, anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.intervals import merged, subtracted
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "mirror-complete"
WRITER_SUFFIX = "-writer"
"""A mirror's name followed by this is its other half, which writes."""
_VALUE = (*PARTITION, "writer")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    source = tables.reads.where((F.col("f") == "final_read") & (F.col("type") == "ok") & (F.col("writer") != ""))
    source = source.join(F.broadcast(_judged(tables)), list(PARTITION), "left_semi")
    there = tables.target_runs.where(F.col("count") > 0).withColumn(
        "last_sequence", F.col("first_sequence") + F.col("count") - 1
    )
    wanted, found = (merged(each, _VALUE, "first_sequence", "last_sequence") for each in (source, there))
    missing = subtracted(wanted, found, _VALUE)
    runs = source.select(
        *_VALUE,
        "process",
        "index",
        "complete_us",
        "shift",
        F.col("first_sequence").alias("low"),
        F.col("last_sequence").alias("high"),
    )
    lost = (
        F.broadcast(missing)
        .join(runs, list(_VALUE))
        .where((F.col("low") <= F.col("last")) & (F.col("high") >= F.col("first")))
    )
    first, last = F.greatest("first", "low"), F.least("last", "high")
    lost = lost.withColumn("from", first - F.col("shift")).withColumn("to", last - F.col("shift"))
    detail = sentence(
        "The source holds offsets %s to %s, written by %s; the cluster that they were copied to does not.",
        "from",
        "to",
        "writer",
    )
    return anomalies(lost, NAME, detail, offset=F.col("from"))


def _judged(tables: Tables) -> DataFrame:
    """Partitions read to their end in both clusters, in which the mirror was never moved forward."""
    mirrors = tables.copies.select("run", F.regexp_replace("process", f"{WRITER_SUFFIX}$", "").alias("process"))
    resets = tables.resets.where(F.col("to_offset") > F.greatest(F.col("from_offset"), F.lit(0)))
    moved = resets.join(F.broadcast(mirrors.distinct()), ["run", "process"], "left_semi")
    ends = tables.ends.select(*PARTITION)
    read = tables.target_runs.where(F.col("count") == 0).join(F.broadcast(ends), list(PARTITION), "left_semi")
    return read.select(*PARTITION).distinct().join(F.broadcast(moved.select(*PARTITION)), list(PARTITION), "left_anti")


JUDGED = Judging(
    NAME,
    needs=("operations", "runs", "ends", "target_runs"),
    evidence="records_at_target",
    unit="records read at the target",
    find=transform,
)
