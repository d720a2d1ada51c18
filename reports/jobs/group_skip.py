"""group-skip: no member of a group read a record that lies between two records that members did read.

The owner of a partition goes on at the group's committed offset, so nothing may be left out between owners. Offsets
below a log start that was seen do not count. Neither do partitions in which a member's position was moved forward (its
reset policy is ``latest``).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION, anomalies, sentence
from reports.jobs.commits import STORED
from reports.jobs.config import JobConfig
from reports.jobs.evidence import log_starts, occupied, ok_reads
from reports.jobs.intervals import merged, subtracted
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "group-skip"


def group_reads(tables: Tables) -> DataFrame:
    """Runs of records that members read while they were members, with their group."""
    members = tables.memberships.select("run", "group", "process").distinct()
    return ok_reads(tables).join(F.broadcast(members), ["run", "process"])


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    reads = tables.once("group_reads", group_reads)
    mine = merged(reads, STORED, "first_offset", "last_offset")
    reach = mine.groupBy(*STORED).agg(F.min("first").alias("low"), F.max("last").alias("high"))
    there = tables.once("occupied", occupied).join(reach, list(PARTITION))
    clipped = there.select(
        *STORED, F.greatest("first", "low").alias("first"), F.least("last", "high").alias("last")
    ).where(F.col("first") <= F.col("last"))
    starts = log_starts(tables)
    holes = _without_moves(subtracted(clipped, mine, STORED), tables).join(starts, list(PARTITION), "left")
    low = F.greatest("first", F.coalesce("start_offset", F.lit(0)))
    holes = holes.withColumn("first", low).where(F.col("first") <= F.col("last"))
    seen = reads.select(*STORED, "process", "index", "complete_us", F.col("first_offset").alias("next_offset"))
    after = F.broadcast(holes).join(seen, list(STORED)).where(F.col("next_offset") > F.col("last"))
    witness = F.min(F.struct("complete_us", "process", "index", "next_offset")).alias("witness")
    found = after.groupBy(*STORED, "first", "last").agg(witness).select(*STORED, "first", "last", "witness.*")
    detail = sentence(
        "Group %s left out offsets %s to %s and read on from %s.", "group", "first", "last", "next_offset"
    )
    return anomalies(found, NAME, detail, offset=F.col("first"))


def _without_moves(holes: DataFrame, tables: Tables) -> DataFrame:
    members = tables.memberships.select("run", "group", "process").distinct()
    moved = tables.resets.join(F.broadcast(members), ["run", "process"])
    starts = log_starts(tables)
    forward = moved.join(starts, list(PARTITION), "left").where(
        F.col("to_offset") > F.greatest("from_offset", F.coalesce("start_offset", F.lit(0)))
    )
    return holes.join(forward.select(*STORED).distinct(), list(STORED), "left_anti")


JUDGED = Judging(
    NAME,
    needs=("operations", "runs", "memberships"),
    evidence="partitions_given",
    unit="partitions given to members",
    find=transform,
)
