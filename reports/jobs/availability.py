"""The times in which clients had no successful operation."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import first_rows, second_of, without_presets
from reports.read_tables import Tables

MAX_GAPS = 50


def longest_gaps(tables: Tables) -> DataFrame:
    """The longest time without a successful operation, and how soon one succeeded after each fault's end.

    The gaps are computed inside each second and then between seconds, so that no single task sorts all operations.

    The longest gaps. Columns: run, f, gap_us, from_us, until_us; at most MAX_GAPS rows per run and f.

    A gap at the end counts, up to the last operation of that kind that was sent. A gap before the first success does
    not count.
    """
    per_second = tables.once(_per_second)
    in_order = Window.partitionBy("run", "f").orderBy("second")
    last_sent = tables.operations.groupBy("run", "f").agg(F.max("invoke_us").alias("requested_us"))
    between = per_second.join(last_sent, ["run", "f"]).select(
        "run",
        "f",
        F.col("last_us").alias("from_us"),
        F.coalesce(F.lead("first_us").over(in_order), "requested_us").alias("until_us"),
    )
    inside = per_second.select("run", "f", "inner.from_us", "inner.until_us")
    gaps = between.unionByName(inside).withColumn("gap_us", F.col("until_us") - F.col("from_us")).where("gap_us > 0")
    longest = Window.partitionBy("run", "f").orderBy(F.desc("gap_us"), "from_us")
    return first_rows(gaps, MAX_GAPS, longest).select("run", "f", "gap_us", "from_us", "until_us")


def first_ok_after_faults(tables: Tables) -> DataFrame:
    """The hit of each fault after whose end it took longest until an operation succeeded, for each kind of operation.

    Columns: run, fault, hit, f, at_us, until_us, first_ok_us (null if none succeeded any more).
    """
    faults = without_presets(tables.faults).select("run", F.col("name").alias("fault"), "hit", "at_us", "until_us")
    kinds = tables.operations.select("run", "f").distinct()
    ends = faults.join(F.broadcast(kinds), "run").withColumn("second", second_of("until_us"))
    both = ends.withColumn("time_us", F.col("until_us")).unionByName(
        _ok(tables).withColumn("time_us", F.col("complete_us")), allowMissingColumns=True
    )
    until_its_end = Window.partitionBy("run", "f", "second").orderBy(F.desc("time_us"))
    within = both.withColumn("within_us", F.min("complete_us").over(until_its_end)).where("fault is not null")
    seconds = ends.select("run", "f", "second").distinct()
    known = tables.once(_per_second).select("run", "f", "second", "first_us")
    behind = Window.partitionBy("run", "f").orderBy("second").rowsBetween(1, Window.unboundedFollowing)
    later = known.join(seconds, ["run", "f", "second"], "full").select(
        "run", "f", "second", F.min("first_us").over(behind).alias("later_us")
    )
    with_next_ok = within.join(later, ["run", "f", "second"])
    with_next_ok = with_next_ok.withColumn("first_ok_us", F.coalesce("within_us", "later_us"))
    wait = F.struct(F.expr("first_ok_us is null"), F.col("first_ok_us") - F.col("until_us"))
    worst = F.max_by(F.struct("hit", "at_us", "until_us", "first_ok_us"), wait).alias("worst")
    return with_next_ok.groupBy("run", "fault", "f").agg(worst).select("run", "fault", "f", "worst.*")


def _ok(tables: Tables) -> DataFrame:
    done = tables.operations.where("type = 'ok'").select("run", "f", "complete_us")
    return done.withColumn("second", second_of("complete_us"))


def _per_second(tables: Tables) -> DataFrame:
    """Columns: run, f, second, first_us, last_us, inner (longest gap inside the second)."""
    inside = Window.partitionBy("run", "f", "second").orderBy("complete_us")
    previous = F.lag("complete_us").over(inside)
    gap = F.struct(
        (F.col("complete_us") - previous).alias("gap_us"),
        previous.alias("from_us"),
        F.col("complete_us").alias("until_us"),
    )
    steps = _ok(tables).withColumn("gap", gap)
    return steps.groupBy("run", "f", "second").agg(
        F.min("complete_us").alias("first_us"), F.max("complete_us").alias("last_us"), F.max("gap").alias("inner")
    )
