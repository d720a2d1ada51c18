"""What was written to compacted topics, under which keys, and from when on a reader may miss a record because a cleaner
has taken it (X-11)."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.evidence import ok_reads, read_values, sequences
from reports.jobs.shared.expressions import OPERATION, PARTITION, with_operation
from reports.jobs.shared.intervals import CHUNK, meeting
from reports.read_tables import Tables

VALUE: Final = [*PARTITION, "writer"]
KEY: Final = [*PARTITION, "key"]
_RUN: Final = [*OPERATION, "topic", "partition", "writer", "first_sequence", "last_sequence"]
_FATE = """case when type = 'fail' then 'fail'
    when type = 'ok' and acks != 1 then 'ok'
    when seen_by >= if(ended_us is null, 0, 1) then 'ok'
    else 'info' end"""
UNKNOWN_OFFSET: Final = 2**62
"""Where a record stands whose offset nobody was told."""


def has_keyed(tables: Tables) -> bool:
    """Whether any run wrote to compacted topics. Frames over nothing cost their planning, too."""
    return bool(tables.runs_with("keyed_writes"))


def writes(tables: Tables) -> DataFrame:
    """Columns: VALUE, sequence, key, is_tombstone, offset (UNKNOWN_OFFSET if nobody was told), fate (ok: it took
    effect; fail: it never did, or was aborted; info: nobody knows), from_us (when its writer began to send it),
    effective_us (when it may have taken effect at the earliest: at the end of its transaction, if it has one) and
    removable_us (when a tombstone is past delete.retention.ms, else null)."""
    keyed = tables.keyed_writes
    runs = tables.sends.select(*_RUN, "first_offset", "type", "acks", "invoke_us")
    runs = runs.join(F.broadcast(keyed.select(*PARTITION).distinct()), PARTITION, "left_semi")
    ended = tables.transactions.select(*OPERATION, F.col("at_us").alias("ended_us"))
    told = runs.join(ended, OPERATION, "left").join(_implied(tables, runs), _RUN, "left")
    told = told.withColumns({"fate": F.expr(_FATE), "base": F.expr("if(first_offset >= 0, first_offset, implied)")})
    each = keyed.join(told, [*OPERATION, "topic", "partition"])
    each = each.where("sequence between first_sequence and last_sequence")
    return each.select(
        *VALUE,
        "sequence",
        "key",
        "is_tombstone",
        F.coalesce(F.expr("base + sequence - first_sequence"), F.lit(UNKNOWN_OFFSET)).alias("offset"),
        "fate",
        F.col("invoke_us").alias("from_us"),
        F.coalesce("ended_us", "invoke_us").alias("effective_us"),
        F.expr("if(is_tombstone, invoke_us + delete_retention_us, null)").alias("removable_us"),
    )


def _implied(tables: Tables, runs: DataFrame) -> DataFrame:
    """What reads tell of runs that were sent. Columns: _RUN, implied (first offset) and seen_by (the greatest isolation
    level of its readers). A batch is written whole, so what was read of it tells of all of it."""
    places = sequences(tables.once(read_values).where("is_ours and is_ok"), [*VALUE, "shift", "isolation"])
    found = meeting(runs, places, VALUE, ("first_sequence", "last_sequence"), ("first", "last"))
    return found.groupBy(*_RUN).agg(
        (F.col("first_sequence") - F.max("shift")).alias("implied"), F.max("isolation").alias("seen_by")
    )


def missable(tables: Tables) -> DataFrame:
    """Records that readers may miss from ``since_us`` on: since a newer one of the key may have taken effect, since it
    is a tombstone past its time, or always if it was not committed. One that must be there to the end is left out.
    Columns: VALUE, sequence, offset, since_us."""
    in_order = Window.partitionBy(*KEY).orderBy("offset", "writer", "sequence")
    later = in_order.rowsBetween(1, Window.unboundedFollowing)
    newer_us = F.min(F.expr("if(fate != 'fail', effective_us, null)")).over(later)
    since = F.expr("if(fate = 'ok', least(newer_us, removable_us), 0)")
    found = tables.once(writes).withColumn("newer_us", newer_us).withColumn("since_us", since)
    last = tables.operations.groupBy("run").agg(F.max("complete_us").alias("last_us"))
    found = found.join(F.broadcast(last), "run").where("since_us <= last_us")
    return found.select(*VALUE, "sequence", "offset", "since_us")


def excused(tables: Tables, keys: Sequence[str], level: int) -> DataFrame:
    """Records that need not have been read, whoever read their partition, as intervals of one sequence. Columns: keys,
    first_sequence, last_sequence.

    A cleaner may have taken them before the first reader of at least this isolation level got past them. A reader gets
    all that is there between its positions before and after an answer (F-16, X-4).
    """
    numbers = (F.col("sequence").alias("first_sequence"), F.col("sequence").alias("last_sequence"))
    told = with_operation(tables.positions.where("error is null"), tables, "type", "complete_us")
    levels = ok_reads(tables).groupBy("run", "process").agg(F.max("isolation").alias("level"))
    moves = told.where("type = 'ok' and next_offset > fetch_offset").join(levels, ["run", "process"], "left")
    moves = moves.where(F.coalesce("level", F.lit(0)) >= level)
    chunks = F.explode(F.expr(f"sequence(fetch_offset div {CHUNK}, (next_offset - 1) div {CHUNK})")).alias("chunk")
    moves = moves.select(*PARTITION, "fetch_offset", "next_offset", "complete_us", chunks)
    records = tables.once(missable).withColumn("chunk", F.expr(f"offset div {CHUNK}"))
    over = records.join(moves, [*PARTITION, "chunk"], "left")
    at_us = F.min(F.expr("if(offset >= fetch_offset and offset < next_offset, complete_us, null)"))
    found = over.groupBy(*VALUE, "sequence", "since_us").agg(at_us.alias("passed_us"))
    return found.where("passed_us is null or passed_us >= since_us").select(*keys, *numbers)
