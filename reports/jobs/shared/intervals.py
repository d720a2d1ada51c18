"""Interval algebra on data frames. The jobs work on runs of records, never on single records.

Intervals are closed, [first, last], in the columns ``first`` and ``last``. Two intervals are related only if their
columns ``keys`` are equal.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import before, so_far


def merged(frame: DataFrame, keys: Sequence[str], first: str, last: str) -> DataFrame:
    """Unions of overlapping or adjacent intervals, as ``keys``, ``first``, ``last``. It costs one shuffle and one sort.

    Intervals of equal start are combined before the shuffle, because every fetcher reads the same records.
    """
    distinct = frame.groupBy(*keys, F.col(first).alias("first")).agg(F.max(last).alias("last"))
    in_order = Window.partitionBy(*keys).orderBy("first")
    reached = distinct.withColumn("reached", F.max("last").over(before(in_order)))
    begins = F.count_if(F.expr("reached is null or first > reached + 1"))
    islands = reached.withColumn("island", begins.over(so_far(in_order))).groupBy(*keys, "island")
    return islands.agg(F.min("first").alias("first"), F.max("last").alias("last")).drop("island")


def subtracted(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The parts of ``left`` that ``right`` does not cover. Both must be merged already. This is a sweep over their
    bounds."""
    bounds = _bounds(left, keys, 1, 0).union(_bounds(right, keys, 0, 1))
    steps = bounds.groupBy(*keys, "at").agg(F.sum("left").alias("left"), F.sum("right").alias("right"))
    in_order = Window.partitionBy(*keys).orderBy("at")
    swept = steps.withColumns(
        {
            "in_left": F.sum("left").over(so_far(in_order)),
            "in_right": F.sum("right").over(so_far(in_order)),
            "last": F.lead("at").over(in_order) - 1,
        }
    )
    return swept.where("in_left > 0 and in_right = 0").select(*keys, F.col("at").alias("first"), "last")


def _bounds(frame: DataFrame, keys: Sequence[str], left: int, right: int) -> DataFrame:
    """Where intervals begin or end (``at``), and by how many more or fewer lie there on the left and on the right."""
    begin = frame.select(*keys, F.col("first").alias("at"), F.lit(left).alias("left"), F.lit(right).alias("right"))
    end = frame.select(*keys, F.col("last") + 1, F.lit(-left), F.lit(-right))
    return begin.union(end)


def overlaps(frame: DataFrame, keys: Sequence[str], tag: Sequence[str]) -> DataFrame:
    """Each interval that begins inside an earlier one of the same keys, with that one's columns ``tag`` as ``other_*``.

    Columns: keys, first, last (of the shared part), tag, other_<tag>. Adjacent intervals do not overlap.
    """
    in_order = Window.partitionBy(*keys).orderBy("first", "last", *tag)
    reaching = frame.withColumn("reach", F.max(F.struct("last", *tag)).over(before(in_order)))
    return reaching.where("first <= reach.last").select(
        *keys,
        "first",
        F.least("last", "reach.last").alias("last"),
        *tag,
        *(F.col(f"reach.{name}").alias(f"other_{name}") for name in tag),
    )
