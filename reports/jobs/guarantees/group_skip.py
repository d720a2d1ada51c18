"""group-skip: no member of a group read a record that lies between two records that members did read.

The owner of a partition goes on at the group's committed offset, so nothing may be left out between owners. Offsets
below a log start that was seen do not count, because they may be deleted. Neither do offsets over which a reset moved a
member's position forward (its reset policy is ``latest``), and records that a cleaner may have taken before a member
read on behind them (X-11).
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.commits import STORED
from reports.jobs.shared.evidence import group_reads, log_starts, members, occupied
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.intervals import merged, subtracted
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.keyed import has_keyed, missable
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    reads = tables.once(group_reads)
    mine = merged(reads, STORED, "first_offset", "last_offset")
    reach = mine.groupBy(*STORED).agg(F.min("first").alias("low"), F.max("last").alias("high"))
    level = reads.groupBy("run", "group").agg(F.max("isolation").alias("isolation"))
    reach = reach.join(F.broadcast(level), ["run", "group"])
    there = tables.once(occupied).join(reach, [*PARTITION, "isolation"])
    between = there.select(*STORED, F.greatest("first", "low").alias("first"), F.least("last", "high").alias("last"))
    covered = mine.unionByName(_jumped_over(tables))
    if has_keyed(tables):
        offset = F.col("offset")
        covered = covered.unionByName(
            _taken(tables, reads).select(*STORED, offset.alias("first"), offset.alias("last"))
        )
    covered = merged(covered, STORED, "first", "last")
    holes = subtracted(between.where("first <= last"), covered, STORED)
    # greatest() passes over a log start that nobody was told.
    kept = holes.join(log_starts(tables), PARTITION, "left").withColumn("first", F.greatest("first", "start_offset"))
    seen = reads.select(*STORED, "process", "index", "complete_us", F.col("first_offset").alias("next_offset"))
    after = F.broadcast(kept.where("first <= last")).join(seen, STORED).where("next_offset > last")
    witness = F.min(F.struct("complete_us", "process", "index", "next_offset")).alias("witness")
    found = after.groupBy(*STORED, "first", "last").agg(witness).select(*STORED, "first", "last", "witness.*")
    detail = sentence(
        "Group %s left out offsets %s to %s and read on from %s.", "group", "first", "last", "next_offset"
    )
    return anomalies(found, detail, offset="first")


def _taken(tables: Tables, reads: DataFrame) -> DataFrame:
    """The offsets whose records a cleaner may have taken before the group's first read that began behind them ended.
    Columns: STORED, offset."""
    begun = reads.select(*STORED, F.col("first_offset").alias("offset"), "complete_us", F.lit(None).alias("since_us"))
    records = tables.once(missable).join(F.broadcast(members(tables).select("run", "group").distinct()), "run")
    records = records.select(*STORED, "offset", F.lit(None).alias("complete_us"), "since_us")
    behind = Window.partitionBy(*STORED).orderBy(F.desc("offset")).rangeBetween(Window.unboundedPreceding, -1)
    found = begun.unionByName(records).withColumn("first_us", F.min("complete_us").over(behind))
    return found.where("since_us is not null and (first_us is null or since_us <= first_us)")


def _jumped_over(tables: Tables) -> DataFrame:
    """The offsets that Kafka's auto.offset.reset leaves out. Columns: STORED, first, last."""
    moved = tables.resets.join(F.broadcast(members(tables)), ["run", "process"])
    first, last = F.greatest("from_offset", F.lit(0)), F.col("to_offset") - 1
    return moved.select(*STORED, first.alias("first"), last.alias("last")).where("first <= last")


JUDGED = Judging(
    "group-skip",
    needs=("operations", "runs", "memberships"),
    evidence="partitions_given",
    unit="partitions given to members",
    find=transform,
)
