"""Mirrors: mirror-complete, copied and repeated records, and rewinds."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import acknowledged
from reports.jobs.expressions import PARTITION, before, first_rows
from reports.jobs.guarantee_job import THE_END, GuaranteeJob, anomalies, sentence
from reports.jobs.intervals import merged, subtracted
from reports.read_tables import Tables

SLOT_US = 250_000
"""The page shows positions over time in steps of this size."""
MAX_REWINDS = 200


def copied_runs(tables: Tables) -> DataFrame:
    """COPIES with ``end`` (offset behind the run), ``previous`` (the end of the run before it) and ``again`` (how many
    of its records had been copied already), in the order in which the target acknowledged the runs."""
    in_time = Window.partitionBy(*PARTITION).orderBy("at_us", "process", "index", "source_offset")
    rows = tables.copies.where("target_offset >= 0").withColumn("end", F.col("source_offset") + F.col("count"))
    reached = rows.withColumn("reached", F.max("end").over(before(in_time)))
    again = F.expr("least(count, greatest(0, coalesce(reached - source_offset, 0)))")
    return reached.withColumn("again", again).withColumn("previous", F.lag("end").over(in_time))


def mirror_totals(tables: Tables) -> DataFrame:
    """Columns: run, topic, partitions, records, again, rewinds, farthest (offsets that it went back at once)."""
    rows = tables.once(copied_runs).withColumn("back", F.expr("greatest(0, coalesce(previous - source_offset, 0))"))
    return rows.groupBy("run", "topic").agg(
        F.countDistinct("partition").alias("partitions"),
        F.sum("count").alias("records"),
        F.sum("again").alias("again"),
        F.count_if(F.col("back") > 0).alias("rewinds"),
        F.max("back").alias("farthest"),
    )


def mirror_positions(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, slot (of SLOT_US), position (offset behind the last copy)."""
    rows = tables.once(copied_runs).withColumn("slot", _slot("at_us"))
    order = F.struct("at_us", "process", "index", "source_offset")
    return rows.groupBy(*PARTITION, "slot").agg(F.max_by("end", order).alias("position"))


def first_copies_after_rewinds(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, at_us, from_offset, to_offset. Each row is the first copy after the mirror went
    back."""
    back = tables.once(copied_runs).where("source_offset < previous")
    first = first_rows(back, MAX_REWINDS, Window.partitionBy("run").orderBy("at_us", "topic", "partition"))
    return first.select(
        *PARTITION, "at_us", F.col("previous").alias("from_offset"), F.col("source_offset").alias("to_offset")
    )


def mirror_source_ends(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, slot, end (offset behind the last record acknowledged). Only topics
    that were copied."""
    topics = tables.copies.select("run", "topic").distinct()
    ends = acknowledged(tables).join(F.broadcast(topics), ["run", "topic"], "left_semi")
    slots = ends.groupBy(*PARTITION, _slot("complete_us").alias("slot"))
    return slots.agg((F.max("last_offset") + 1).alias("end"))


def held_by_target(tables: Tables) -> DataFrame:
    """TARGET_RUNS that hold records, with ``last_sequence``."""
    held = tables.target_runs.where("count > 0")
    return held.withColumn("last_sequence", F.col("first_sequence") + F.col("count") - 1)


def mirror_target_totals(tables: Tables) -> DataFrame:
    """Columns: run, topic, held (records in the target at the end), twice (how many it holds a second time)."""
    held = held_by_target(tables)
    values = merged(held, [*PARTITION, "writer"], "first_sequence", "last_sequence").groupBy("run", "topic")
    different = values.agg(F.sum(F.col("last") - F.col("first") + 1).alias("different"))
    totals = held.groupBy("run", "topic").agg(F.sum("count").alias("held")).join(different, ["run", "topic"])
    return totals.select("run", "topic", "held", (F.col("held") - F.col("different")).alias("twice"))


def _slot(at_us: str) -> Column:
    return F.floor(F.col(at_us) / SLOT_US).cast("long")


WRITER_SUFFIX = "-writer"
"""A mirror's name followed by this is its other half, which writes."""
_VALUE = [*PARTITION, "writer"]


@GuaranteeJob(
    needs=("operations", "runs", "ends", "target_runs"),
    evidence="records_at_target",
    unit="records read at the target",
    excused_by=THE_END,
)
def mirror_complete(tables: Tables) -> DataFrame:
    """mirror-complete: the target of a mirror holds at the end whatever the source holds.

    Only partitions that were read to their end in both clusters are judged. Offsets over which a reset moved the
    mirror's position forward do not count (its reset policy is ``latest``, or records were deleted before it came to
    them). The target may hold a record twice, since the promise is at least once; that is only counted.
    """
    source = tables.reads.where("f = 'final_read' and type = 'ok' and writer != ''")
    source = source.join(F.broadcast(_read_in_both_clusters(tables)), PARTITION, "left_semi")
    source_values = merged(source, _VALUE, "first_sequence", "last_sequence")
    held = held_by_target(tables).select(*_VALUE, "first_sequence", "last_sequence")
    copied = merged(held.unionByName(_skipped_by_reset(source, tables)), _VALUE, "first_sequence", "last_sequence")
    missing = subtracted(source_values, copied, _VALUE)
    lost = F.broadcast(missing).join(source, _VALUE).where("first_sequence <= last and last_sequence >= first")
    lost = lost.withColumns(
        {
            "from": F.greatest("first", "first_sequence") - F.col("shift"),
            "to": F.least("last", "last_sequence") - F.col("shift"),
        }
    )
    detail = sentence(
        "The source holds offsets %s to %s, written by %s. The cluster that they were copied to does not.",
        "from",
        "to",
        "writer",
    )
    return anomalies(lost, detail, offset="from")


def _skipped_by_reset(source: DataFrame, tables: Tables) -> DataFrame:
    """The values at offsets over which a reset moved the mirror (Kafka's auto.offset.reset). Columns: _VALUE,
    first_sequence, last_sequence."""
    mirrors = tables.copies.select("run", F.regexp_replace("process", f"{WRITER_SUFFIX}$", "").alias("process"))
    resets = tables.resets.where("to_offset > greatest(from_offset, 0)")
    jumps = resets.join(F.broadcast(mirrors.distinct()), ["run", "process"], "left_semi")
    jumps = jumps.select(*PARTITION, "from_offset", (F.col("to_offset") - 1).alias("until_offset"))
    over = source.join(F.broadcast(jumps), PARTITION)
    over = over.where("first_offset <= until_offset and last_offset >= from_offset")
    return over.select(
        *_VALUE,
        (F.greatest("first_offset", "from_offset") + F.col("shift")).alias("first_sequence"),
        (F.least("last_offset", "until_offset") + F.col("shift")).alias("last_sequence"),
    )


def _read_in_both_clusters(tables: Tables) -> DataFrame:
    """Partitions read to their end in both clusters."""
    read = tables.target_runs.where("count = 0").select(*PARTITION).distinct()
    return read.join(F.broadcast(tables.ends), PARTITION, "left_semi")
