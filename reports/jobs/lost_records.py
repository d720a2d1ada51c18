"""Lost records: lost-write and unseen, and how much was lost.

An acknowledged value is lost if no ok operation ever read it, if it is beyond the end of its log, or if it is below the
log's start although retention cannot have deleted it. As in Jepsen, unseen is all of these values, and lost-write those
that reads overtook. Values of an operation with unknown end count if a part of their run was read, because a batch is
written whole or not at all. A record that only the leader of a replicated partition acknowledged (acks=1) may be lost
with that leader, so it does not count. Neither does one that a cleaner may have removed (X-11).

Retention deletes no record that is younger than ``retention.ms``, and keeps at least ``retention.bytes``. If a log does
not begin at 0, the rows of the final read have both settings and the number of received bytes. If DescribeConfigs
failed, or the topic is compacted, any record below the start may have been deleted. No client of a load
deletes records of others. A fault that steps a clock makes records older by the step in its evidence; without that
evidence age is not judged. A leader that dies may have counted records that its successor lacks. Then up to
``segment.bytes`` less than ``retention.bytes`` may remain.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.compacted_topics import excused, has_keyed
from reports.jobs.evidence import durably_acknowledged, log_starts, read_values, sequences, with_clock_steps
from reports.jobs.expressions import PARTITION
from reports.jobs.fetch_positions import steps_between_operations, steps_inside_operations, with_log_start
from reports.jobs.guarantee_job import A_READ, COMPACTION, LOG, GuaranteeJob, anomalies, counted, sentence
from reports.jobs.intervals import meeting, merged, subtracted
from reports.read_tables import Tables

_KEYS = [*PARTITION, "writer"]
_SEND = (*_KEYS, "first_offset", "first_sequence", "last_sequence", "process", "index", "invoke_us", "complete_us")
_OVERLAP = "first_sequence <= last and last_sequence >= first"
CLOCKS_US = 5_000_000
"""The clocks of those that write records and of those that delete them are assumed to differ by less than this."""
_TOO_YOUNG = f"(retention_ms < 0 or (end_us - invoke_us + {CLOCKS_US} + stepped_us) div 1000 < retention_ms)"
_TOO_LITTLE_LEFT = "(retention_bytes < 0 or size_bytes < retention_bytes - segment_bytes)"
_STAYS = f"coalesce({_TOO_YOUNG} and {_TOO_LITTLE_LEFT}, false)"
"""Whether retention must have kept a record of this partition that was sent at invoke_us."""
_END = ("end_us", "retention_ms", "retention_bytes", "size_bytes", "segment_bytes", "stepped_us")


def unread(tables: Tables) -> DataFrame:
    """Values in the log that no ok operation read. A row is the missing part of one send.

    Columns: run, topic, partition, writer, process, index, complete_us, first_offset, last_offset, first_sequence,
    reach (highest offset that an ok operation read of the partition, -1 none), start_offset (below it records may have
    been deleted)."""
    # 1. The values that were read, as intervals of each writer's sequence: _KEYS, first, last. Those that a cleaner
    #    may have removed need not have been read, so they are counted as read.
    read = tables.once(read_values).where("is_ok")
    seen = sequences(read.where("is_ours"), _KEYS)
    if has_keyed(tables):
        removable = excused(tables, _KEYS, 0).withColumnsRenamed({"first_sequence": "first", "last_sequence": "last"})
        seen = merged(seen.unionByName(removable), _KEYS, "first", "last")

    # 2. The values that were sent and not read, as such intervals.
    sends = tables.once(written)
    sent = merged(sends, _KEYS, "first_sequence", "last_sequence")
    missing = subtracted(sent, seen, _KEYS)

    # 3. The missing part of each send. Its sequence and its offsets rise together, with a constant difference.
    #    Broadcast, so that the sends need not be moved: few are missing in all but the worst of runs.
    parts = sends.join(F.broadcast(missing), _KEYS).where(_OVERLAP)
    first_missing, last_missing = F.greatest("first", "first_sequence"), F.least("last", "last_sequence")
    difference = F.col("first_sequence") - F.col("first_offset")
    clipped = parts.select(
        *_KEYS,
        "process",
        "index",
        "invoke_us",
        "complete_us",
        first_missing.alias("first_sequence"),
        (first_missing - difference).alias("first_offset"),
        (last_missing - difference).alias("last_offset"),
    )

    # 4. What is known of its partition: how far reads went, where its log starts, and what retention may have deleted.
    reach = read.groupBy(*PARTITION).agg(F.max("last").alias("reach"))
    ends = with_clock_steps(tables.ends, tables).where("error is null").select(*PARTITION, *_END)
    placed = (
        clipped.join(reach, PARTITION, "left")
        .join(log_starts(tables), PARTITION, "left")
        .join(F.broadcast(ends), PARTITION, "left")
        .withColumn("start_offset", F.expr(f"if({_STAYS}, 0, start_offset)"))
        .fillna({"reach": -1, "start_offset": 0})
    )

    # 5. What lies below the start of the log may have been deleted, and is not missing.
    above_start = placed.where("last_offset >= start_offset")
    above_start = above_start.withColumn("first_offset", F.greatest("first_offset", "start_offset"))
    return above_start.drop("invoke_us", *_END)


def beyond_the_end(tables: Tables) -> DataFrame:
    """Acknowledged values at or above the high watermark at which the final read found the end of their partition,
    even if they were read before. A partition that does not exist any more ends at 0.

    Columns: as ``unread`` but reach and start_offset, and high_watermark, error (why the partition is not there), and
    begins_at (null)."""
    ends = tables.ends.select(*PARTITION, "high_watermark", "error")
    sends = durably_acknowledged(tables).select(*_SEND, "last_offset").join(F.broadcast(ends), PARTITION)
    gone = sends.where("last_offset >= high_watermark")
    first = F.greatest("first_offset", "high_watermark")
    return gone.withColumns(
        {
            "first_offset": first,
            "first_sequence": F.col("first_sequence") + first - F.col("first_offset"),
            "begins_at": F.lit(None).cast("long"),
        }
    ).drop("last_sequence", "invoke_us")


def below_the_start(tables: Tables) -> DataFrame:
    """Acknowledged values below the offset at which the final read found the start of their log (``begins_at``),
    although retention cannot have deleted them, even if they were read before. Columns: as ``beyond_the_end``."""
    ends = with_clock_steps(tables.ends, tables).where("error is null and log_start_offset > 0")
    ends = ends.select(*PARTITION, *_END, "high_watermark", "error", F.col("log_start_offset").alias("begins_at"))
    sends = durably_acknowledged(tables).select(*_SEND, "last_offset").join(F.broadcast(ends), PARTITION)
    gone = sends.where(f"first_offset < begins_at and {_STAYS}")
    gone = gone.withColumn("last_offset", F.least("last_offset", F.col("begins_at") - 1))
    return gone.select(*tables.once(beyond_the_end).columns)


def lost(tables: Tables) -> DataFrame:
    """All of them, each once. Columns: those that all have, reach (-1 for values that are gone), high_watermark (null
    if the partition was not read to its end), error, begins_at, is_gone (beyond the end, or below the start)."""
    gone = tables.once(beyond_the_end).unionByName(below_the_start(tables))
    ends = tables.ends.select(*PARTITION, "high_watermark", "error").withColumn("begins_at", F.lit(None).cast("long"))
    others = tables.once(unread).join(gone, [*PARTITION, "process", "index"], "left_anti")
    others = others.join(F.broadcast(ends), PARTITION, "left")
    columns = [name for name in gone.columns if name not in ("high_watermark", "error", "begins_at")]
    shared = [*columns, "reach", "high_watermark", "error", "begins_at", "is_gone"]
    gone = gone.withColumns({"reach": F.lit(-1).cast("long"), "is_gone": F.lit(True)})
    return gone.select(*shared).unionByName(others.withColumn("is_gone", F.lit(False)).select(*shared))


def written(tables: Tables) -> DataFrame:
    """Send of which a record is in the log: those acknowledged, and those of unknown end from which a value was read,
    with the offset that the read implies."""
    unknown = tables.sends.where("type = 'info'")
    keys = F.broadcast(unknown.select(*_KEYS).distinct())  # There are few writers and partitions.
    read = tables.once(read_values).where("is_ok and is_ours").join(keys, _KEYS, "left_semi")
    places = sequences(read, [*_KEYS, "shift"]).withColumnRenamed("shift", "read_shift")
    met = meeting(places, unknown, _KEYS, ("first", "last"), ("first_sequence", "last_sequence"))
    implied = met.groupBy(*(name for name in _SEND if name != "first_offset")).agg(
        (F.col("first_sequence") - F.max("read_shift")).alias("first_offset")
    )
    return durably_acknowledged(tables).select(*_SEND).unionByName(implied)


def jumped_over(tables: Tables) -> DataFrame:
    """Return the values that a fetcher's read has omitted already. Readers with read_committed may omit aborted
    records."""
    steps = tables.once(steps_between_operations).unionByName(tables.once(steps_inside_operations))
    jumps = with_log_start(tables, steps.where("first_offset > expected and isolation = 0"))
    low = F.greatest("expected", "log_start_offset").alias("low")
    jumps = jumps.select(*PARTITION, low, F.col("first_offset").alias("high"))
    missing = tables.once(unread)
    same = [F.col(f"lost.{key}") == F.col(f"jump.{key}") for key in PARTITION]
    over = F.expr("jump.low <= lost.last_offset and jump.high > lost.first_offset")
    return _lost_writes(missing.alias("lost").join(jumps.alias("jump"), [*same, over], "left_semi"))


def _lost_writes(violations: DataFrame) -> DataFrame:
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
    return anomalies(violations, detail, offset="first_offset")


@GuaranteeJob(
    needs=LOG,
    evidence="records_acked",
    unit="records acknowledged",
    early=jumped_over,
    excused_by=COMPACTION,
)
def lost_write(tables: Tables) -> DataFrame:
    """lost-write: an acknowledged record was never read although reads went beyond it, or it is not in its log at the
    end.

    A log whose end is below an acknowledged record has lost it, and so has a partition that does not exist any more,
    even if the records had been read before. So has a log that begins above it, unless retention may have deleted the
    record.

    While the run goes on, a later read may still return the record. But if a fetcher's read jumped over it, there is a
    violation in any case: the record is lost if it is never read, and otherwise that fetcher has skipped it.
    """
    losses = tables.once(lost)
    return _lost_writes(losses.where("not is_gone and first_offset <= reach")).unionByName(
        _gone(losses.where("is_gone"))
    )


def _gone(gone: DataFrame) -> DataFrame:
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
    return anomalies(gone, detail, offset="first_offset")


@GuaranteeJob(
    needs=(*LOG, "ends"),
    evidence="records_acked",
    unit="records acknowledged",
    excused_by=A_READ,
    reads_to_end=True,
)
def unseen(tables: Tables) -> DataFrame:
    """unseen: an acknowledged record was never read, although the partition was read to its end (ENDS).

    Those that reads overtook are also violations of lost-write.
    """
    ends = tables.ends.select(*PARTITION, "high_watermark")
    missing = tables.once(unread).join(ends, PARTITION)
    detail = sentence(
        "Offset %s, written by %s, was acknowledged and not read by the end. The high watermark was %s then. %s",
        "first_offset",
        "writer",
        "high_watermark",
        counted(F.col("last_offset") - F.col("first_offset") + 1, "One record is unseen.", "%s records are unseen."),
    )
    return anomalies(missing, detail, offset="first_offset")


_UNTIL = "if(is_gone or high_watermark is not null, last_offset, least(last_offset, reach))"
"""SQL for the last offset that must have been read. In a partition that no reader read to its end, only records that
reads overtook are lost for sure."""


def lost_record_counts(tables: Tables) -> DataFrame:
    """Numbers of acknowledged records and of lost ones: the figures of the verdict's first sentence.

    Columns: run, topic, is_gone (all that is lost is beyond the end of its log), records.
    """
    counted = tables.once(lost).where("is_gone or first_offset <= reach or high_watermark is not null")
    return counted.groupBy("run", "topic").agg(
        F.min("is_gone").alias("is_gone"),
        F.sum(F.expr(f"{_UNTIL} - first_offset + 1")).alias("records"),
    )
