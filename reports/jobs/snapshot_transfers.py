"""Snapshot downloads as the nodes that fetched them noted them: one row for each snapshot from each leader.

A download that was cut, or whose node was killed, and then went on is one download with several starts. That holds also
if it threw away in between what it held. It ends when the snapshot is whole, or when the node begins another snapshot
or turns to another leader.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.jobs.notes import notes, number, text
from reports.read_tables import Tables

STARTED, CHUNK, FINISHED, DISCARDED = "download_started", "download_chunk", "download_finished", "download_discarded"
SOURCE = ("leader", "end_offset", "epoch")


def steps(tables: Tables) -> DataFrame:
    """Each note of a download with its ``SOURCE`` and numbers that tell downloads apart: ``round`` (up to a whole
    snapshot), ``at_leader`` (spent with one leader) and ``download``. ``held`` is the number of bytes kept
    before it, by the notes. ``begins`` is true if the note before has another source."""
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
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    started, chunk = F.col("what") == STARTED, F.col("what") == CHUNK
    keeps = F.when(started, F.col("position")).when(chunk, F.col("position") + F.col("bytes")).otherwise(0)
    finished = (F.col("what") == FINISHED).cast("long")
    known = rows.select(
        *(each for each in rows.columns if each not in SOURCE),
        *(F.last(each, ignorenulls=True).over(so_far).alias(each) for each in SOURCE),
        F.coalesce(F.last(keeps).over(before), F.lit(0)).alias("held"),
        F.coalesce(F.sum(finished).over(before), F.lit(0)).alias("round"),
    )
    told = known.withColumns(
        {
            "begins": started & _another(("round", *SOURCE), in_order),
            "moves": started & _another(("round", "leader"), in_order),
        }
    )
    return told.where(F.col("leader").isNotNull()).withColumns(
        {
            "download": F.sum(F.col("begins").cast("long")).over(so_far),
            "at_leader": F.sum(F.col("moves").cast("long")).over(so_far),
        }
    )


def _another(columns: tuple[str, ...], in_order: WindowSpec) -> Column:
    """True for the first row of all, too."""
    here = F.struct(*(F.col(each) for each in columns))
    return ~here.eqNullSafe(F.lag(here).over(in_order))


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, node, leader, end_offset, epoch, size_bytes, received_bytes, starts, resumes (starts above position
    0), resumed_at (largest such position), discarded, largest_chunk_bytes, from_us, until_us, finished.
    """
    chunk, start = F.col("what") == CHUNK, F.col("what") == STARTED
    resumed = start & (F.col("position") > 0)
    return (
        tables.once("transfer steps", steps)
        .groupBy("run", "node", "download", *SOURCE)
        .agg(
            F.max("size").alias("size_bytes"),
            F.coalesce(F.sum(F.when(chunk, F.col("bytes"))), F.lit(0)).alias("received_bytes"),
            F.sum(start.cast("long")).alias("starts"),
            F.sum(resumed.cast("long")).alias("resumes"),
            F.coalesce(F.max(F.when(resumed, F.col("position"))), F.lit(0)).alias("resumed_at"),
            F.sum((F.col("what") == DISCARDED).cast("long")).alias("discarded"),
            F.coalesce(F.max(F.when(chunk, F.col("bytes"))), F.lit(0)).alias("largest_chunk_bytes"),
            F.min("at_us").alias("from_us"),
            F.max("at_us").alias("until_us"),
            F.max((F.col("what") == FINISHED).cast("long")).alias("finished"),
        )
        .drop("download")
    )
