"""Snapshot downloads as the nodes that fetched them noted them: one row for each snapshot from each leader.

A download that was cut, or whose node was killed, and then went on is one download with several starts. That holds also
if it threw away in between what it held. It ends when the snapshot is whole, or when the node begins another snapshot
or turns to another leader.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import before, so_far
from reports.jobs.shared.notes import notes, number, text
from reports.read_tables import Tables

STARTED, CHUNK, FINISHED, DISCARDED = "download_started", "download_chunk", "download_finished", "download_discarded"
SOURCE = ("leader", "end_offset", "epoch")


def steps(tables: Tables) -> DataFrame:
    """Each note of a download with its ``SOURCE`` and with numbers that tell downloads apart.

    ``round`` lasts until the node has a whole snapshot, ``at_leader`` until it turns to another leader, and
    ``download`` until it turns to another source. ``held`` is how many bytes the node held before the note. ``begins``
    is true if the note before has another source.
    """
    rows = notes(tables, STARTED, CHUNK, FINISHED, DISCARDED).select(
        "run",
        "node",
        "incarnation",
        "seq",
        "at_us",
        "what",
        number("size"),
        number("position"),
        number("bytes"),
        text("why"),
        *(F.when(F.col("what") == STARTED, number(each)).alias(each) for each in SOURCE),
    )
    in_order = Window.partitionBy("run", "node").orderBy("incarnation", "seq")
    started, chunk, finished = (F.col("what") == each for each in (STARTED, CHUNK, FINISHED))
    keeps = F.when(started, F.col("position")).when(chunk, F.col("position") + F.col("bytes")).otherwise(0)
    known = rows.withColumns(
        {
            **{each: F.last(each, ignorenulls=True).over(so_far(in_order)) for each in SOURCE},
            "held": F.coalesce(F.last(keeps).over(before(in_order)), F.lit(0)),
            "round": F.count_if(finished).over(before(in_order)),
        }
    )
    told = known.withColumns(
        {
            "begins": started & _another(("round", *SOURCE), in_order),
            "moves": started & _another(("round", "leader"), in_order),
        }
    )
    return told.where("leader is not null").withColumns(
        {
            "download": F.count_if("begins").over(so_far(in_order)),
            "at_leader": F.count_if("moves").over(so_far(in_order)),
        }
    )


def _another(columns: tuple[str, ...], in_order: WindowSpec) -> Column:
    """Whether the row before has other values. True for the first row of all, too."""
    here = F.struct(*columns)
    return ~here.eqNullSafe(F.lag(here).over(in_order))


def downloads(tables: Tables) -> DataFrame:
    """Columns: run, node, leader, end_offset, epoch, size_bytes, received_bytes, starts, resumes (starts above position
    0), resumed_at (largest such position), discarded, largest_chunk_bytes, from_us, until_us, finished.
    """
    chunk, start = F.col("what") == CHUNK, F.col("what") == STARTED
    chunk_bytes = F.when(chunk, F.col("bytes")).otherwise(0)
    resumed = start & (F.col("position") > 0)
    return (
        tables.once(steps)
        .groupBy("run", "node", "download", *SOURCE)
        .agg(
            F.max("size").alias("size_bytes"),
            F.sum(chunk_bytes).alias("received_bytes"),
            F.count_if(start).alias("starts"),
            F.count_if(resumed).alias("resumes"),
            F.max(F.when(resumed, F.col("position")).otherwise(0)).alias("resumed_at"),
            F.count_if(F.col("what") == DISCARDED).alias("discarded"),
            F.max(chunk_bytes).alias("largest_chunk_bytes"),
            F.min("at_us").alias("from_us"),
            F.max("at_us").alias("until_us"),
            F.max(F.col("what") == FINISHED).alias("finished"),
        )
        .drop("download")
    )


def transform(tables: Tables) -> DataFrame:
    return tables.once(downloads)
