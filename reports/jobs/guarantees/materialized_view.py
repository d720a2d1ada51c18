"""materialized-view: a reader of a whole compacted topic holds of each key what the committed writes leave of it.

What it holds when it has read up to a position is the fold of the writes below: the newest value of each key, and
nothing where the newest is a tombstone. A key is not judged while a newer write may stand beyond the position, because
then a cleaner may have taken what it supersedes (X-11). A reader that got behind a tombstone later than
delete.retention.ms may never have seen it, unless it was told the tombstone horizon and had to begin again (H-3).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import PARTITION, READER, with_operation
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.keyed import KEY, UNKNOWN_OFFSET, VALUE, writes
from reports.read_tables import Tables

_VIEW = [*READER, "isolation", "from_us", "at_us", "position"]
_AHEAD = f"""fate != 'fail' and from_us <= at_us and offset >= position
    and not (offset = {UNKNOWN_OFFSET} and position >= high_watermark)"""
_HIDING = "is_tombstone and (fate = 'info' or (fate = 'fail' and isolation = 0))"
_LACKS = "held_at is null and not newest.is_tombstone and coalesce(hidden_at, -1) <= newest.offset"
_OLDER = "held_at < newest.offset and (is_told or not coalesce(newest.removable_us <= passed_us, false))"


def transform(tables: Tables) -> DataFrame:
    found = _with_passage(_judged(tables), tables)
    holds = sentence("holds %s/%s at offset %s for", "held_writer", "held_sequence", "held_at")
    found = found.withColumn("told", F.when(F.col("held_at").isNull(), F.lit("lacks")).otherwise(holds))
    detail = sentence(
        "%s read up to offset %s and %s key %s. The newest committed record of the key is at offset %s.",
        "process",
        "position",
        "told",
        "key",
        F.coalesce("newest.offset", F.lit(-1)),
    )
    wrong = found.where(f"({_LACKS}) or ({_OLDER}) or (held_fate = 'fail' and isolation = 1)")
    return anomalies(wrong, detail, offset=F.coalesce("held_at", "newest.offset"))


def _judged(tables: Tables) -> DataFrame:
    """Each view with each key that may not be superseded beyond its position. Columns: _VIEW, key, ``newest`` committed
    below the position, hidden_at (the last tombstone that may have hidden it), and of what is held: held_at,
    held_writer, held_sequence, held_fate."""
    told = tables.once(writes)
    ends = tables.ends.select(*PARTITION, "high_watermark")
    heads = tables.views.where("key = ''").select(*_VIEW).join(ends, PARTITION, "left")
    below = F.expr("fate = 'ok' and offset < position")
    newest = F.max(F.when(below, F.struct("offset", "is_tombstone", "removable_us", "from_us")))
    keys = heads.withColumnRenamed("from_us", "begun_us").join(
        told.select(*KEY, "offset", "fate", "is_tombstone", "removable_us", "from_us"), PARTITION
    )
    view = [each if each != "from_us" else "begun_us" for each in _VIEW]
    each_key = keys.groupBy(*view, "key").agg(
        newest.alias("newest"),
        F.max(F.when(F.expr(_HIDING), F.col("offset"))).alias("hidden_at"),
        F.bool_or(F.expr(_AHEAD)).alias("is_ahead"),
    )
    each_key = each_key.where("not coalesce(is_ahead, false)").withColumnRenamed("begun_us", "from_us")
    return each_key.join(_held(tables, told), [*_VIEW, "key"], "left")


def _held(tables: Tables, told: DataFrame) -> DataFrame:
    fates = told.select(*VALUE, "sequence", F.col("fate").alias("held_fate"))
    held = tables.views.where("key != ''").join(fates, [*VALUE, "sequence"], "left")
    names = {"offset": "held_at", "writer": "held_writer", "sequence": "held_sequence"}
    return held.withColumnsRenamed(names).select(*_VIEW, "key", *names.values(), "held_fate")


def _with_passage(found: DataFrame, tables: Tables) -> DataFrame:
    """Adds when the reader got behind the newest record of a key where it holds an older one (``passed_us``),
    and whether it was told the tombstone horizon (``is_told``)."""
    behind = found.where("held_at < newest.offset")
    moves = with_operation(tables.positions, tables, "complete_us", "type").where("type = 'ok'")
    moves = moves.select(*READER, "next_offset", "complete_us")
    passed = behind.join(moves, READER).where("complete_us >= from_us and next_offset > newest.offset")
    when = passed.groupBy(*_VIEW, "key").agg(F.min("complete_us").alias("passed_us"))
    told = tables.positions.where("tombstone_horizon >= 0").select(*READER).distinct()
    joined = found.join(when, [*_VIEW, "key"], "left").join(told.withColumn("is_told", F.lit(True)), READER, "left")
    is_told = F.coalesce("is_told", F.lit(False))
    return joined.withColumns({"passed_us": F.coalesce("passed_us", "at_us"), "is_told": is_told})


JUDGED = Judging(
    "materialized-view",
    needs=("operations", "runs", "keyed_writes", "views"),
    evidence="views",
    unit="views of partitions",
    find=transform,
    about=("X-11", "H-3"),
    found_in="views",
)
