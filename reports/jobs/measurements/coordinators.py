"""Moves of a group's coordinator, as its members saw them.

A move lasts from the last commit that one node acknowledged to the first commit that the next node acknowledged."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.commits import requests
from reports.jobs.shared.expressions import before, first_rows
from reports.jobs.shared.notes import COORDINATOR_LOADED, notes, number
from reports.read_tables import Tables

MOST_MOVES = 200


def transform(tables: Tables) -> DataFrame:
    """Columns: run, group, node, next_node, last_us, first_us, failed (commits in between that were not acknowledged),
    loaded_us, records (the next node had loaded a partition of the offsets by then; null: no such note)."""
    asked = tables.once(requests).where("kind = 'commit'")
    each = asked.groupBy("run", "group", "process", "index", "node").agg(
        F.max("at_us").alias("at_us"), F.max(F.col("end") == "ok").alias("ok")
    )
    in_time = Window.partitionBy("run", "group").orderBy("at_us", "process", "index")
    failures = each.withColumn("failures", F.count_if(~F.col("ok")).over(in_time))
    acked = F.when(F.col("ok"), F.struct("node", "at_us", "failures"))
    steps = failures.withColumn("last", F.last(acked, ignorenulls=True).over(before(in_time)))
    moves = steps.where("ok and last.node != node and node >= 0").select(
        "run",
        "group",
        "last.node",
        F.col("node").alias("next_node"),
        F.col("last.at_us").alias("last_us"),
        F.col("at_us").alias("first_us"),
        (F.col("failures") - F.col("last.failures")).alias("failed"),
    )
    in_order = Window.partitionBy("run").orderBy("first_us", "group")
    return _with_loads(first_rows(moves, MOST_MOVES, in_order).drop("n"), tables)


def _with_loads(moves: DataFrame, tables: Tables) -> DataFrame:
    loads = notes(tables, COORDINATOR_LOADED).select("run", "node", "at_us", number("records"))
    meanwhile = F.expr(
        "load.run = move.run and load.node = move.next_node and load.at_us between move.last_us and move.first_us"
    )
    joined = moves.alias("move").join(loads.alias("load"), meanwhile, "left")
    return joined.groupBy(*(f"move.{name}" for name in moves.columns)).agg(
        F.max("at_us").alias("loaded_us"), F.max("records").alias("records")
    )
