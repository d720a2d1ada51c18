"""Steps of a fetcher through a partition: each read with the offset at which the read before it ended.

``expected`` is the offset after the last one read. A reassignment or a seek (a new row in ASSIGNMENTS) begins anew.
Reads of operations that did not end ok are compared, but they do not move the cursor.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION
from reports.jobs.evidence import occupied
from reports.read_tables import Tables

_READER = ("run", "process", "topic", "partition")
_STEP = (*_READER, "index", "complete_us", "first_offset", "expected")


def steps_between_operations(tables: Tables) -> DataFrame:
    polls = tables.reads.groupBy(*_READER, "index", "type", "invoke_us", "complete_us").agg(
        F.min_by("first_offset", "position").alias("first_offset"),
        F.max_by("last_offset", "position").alias("last_offset"),
    )
    columns = [*_READER, "at_us", "is_poll", "index", "type", "complete_us", "first_offset", "last_offset"]
    events = polls.select(
        *_READER, F.col("invoke_us").alias("at_us"), F.lit(1).alias("is_poll"), *columns[6:]
    ).unionByName(
        tables.assignments.select(*_READER, F.col("from_us").alias("at_us"), F.lit(0).alias("is_poll")),
        allowMissingColumns=True,
    )
    in_time = Window.partitionBy(*_READER).orderBy("at_us", "is_poll", "index")
    assigned = F.sum(1 - F.col("is_poll")).over(in_time.rowsBetween(Window.unboundedPreceding, 0))
    sessions = events.select(*columns, assigned.alias("assignment")).where(F.col("is_poll") == 1)
    before = Window.partitionBy(*_READER, "assignment").orderBy("index").rowsBetween(Window.unboundedPreceding, -1)
    cursor = F.last(F.when(F.col("type") == "ok", F.col("last_offset")), ignorenulls=True).over(before)
    return sessions.withColumn("expected", cursor + 1).select(*_STEP)


def steps_inside_operations(tables: Tables) -> DataFrame:
    inside = Window.partitionBy(*_READER, "index").orderBy("position")
    return tables.reads.withColumn("expected", F.lag("last_offset").over(inside) + 1).select(*_STEP)


def skipped(tables: Tables, steps: DataFrame) -> DataFrame:
    """Steps that jumped over records which others read (``skipped`` many, from ``first_skipped``).

    Offsets below the log start that this very answer named do not count.
    """
    jumps = steps.where(F.col("first_offset") > F.col("expected"))
    told = tables.positions.select(*_READER, "index", "log_start_offset")
    jumps = jumps.join(told, [*_READER, "index"], "left").withColumn(
        "low", F.greatest("expected", F.coalesce("log_start_offset", F.lit(0)))
    )
    known = tables.once("occupied", occupied)
    over = jumps.join(known, list(PARTITION)).where(
        (F.col("first") < F.col("first_offset"))
        & (F.col("last") >= F.col("low"))
        & (F.col("low") < F.col("first_offset"))
    )
    from_offset = F.greatest("first", "low")
    missed = F.least("last", F.col("first_offset") - 1) - from_offset + 1
    return over.groupBy(*_STEP).agg(F.sum(missed).alias("skipped"), F.min(from_offset).alias("first_skipped"))


def gone_back(steps: DataFrame) -> DataFrame:
    return steps.where(F.col("first_offset") < F.col("expected"))
