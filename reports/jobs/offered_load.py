"""Offered, sent and completed operations per second, and how late the generator was.

The workers' own counts (LOAD) say it. In a run without them the operations of the schedule are counted; the final read
after the load is not one of them.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables

_COUNTS = ("offered", "sent", "completed", "failed")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, second, offered, sent, completed, failed, max_slip_us, cpu_permille (busiest worker, or -1)."""
    counted = [run for run, name in tables.present if name == "load"]
    columns = ["run", "second", *_COUNTS, "max_slip_us", "cpu_permille"]
    rows = tables.load.select(*columns).unionByName(_from_operations(tables, counted).select(*columns))
    sums = [F.sum(name).alias(name) for name in _COUNTS]
    worst = [F.max(name).alias(name) for name in ("max_slip_us", "cpu_permille")]
    return rows.groupBy("run", "second").agg(*sums, *worst)


def _from_operations(tables: Tables, counted_runs: list[int]) -> DataFrame:
    scheduled = tables.operations.where(~F.col("run").isin(sorted(counted_runs)) & F.col("f").isin("fetch", "produce"))
    slip = F.col("invoke_us") - F.col("intended_us")
    ended = F.when(F.col("type") == "ok", "completed").otherwise("failed")
    marks = F.array(
        F.struct(F.col("intended_us").alias("at_us"), F.lit("offered").alias("what"), F.lit(0).alias("slip")),
        F.struct(F.col("invoke_us").alias("at_us"), F.lit("sent").alias("what"), slip.alias("slip")),
        F.struct(F.col("complete_us").alias("at_us"), ended.alias("what"), F.lit(0).alias("slip")),
    )
    events = scheduled.select("run", F.explode(marks).alias("e")).select(
        "run", F.floor(F.col("e.at_us") / 1_000_000).cast("long").alias("second"), "e.what", "e.slip"
    )
    counts = [F.sum((F.col("what") == name).cast("long")).alias(name) for name in _COUNTS]
    summed = events.groupBy("run", "second").agg(*counts, F.max("slip").cast("long").alias("max_slip_us"))
    return summed.withColumn("cpu_permille", F.lit(-1).cast("long"))
