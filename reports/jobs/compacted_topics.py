"""Compacted topics: what a cleaner may have removed, and materialized-view.

``writes`` has the written records with their keys. ``missable`` has the records that a cleaner may have removed (X-11),
and the time since when a reader may miss them. Other jobs excuse these records.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import members, ok_reads, read_values, sequences
from reports.jobs.expressions import OPERATION, PARTITION, READER, with_operation
from reports.jobs.guarantee_job import THE_END, GuaranteeJob, anomalies, sentence
from reports.jobs.intervals import CHUNK, meeting
from reports.read_tables import Tables

VALUE: Final = [*PARTITION, "writer"]
KEY: Final = [*PARTITION, "key"]
_RUN: Final = [*OPERATION, "topic", "partition", "writer", "first_sequence", "last_sequence"]
_RESPONSE: Final = [*OPERATION, "topic", "partition"]
_FATE = """case when type = 'fail' then 'fail'
    when type = 'ok' and acks != 1 then 'ok'
    when seen_by >= if(ended_us is null, 0, 1) then 'ok'
    else 'info' end"""
UNKNOWN_OFFSET: Final = 2**62
"""The offset of a record that no response had."""


def has_keyed(tables: Tables) -> bool:
    """Return whether any run wrote to compacted topics. Frames over nothing cost their planning, too."""
    return bool(tables.runs_with("keyed_writes"))


def writes(tables: Tables) -> DataFrame:
    """Return what was written to compacted topics, one row for each record.

    Columns: VALUE, sequence, key, is_tombstone, offset (UNKNOWN_OFFSET if no response had it), fate (ok: it took
    effect; fail: it never did, or was aborted; info: unknown), from_us (when its writer began to send it), effective_us
    (when it may have taken effect at the earliest: at the end of its transaction, if it has one) and removable_us (when
    a tombstone is past delete.retention.ms, else null).
    """
    keyed = tables.keyed_writes
    runs = tables.sends.select(*_RUN, "first_offset", "type", "acks", "invoke_us")
    runs = runs.join(F.broadcast(keyed.select(*PARTITION).distinct()), PARTITION, "left_semi")
    ended = tables.transactions.select(*OPERATION, F.col("at_us").alias("ended_us"))
    sent = runs.join(ended, OPERATION, "left").join(_implied(tables, runs), _RUN, "left")
    sent = sent.withColumns({"fate": F.expr(_FATE), "base": F.expr("if(first_offset >= 0, first_offset, implied)")})
    batches = keyed.join(sent, [*OPERATION, "topic", "partition"])
    batches = batches.where("sequence between first_sequence and last_sequence")
    return batches.select(
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
    """Return what reads show of runs that were sent. Columns: _RUN, implied (first offset) and seen_by (the greatest
    isolation level of its readers). A batch is written whole, so a read of a part of it proves all of it.
    """
    places = sequences(tables.once(read_values).where("is_ours and is_ok"), [*VALUE, "shift", "isolation"])
    implied = meeting(runs, places, VALUE, ("first_sequence", "last_sequence"), ("first", "last"))
    return implied.groupBy(*_RUN).agg(
        (F.col("first_sequence") - F.max("shift")).alias("implied"), F.max("isolation").alias("seen_by")
    )


def missable(tables: Tables) -> DataFrame:
    """Return the records that readers may miss from ``since_us`` on.

    That is once a newer record of the key may have taken effect, once it is a tombstone past its time, or always if it
    was not committed. Records that must exist to the end are excluded. Columns: VALUE, sequence, offset, since_us.
    """
    in_order = Window.partitionBy(*KEY).orderBy("offset", "writer", "sequence")
    later = in_order.rowsBetween(1, Window.unboundedFollowing)
    newer_us = F.min(F.expr("if(fate != 'fail', effective_us, null)")).over(later)
    since = F.expr("if(fate = 'ok', least(newer_us, removable_us), 0)")
    superseded = tables.once(writes).withColumn("newer_us", newer_us).withColumn("since_us", since)
    last = tables.operations.groupBy("run").agg(F.max("complete_us").alias("last_us"))
    superseded = superseded.join(F.broadcast(last), "run").where("since_us <= last_us")
    return superseded.select(*VALUE, "sequence", "offset", "since_us")


def excused(tables: Tables, keys: Sequence[str], level: int) -> DataFrame:
    """Return records that need not have been read, by any reader of their partition, as intervals of one sequence.
    Columns: keys, first_sequence, last_sequence.

    A cleaner may have removed them before the first reader of at least this isolation level got past them. A reader
    gets all records between its positions before and after a response (F-16, X-4), unless it leaves its group before it
    polls them (``_unpolled``).
    """
    numbers = (F.col("sequence").alias("first_sequence"), F.col("sequence").alias("last_sequence"))
    polled = tables.positions.where("error is null").join(_unpolled(tables), _RESPONSE, "left_anti")
    responses = with_operation(polled, tables, "type", "complete_us")
    levels = ok_reads(tables).groupBy("run", "process").agg(F.max("isolation").alias("level"))
    moves = responses.where("type = 'ok' and next_offset > fetch_offset").join(levels, ["run", "process"], "left")
    moves = moves.where(F.coalesce("level", F.lit(0)) >= level)
    chunks = F.explode(F.expr(f"sequence(fetch_offset div {CHUNK}, (next_offset - 1) div {CHUNK})")).alias("chunk")
    moves = moves.select(*PARTITION, "fetch_offset", "next_offset", "complete_us", chunks)
    records = tables.once(missable).withColumn("chunk", F.expr(f"offset div {CHUNK}"))
    over = records.join(moves, [*PARTITION, "chunk"], "left")
    at_us = F.min(F.expr("if(offset >= fetch_offset and offset < next_offset, complete_us, null)"))
    passed = over.groupBy(*VALUE, "sequence", "since_us").agg(at_us.alias("passed_us"))
    return passed.where("passed_us is null or passed_us >= since_us").select(*keys, *numbers)


def _unpolled(tables: Tables) -> DataFrame:
    """Return the responses to members of groups of which nothing was read, and after which they did not go on. Columns:
    _RESPONSE.

    Kafka: records that a consumer has fetched and not returned by poll are dropped when it leaves.
    """
    own = tables.positions.where("error is null").join(
        F.broadcast(members(tables).select("run", "process").distinct()), ["run", "process"], "left_semi"
    )
    following = F.lead("fetch_offset").over(Window.partitionBy(*READER).orderBy("index"))
    last = own.withColumn("following", following).where("following is null or following != next_offset")
    return last.select(*_RESPONSE).join(tables.reads.select(*_RESPONSE), _RESPONSE, "left_anti")


_VIEW = [*READER, "isolation", "from_us", "at_us", "position"]
_AHEAD = f"""fate != 'fail' and from_us <= at_us and offset >= position
    and not (offset = {UNKNOWN_OFFSET} and position >= high_watermark)"""
_HIDING = "is_tombstone and (fate = 'info' or (fate = 'fail' and isolation = 0))"
_LACKS = "held_at is null and not newest.is_tombstone and coalesce(hidden_at, -1) <= newest.offset"
_OLDER = "held_at < newest.offset and (has_horizon or not coalesce(newest.removable_us <= passed_us, false))"


@GuaranteeJob(
    needs=("operations", "runs", "keyed_writes", "views"),
    evidence="views",
    unit="views of partitions",
    about=("X-11", "H-3"),
    found_in="views",
    excused_by=THE_END,
)
def materialized_view(tables: Tables) -> DataFrame:
    """materialized-view: a reader of a whole compacted topic holds of each key what the committed writes leave of it.

    What it holds when it has read up to a position is the fold of the writes below: the newest value of each key, and
    nothing where the newest is a tombstone. A key is not judged while a newer write may be beyond the position,
    because then a cleaner may have taken what it supersedes (X-11). A reader that got behind a tombstone later than
    delete.retention.ms may never have seen it, unless it received the tombstone horizon and had to read again (H-3).
    """
    views = _with_passage(_views_by_key(tables), tables)
    holds = sentence("holds %s/%s at offset %s for", "held_writer", "held_sequence", "held_at")
    views = views.withColumn("state", F.when(F.col("held_at").isNull(), F.lit("lacks")).otherwise(holds))
    detail = sentence(
        "%s read up to offset %s and %s key %s. The newest committed record of the key is at offset %s.",
        "process",
        "position",
        "state",
        "key",
        F.coalesce("newest.offset", F.lit(-1)),
    )
    wrong = views.where(f"({_LACKS}) or ({_OLDER}) or (held_fate = 'fail' and isolation = 1)")
    return anomalies(wrong, detail, offset=F.coalesce("held_at", "newest.offset"))


def _views_by_key(tables: Tables) -> DataFrame:
    """Each view with each key that may not be superseded beyond its position. Columns: _VIEW, key, ``newest`` committed
    below the position, hidden_at (the last tombstone that may have hidden it), and of what is held: held_at,
    held_writer, held_sequence, held_fate."""
    written = tables.once(writes)
    ends = tables.ends.select(*PARTITION, "high_watermark")
    heads = tables.views.where("key = ''").select(*_VIEW).join(ends, PARTITION, "left")
    below = F.expr("fate = 'ok' and offset < position")
    newest = F.max(F.when(below, F.struct("offset", "is_tombstone", "removable_us", "from_us")))
    keys = heads.withColumnRenamed("from_us", "begun_us").join(
        written.select(*KEY, "offset", "fate", "is_tombstone", "removable_us", "from_us"), PARTITION
    )
    view = [column if column != "from_us" else "begun_us" for column in _VIEW]
    each_key = keys.groupBy(*view, "key").agg(
        newest.alias("newest"),
        F.max(F.when(F.expr(_HIDING), F.col("offset"))).alias("hidden_at"),
        F.bool_or(F.expr(_AHEAD)).alias("is_ahead"),
    )
    each_key = each_key.where("not coalesce(is_ahead, false)").withColumnRenamed("begun_us", "from_us")
    return each_key.join(_held(tables, written), [*_VIEW, "key"], "left")


def _held(tables: Tables, written: DataFrame) -> DataFrame:
    fates = written.select(*VALUE, "sequence", F.col("fate").alias("held_fate"))
    held = tables.views.where("key != ''").join(fates, [*VALUE, "sequence"], "left")
    names = {"offset": "held_at", "writer": "held_writer", "sequence": "held_sequence"}
    return held.withColumnsRenamed(names).select(*_VIEW, "key", *names.values(), "held_fate")


def _with_passage(views: DataFrame, tables: Tables) -> DataFrame:
    """Add when the reader passed the newest record of a key where it holds an older one (``passed_us``), and whether it
    received the tombstone horizon (``has_horizon``).
    """
    behind = views.where("held_at < newest.offset")
    moves = with_operation(tables.positions, tables, "complete_us", "type").where("type = 'ok'")
    moves = moves.select(*READER, "next_offset", "complete_us")
    passed = behind.join(moves, READER).where("complete_us >= from_us and next_offset > newest.offset")
    when = passed.groupBy(*_VIEW, "key").agg(F.min("complete_us").alias("passed_us"))
    sees_horizon = tables.positions.where("tombstone_horizon >= 0").select(*READER).distinct()
    joined = views.join(when, [*_VIEW, "key"], "left").join(
        sees_horizon.withColumn("has_horizon", F.lit(True)), READER, "left"
    )
    has_horizon = F.coalesce("has_horizon", F.lit(False))
    return joined.withColumns({"passed_us": F.coalesce("passed_us", "at_us"), "has_horizon": has_horizon})
