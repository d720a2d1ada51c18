"""exactly-once (X-14): each input of a group that consumes, transforms and produces is once in its output.

The output is what readers with read_committed saw of the target. The workers noted which of their values stands for
which offset of the source (TRANSFORMS).

- Twice: two values in the output stand for one input.
- Never: an input lies below the offset that a committed transaction of the group has sent, and no value of the output
  stands for it. Inputs whose values went to partitions that were not read to their end do not count.

Inputs are what readers with read_committed saw of the source. Those below the first offset that the group took do not
count.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.commits import STORED
from reports.jobs.shared.evidence import occupied, read_values, sequences
from reports.jobs.shared.expressions import OPERATION, PARTITION
from reports.jobs.shared.intervals import meeting, merged, overlaps, subtracted
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, transactions
from reports.read_tables import Tables

_COPY = ("writer", "target_partition", "shift", "source_shift")


def transform(tables: Tables) -> DataFrame:
    return _twice(tables).unionByName(_never(tables))


def effects(tables: Tables) -> DataFrame:
    """The inputs that are in the output: intervals of source offsets. Columns: STORED, first_offset, last_offset,
    writer, target_partition, ``shift`` (value less target offset), ``source_shift`` (value less source offset)."""
    made = tables.transforms.select(
        *STORED,
        "source_offset",
        "count",
        F.col("target_topic"),
        F.col("target_partition"),
        "writer",
        F.col("first_sequence").alias("low"),
        (F.col("first_sequence") + F.col("count") - 1).alias("high"),
    )
    read = tables.once(read_values).where("is_ok and is_ours and isolation = 1")
    there = sequences(read, [*PARTITION, "writer", "shift"])
    there = there.withColumnsRenamed({"topic": "target_topic", "partition": "target_partition"})
    target = ["run", "target_topic", "target_partition", "writer"]
    both = meeting(made, there, target, ("low", "high"), ("first", "last"))
    source_shift = F.col("low") - F.col("source_offset")
    return both.select(
        *STORED,
        (F.greatest("first", "low") - source_shift).alias("first_offset"),
        (F.least("last", "high") - source_shift).alias("last_offset"),
        "writer",
        "target_partition",
        "shift",
        source_shift.alias("source_shift"),
    )


def _twice(tables: Tables) -> DataFrame:
    copies = merged(tables.once(effects), [*STORED, *_COPY], "first_offset", "last_offset")
    again = overlaps(copies, STORED, _COPY)
    value, other = F.col("first") + F.col("source_shift"), F.col("first") + F.col("other_source_shift")
    detail = sentence(
        "Offset %s is in the output of group %s twice: as value %s of %s, and as value %s of %s.",
        "first",
        "group",
        other,
        "other_writer",
        value,
        "writer",
    )
    return anomalies(_at_the_end(again, tables), detail, offset=F.col("first"))


def _never(tables: Tables) -> DataFrame:
    done = tables.once(transactions).where("fate = 'ok'").select(*OPERATION)
    sent = tables.commits.where("kind = 'transaction' and error is null").join(done, OPERATION, "left_semi")
    until = sent.groupBy(*STORED).agg((F.max("offset") - 1).alias("high"))
    since = tables.transforms.groupBy(*STORED).agg(F.min("source_offset").alias("low"))
    inputs = tables.once(occupied).where("isolation = 1").join(F.broadcast(until.join(since, STORED)), PARTITION)
    due = inputs.select(*STORED, F.greatest("first", "low").alias("first"), F.least("last", "high").alias("last"))
    there = tables.once(effects).select(
        *STORED, F.col("first_offset").alias("first"), F.col("last_offset").alias("last")
    )
    known = merged(there.unionByName(_unread(tables)), STORED, "first", "last")
    never = subtracted(merged(due.where("first <= last"), STORED, "first", "last"), known, STORED)
    detail = sentence("Offsets %s to %s were consumed by group %s and are not in its output.", "first", "last", "group")
    return anomalies(_at_the_end(never, tables), detail, offset=F.col("first"))


def _unread(tables: Tables) -> DataFrame:
    """Inputs whose values went to a partition that was not read to its end."""
    ends = tables.ends.select("run", F.col("topic").alias("target_topic"), F.col("partition").alias("target_partition"))
    unread = tables.transforms.join(F.broadcast(ends), ["run", "target_topic", "target_partition"], "left_anti")
    last = F.col("source_offset") + F.col("count") - 1
    return unread.select(*STORED, F.col("source_offset").alias("first"), last.alias("last"))


def _at_the_end(frame: DataFrame, tables: Tables) -> DataFrame:
    ended = tables.operations.groupBy("run").agg(F.max("complete_us").alias("at_us"))
    return frame.join(F.broadcast(ended), "run")


JUDGED = Judging(
    "exactly-once",
    needs=("operations", "runs", "transactions", "transforms", "commits"),
    evidence="records_transformed",
    unit="records consumed, transformed and produced",
    find=transform,
    about=ABOUT,
    found_in="transforms",
)
