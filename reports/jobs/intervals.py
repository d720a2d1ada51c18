"""Interval algebra on data frames. The jobs work on runs of records, never on single records.

Intervals are closed, [first, last], in the columns ``first`` and ``last``. Two intervals are related only if their
columns ``keys`` are equal.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import before, so_far
from reports.read_tables import lies_in_one_place, together

CHUNK: Final = 1024
"""Intervals are compared only with those that touch the same block of this many numbers. So the cost grows with the sum
of both and not with their product."""


def merged(frame: DataFrame, keys: Sequence[str], first: str, last: str) -> DataFrame:
    """Unions of overlapping or adjacent intervals, as ``keys``, ``first``, ``last``. It costs one shuffle and one sort.

    Intervals of equal start are combined first, because every fetcher reads the same records.
    """
    distinct = together(frame, *keys).groupBy(*keys, F.col(first).alias("first")).agg(F.max(last).alias("last"))
    in_order = Window.partitionBy(*keys).orderBy("first")
    reached = distinct.withColumn("reached", F.max("last").over(before(in_order)))
    begins = F.count_if(F.expr("reached is null or first > reached + 1"))
    islands = reached.withColumn("island", begins.over(so_far(in_order))).groupBy(*keys, "island")
    return islands.agg(F.min("first").alias("first"), F.max("last").alias("last")).drop("island")


def subtracted(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The parts of ``left`` that ``right`` does not cover. Both must be merged already. This is a sweep over their
    bounds."""
    bounds = _bounds(left, keys, 1, 0).union(_bounds(right, keys, 0, 1))
    steps = together(bounds, *keys).groupBy(*keys, "at").agg(F.sum("left").alias("left"), F.sum("right").alias("right"))
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
    """Return where intervals begin or end (``at``), and the change of their number there on the left and on the
    right."""
    begin = frame.select(*keys, F.col("first").alias("at"), F.lit(left).alias("left"), F.lit(right).alias("right"))
    end = frame.select(*keys, F.col("last") + 1, F.lit(-left), F.lit(-right))
    return begin.union(end)


def meeting(
    left: DataFrame, right: DataFrame, keys: Sequence[str], here: tuple[str, str], there: tuple[str, str]
) -> DataFrame:
    """Join the rows of equal keys whose intervals overlap. ``here`` and ``there`` name the ends of the intervals, left
    and right. Large histories are cut into chunks (CHUNK); each pair is found in the first chunk that it shares."""
    overlap = F.expr(f"{here[0]} <= {there[1]} and {here[1]} >= {there[0]}")
    if lies_in_one_place(left):
        return left.join(right, [*keys]).where(overlap)
    first_shared = F.expr(f"chunk = greatest({here[0]}, {there[0]}) div {CHUNK}")
    both = _chunked(left, here).join(_chunked(right, there), [*keys, "chunk"])
    return both.where(overlap & first_shared).drop("chunk")


def _chunked(frame: DataFrame, ends: tuple[str, str]) -> DataFrame:
    chunks = F.explode(F.expr(f"sequence({ends[0]} div {CHUNK}, {ends[1]} div {CHUNK})"))
    return frame.withColumn("chunk", chunks)


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
