"""Steps of a fetcher through a partition: each read with the offset at which the read before it ended.

``expected`` is the offset after the last one read. A reassignment or a seek (a new row in ASSIGNMENTS) begins anew.
Reads of operations that did not end ok are compared, but they do not move the cursor. Reads come in the order of their
answers, since a member asks several nodes at once. An answer may be used that was asked for before a seek, if the
position is the same again.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.evidence import occupied
from reports.jobs.shared.expressions import PARTITION, READER, before, so_far, without_match
from reports.jobs.shared.intervals import meeting
from reports.jobs.shared.keyed import has_keyed, missable
from reports.read_tables import Tables

_STEP = (*READER, "isolation", "index", "complete_us", "first_offset", "expected")


def steps_between_operations(tables: Tables) -> DataFrame:
    reads = tables.reads.withColumn("at_us", F.col("complete_us"))
    polls = reads.groupBy(*READER, "isolation", "index", "type", "at_us", "complete_us").agg(
        F.min_by("first_offset", "position").alias("first_offset"),
        F.max_by("last_offset", "position").alias("last_offset"),
    )
    given = tables.assignments.select(*READER, F.col("from_us").alias("at_us"))
    events = polls.withColumn("is_poll", F.lit(1)).unionByName(
        given.withColumn("is_poll", F.lit(0)), allowMissingColumns=True
    )
    in_time = Window.partitionBy(*READER).orderBy("at_us", F.desc("is_poll"), "index")
    assignment = F.sum(1 - F.col("is_poll")).over(so_far(in_time))
    in_order = Window.partitionBy(*READER, "assignment").orderBy("complete_us", "index")
    ended_ok = F.when(F.col("type") == "ok", F.col("last_offset"))
    cursor = F.last(ended_ok, ignorenulls=True).over(before(in_order))
    mine = events.withColumn("assignment", assignment).where("is_poll = 1")
    return mine.withColumn("expected", cursor + 1).select(*_STEP)


def steps_inside_operations(tables: Tables) -> DataFrame:
    inside = Window.partitionBy(*READER, "index").orderBy("position")
    return tables.reads.withColumn("expected", F.lag("last_offset").over(inside) + 1).select(*_STEP)


def skipped(tables: Tables, steps: DataFrame) -> DataFrame:
    """Steps that jumped over records which others read (``skipped`` many, from ``first_skipped``).

    Offsets below the log start that this very answer named do not count: they may be deleted. X-11: neither do records
    that a cleaner may have taken before this read.
    """
    jumps = with_log_start(tables, steps.where("first_offset > expected"))
    low, high = F.greatest("expected", "log_start_offset", F.lit(0)), F.col("first_offset") - 1
    known = jumps.withColumns({"low": low, "high": high}).where("low <= high")
    over = meeting(known, tables.once(occupied), [*PARTITION, "isolation"], ("low", "high"), ("first", "last"))
    from_offset = F.greatest("first", "low")
    until = F.least("last", F.col("first_offset") - 1)
    missed = over.select(*_STEP, from_offset.alias("from_offset"), until.alias("until"))
    if has_keyed(tables):
        missed = _not_taken(tables, missed)
    count = F.sum(F.expr("until - from_offset + 1"))
    return missed.groupBy(*_STEP).agg(count.alias("skipped"), F.min("from_offset").alias("first_skipped"))


def with_log_start(tables: Tables, steps: DataFrame) -> DataFrame:
    """Adds the log start that the very answer named, or null (``log_start_offset``)."""
    wanted = F.broadcast(steps.select("run", "process", "index").distinct())
    told = tables.positions.join(wanted, ["run", "process", "index"], "left_semi")
    return steps.join(told.select(*READER, "index", "log_start_offset"), [*READER, "index"], "left")


def _not_taken(tables: Tables, missed: DataFrame) -> DataFrame:
    """Splits what was missed of compacted topics into offsets, and leaves out those that a cleaner may have taken."""
    compacted = F.broadcast(tables.keyed_writes.select(*PARTITION).distinct())
    offset = F.explode(F.sequence("from_offset", "until")).alias("from_offset")
    offsets = missed.join(compacted, PARTITION, "left_semi").select(*_STEP, offset)
    offsets = offsets.withColumn("until", F.col("from_offset"))
    taken = tables.once(missable).withColumnRenamed("offset", "from_offset")
    there = without_match(offsets, taken, [*PARTITION, "from_offset"], "other.since_us <= this.complete_us")
    return missed.join(compacted, PARTITION, "left_anti").unionByName(there)
