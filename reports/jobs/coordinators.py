"""Moves of a group's coordinator, as its members saw them.

A move lasts from the last commit that one node acknowledged to the first commit that the next node acknowledged."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.commits import requests
from reports.jobs.config import JobConfig
from reports.jobs.notes import COORDINATOR_LOADED, notes, number
from reports.read_tables import Tables

MOST_MOVES = 200


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, group, node, next_node, last_us, first_us, failed (commits in between that were not acknowledged),
    loaded_us, records (the next node had loaded a partition of the offsets by then; null: no such note)."""
    asked = tables.once("commit_requests", requests).where(F.col("kind") == "commit")
    each = asked.groupBy("run", "group", "process", "index", "node").agg(
        F.max("at_us").alias("at_us"), F.max((F.col("end") == "ok").cast("int")).alias("ok")
    )
    in_time = Window.partitionBy("run", "group").orderBy("at_us", "process", "index")
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    last = F.last(F.when(F.col("ok") == 1, F.struct("node", "at_us")), ignorenulls=True).over(before)
    failed = F.sum(1 - F.col("ok")).over(in_time)
    then = F.last(F.when(F.col("ok") == 1, F.col("failures")), ignorenulls=True).over(before)
    steps = each.withColumn("failures", failed).withColumn("last", last).withColumn("then", then)
    moved = steps.where((F.col("ok") == 1) & (F.col("last.node") != F.col("node")) & (F.col("node") >= 0))
    moves = moved.select(
        "run",
        "group",
        F.col("last.node").alias("node"),
        F.col("node").alias("next_node"),
        F.col("last.at_us").alias("last_us"),
        F.col("at_us").alias("first_us"),
        (F.col("failures") - F.col("then")).alias("failed"),
    )
    place = F.row_number().over(Window.partitionBy("run").orderBy("first_us", "group"))
    return _with_loads(moves.withColumn("n", place).where(F.col("n") <= MOST_MOVES).drop("n"), tables)


def _with_loads(moves: DataFrame, tables: Tables) -> DataFrame:
    loads = notes(tables, COORDINATOR_LOADED).select(
        F.col("run").alias("l_run"), F.col("node").alias("l_node"), F.col("at_us").alias("l_us"), number("records")
    )
    same = (
        (F.col("run") == F.col("l_run"))
        & (F.col("next_node") == F.col("l_node"))
        & F.col("l_us").between(F.col("last_us"), F.col("first_us"))
    )
    joined = moves.join(loads, same, "left")
    return joined.groupBy(*moves.columns).agg(F.max("l_us").alias("loaded_us"), F.max("records").alias("records"))
