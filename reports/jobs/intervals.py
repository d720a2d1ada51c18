"""Interval algebra on data frames. The jobs work on runs of records, never on single records.

Intervals are closed, [first, last], in the columns ``first`` and ``last``. Two intervals are related only if their
columns ``keys`` are equal.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def merged(frame: DataFrame, keys: Sequence[str], first: str, last: str) -> DataFrame:
    """Unions of overlapping or adjacent intervals, as ``keys``, ``first``, ``last``. It costs one shuffle and one sort.

    Intervals of equal start are combined before the shuffle, because every fetcher reads the same records.
    """
    distinct = frame.groupBy(*keys, F.col(first).alias("first")).agg(F.max(last).alias("last"))
    ordered = Window.partitionBy(*keys).orderBy("first")
    before = F.max("last").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.when(before.isNull() | (F.col("first") > before + 1), 1).otherwise(0)
    return (
        distinct.withColumn("begins", begins)
        .withColumn("island", F.sum("begins").over(ordered.rowsBetween(Window.unboundedPreceding, 0)))
        .groupBy(*keys, "island")
        .agg(F.min("first").alias("first"), F.max("last").alias("last"))
        .drop("island")
    )


def subtracted(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The parts of ``left`` that ``right`` does not cover. Both must be merged already. This is a sweep over their
    bounds."""
    bounds = _bounds(left, keys, "left", 1).unionByName(_bounds(right, keys, "right", 1))
    steps = bounds.groupBy(*keys, "at").agg(F.sum("left").alias("left"), F.sum("right").alias("right"))
    ordered = Window.partitionBy(*keys).orderBy("at")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, 0)
    return (
        steps.withColumn("in_left", F.sum("left").over(so_far))
        .withColumn("in_right", F.sum("right").over(so_far))
        .withColumn("next", F.lead("at").over(ordered))
        .where((F.col("in_left") > 0) & (F.col("in_right") == 0))
        .select(*keys, F.col("at").alias("first"), (F.col("next") - 1).alias("last"))
    )


def _bounds(frame: DataFrame, keys: Sequence[str], side: str, step: int) -> DataFrame:
    other = "right" if side == "left" else "left"
    opened = frame.select(*keys, F.col("first").alias("at"), F.lit(step).alias(side), F.lit(0).alias(other))
    closed = frame.select(*keys, (F.col("last") + 1).alias("at"), F.lit(-step).alias(side), F.lit(0).alias(other))
    return opened.unionByName(closed)


def overlaps(frame: DataFrame, keys: Sequence[str], tag: Sequence[str]) -> DataFrame:
    """Each interval that begins inside an earlier one of the same keys, with that one's columns ``tag`` as ``other_*``.

    Columns: keys, first, last (of the shared part), tag, other_<tag>. Adjacent intervals do not overlap.
    """
    ordered = Window.partitionBy(*keys).orderBy("first", "last", *tag)
    reach = F.struct("last", *tag)
    frame = frame.withColumn("reach", F.max(reach).over(ordered.rowsBetween(Window.unboundedPreceding, -1)))
    shared = frame.where(F.col("first") <= F.col("reach.last"))
    return shared.select(
        *keys,
        "first",
        F.least("last", "reach.last").alias("last"),
        *tag,
        *(F.col(f"reach.{name}").alias(f"other_{name}") for name in tag),
    )
