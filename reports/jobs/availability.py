"""The longest time without a successful operation, and how soon one succeeded after each fault's end.

The gaps are computed inside each second and then between seconds, so that no single task sorts all operations.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables

MOST_GAPS = 50


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """The longest gaps. Columns: run, f, gap_us, from_us, until_us; at most MOST_GAPS rows per run and f.

    A gap at the end counts, up to the last operation of that kind that was sent. A gap before the first success does
    not count.
    """
    per_second = _per_second(tables)
    in_order = Window.partitionBy("run", "f").orderBy("second")
    asked = tables.operations.groupBy("run", "f").agg(F.max("invoke_us").alias("asked_us"))
    between = per_second.join(asked, ["run", "f"]).select(
        "run",
        "f",
        F.col("last_us").alias("from_us"),
        F.coalesce(F.lead("first_us").over(in_order), F.col("asked_us")).alias("until_us"),
    )
    inside = per_second.select("run", "f", "inner.from_us", "inner.until_us")
    gaps = between.unionByName(inside).withColumn("gap_us", F.greatest(F.lit(0), F.col("until_us") - F.col("from_us")))
    longest = Window.partitionBy("run", "f").orderBy(F.desc("gap_us"), "from_us")
    ranked = gaps.where(F.col("gap_us") > 0).withColumn("n", F.row_number().over(longest))
    return ranked.where(F.col("n") <= MOST_GAPS).select("run", "f", "gap_us", "from_us", "until_us")


def first_ok_after_faults(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, fault, hit, f, at_us, until_us, first_ok_us (null if none succeeded any more)."""
    ends = tables.faults.where(~F.startswith("kind", F.lit("preset"))).select(
        "run", F.col("name").alias("fault"), "hit", "at_us", F.greatest("at_us", "until_us").alias("until_us")
    )
    kinds = tables.operations.select("run", "f").distinct()
    ends = ends.join(kinds, "run").withColumn("second", F.floor(F.col("until_us") / 1_000_000).cast("long"))
    key = ["run", "fault", "hit", "f", "at_us", "until_us", "second"]
    same = _ok(tables).join(F.broadcast(ends), ["run", "f", "second"]).where(F.col("complete_us") >= F.col("until_us"))
    near = same.groupBy(*key).agg(F.min("complete_us").alias("near_us"))
    later = _per_second(tables).select("run", "f", F.col("second").alias("later"), "first_us")
    far = (
        ends.join(later, ["run", "f"])
        .where(F.col("later") > F.col("second"))
        .groupBy(*key)
        .agg(F.min("first_us").alias("far_us"))
    )
    return (
        ends.join(near, key, "left")
        .join(far, key, "left")
        .select(*key[:-1], F.coalesce("near_us", "far_us").alias("first_ok_us"))
    )


def _ok(tables: Tables) -> DataFrame:
    done = tables.operations.where(F.col("type") == "ok").select("run", "f", "complete_us")
    return done.withColumn("second", F.floor(F.col("complete_us") / 1_000_000).cast("long"))


def _per_second(tables: Tables) -> DataFrame:
    """Columns: run, f, second, first_us, last_us, inner (longest gap inside the second)."""
    inside = Window.partitionBy("run", "f", "second").orderBy("complete_us")
    before = F.lag("complete_us").over(inside)
    gap = F.struct(
        (F.col("complete_us") - before).alias("gap_us"), before.alias("from_us"), F.col("complete_us").alias("until_us")
    )
    steps = _ok(tables).withColumn("gap", gap)
    return steps.groupBy("run", "f", "second").agg(
        F.min("complete_us").alias("first_us"), F.max("complete_us").alias("last_us"), F.max("gap").alias("inner")
    )
