"""Time without an active controller: from the moment at which one was lost until the next took office.

A controller is lost when its process ends, when it resigns, or when a fault begins on its node or on a link between
nodes that is still in force when its successor takes office. If none of these is known, the last line that it traced
before its successor took office counts. For clients the time ends when the successor accepts the first admin request.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.jobs.notes import CONTROLLER_ACTIVATED, LEADER_RESIGNED, notes, number
from reports.read_tables import Tables

ADMIN = ("create_topics", "delete_topics", "alter_configs", "update_features")
RESIGNED = "resigned"
ENDS_A_PROCESS = ("node_killed", "node_powered_off", "node_terminated")
_SLACK_US = 1_000_000
"""A fault that healed no longer ago than this still explains why there is another controller."""


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, epoch, node, lost_us, cause (a fault's name, RESIGNED or empty), next_node, next_epoch, active_us,
    accepted_us (null: no request was accepted after it)."""
    in_time = Window.partitionBy("run").orderBy("epoch", "at_us")
    reigns = notes(tables, CONTROLLER_ACTIVATED).select("run", "node", "at_us", number("epoch"))
    handed = reigns.select(
        "run",
        "epoch",
        "node",
        "at_us",
        F.lead("at_us").over(in_time).alias("active_us"),
        F.lead("node").over(in_time).alias("next_node"),
        F.lead("epoch").over(in_time).alias("next_epoch"),
    ).where(F.col("active_us").isNotNull())
    lost = handed.join(_ends(tables), ["run", "node"]).where(
        F.col("ended_us").between(F.col("at_us"), F.col("active_us"))
        & (F.col("for_good") | (F.col("until_us") >= F.col("active_us") - _SLACK_US))
    )
    found = lost.groupBy("run", "epoch", "node").agg(F.min(F.struct("ended_us", "cause")).alias("end"))
    lines = _last_lines(tables, handed)
    known = handed.join(found, ["run", "epoch", "node"], "left").join(lines, ["run", "epoch"], "left")
    ended_us = F.coalesce("end.ended_us", "last_us", "active_us")
    done = tables.operations.where(F.col("f").isin(*ADMIN) & (F.col("type") == "ok")).select("run", "complete_us")
    failovers = known.select(
        "run",
        "epoch",
        "node",
        ended_us.alias("lost_us"),
        F.coalesce("end.cause", F.lit("")).alias("cause"),
        "next_node",
        "next_epoch",
        "active_us",
    )
    later = (F.col("d.run") == F.col("f.run")) & (F.col("d.complete_us") >= F.col("f.active_us"))
    return (
        failovers.alias("f")
        .join(done.alias("d"), later, "left")
        .groupBy(*(F.col(f"f.{name}") for name in failovers.columns))
        .agg(F.min("d.complete_us").alias("accepted_us"))
    )


def _ends(tables: Tables) -> DataFrame:
    """When a node may have lost its office: run, node, ended_us, until_us, cause, for_good."""
    resigned = notes(tables, LEADER_RESIGNED).select(
        "run",
        "node",
        F.col("at_us").alias("ended_us"),
        F.col("at_us").alias("until_us"),
        F.lit(RESIGNED).alias("cause"),
        F.lit(True).alias("for_good"),
    )
    on_nodes = F.col("kind").startswith("node_") | (
        F.col("kind").startswith("link_") & ~F.contains("target", F.lit("client"))
    )
    named = F.array_distinct(F.regexp_extract_all("target", F.lit("node-([0-9]+)"), F.lit(1)))
    hits = (
        tables.faults.where(on_nodes)
        .withColumn("named", F.explode(named))
        .select(
            "run",
            F.col("named").cast("long").alias("node"),
            F.col("at_us").alias("ended_us"),
            "until_us",
            F.col("name").alias("cause"),
            F.col("kind").isin(*ENDS_A_PROCESS).alias("for_good"),
        )
    )
    return resigned.unionByName(hits)


def _last_lines(tables: Tables, handed: DataFrame) -> DataFrame:
    """The last note of the node that lost its office before its successor took it: run, epoch, last_us."""
    lines = tables.notes.select("run", "node", F.col("at_us").alias("line_us"))
    spans = handed.select("run", "epoch", "node", "at_us", "active_us")
    mine = lines.join(F.broadcast(spans), ["run", "node"]).where(
        F.col("line_us").between(F.col("at_us"), F.col("active_us"))
    )
    return mine.groupBy("run", "epoch").agg(F.max("line_us").alias("last_us"))
