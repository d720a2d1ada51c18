"""Time without an active controller: from the moment at which one was lost until the next took office.

A controller is lost when its process ends, when it resigns, or when a fault begins on its node or on a link between
nodes that is still in force when its successor takes office. If none of these is known, the last line that it traced
before its successor took office counts. For clients the time ends when the successor accepts the first admin request.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.notes import CONTROLLER_ACTIVATED, LEADER_RESIGNED, notes, number
from reports.read_tables import Tables

ADMIN = ("create_topics", "delete_topics", "alter_configs", "update_features")
RESIGNED = "resigned"
ENDS_A_PROCESS = ("node_killed", "node_powered_off", "node_terminated")
_SLACK_US = 1_000_000
"""A fault that healed no longer ago than this still explains why there is another controller."""


def transform(tables: Tables) -> DataFrame:
    """Columns: run, epoch, node, lost_us, cause (a fault's name, RESIGNED or empty), next_node, next_epoch, active_us,
    accepted_us (null: no request was accepted after it)."""
    in_time = Window.partitionBy("run").orderBy("epoch", "at_us")
    reigns = notes(tables, CONTROLLER_ACTIVATED).select("run", "node", "at_us", number("epoch"))
    successor = {"active_us": "at_us", "next_node": "node", "next_epoch": "epoch"}
    handed = reigns.withColumns({name: F.lead(of).over(in_time) for name, of in successor.items()}).where(
        "active_us is not null"
    )
    ended = handed.join(_ends(tables), ["run", "node"]).where(
        f"ended_us between at_us and active_us and (for_good or until_us >= active_us - {_SLACK_US})"
    )
    causes = ended.groupBy("run", "epoch", "node").agg(F.min(F.struct("ended_us", "cause")).alias("end"))
    known = handed.join(causes, ["run", "epoch", "node"], "left").join(
        _last_lines(tables, handed), ["run", "epoch"], "left"
    )
    failovers = known.select(
        "run",
        "epoch",
        "node",
        F.coalesce("end.ended_us", "last_us", "active_us").alias("lost_us"),
        F.coalesce("end.cause", F.lit("")).alias("cause"),
        *successor,
    )
    accepted = tables.operations.where(F.col("f").isin(*ADMIN) & (F.col("type") == "ok")).select("run", "complete_us")
    later = F.expr("a.run = f.run and a.complete_us >= f.active_us")
    return (
        failovers.alias("f")
        .join(accepted.alias("a"), later, "left")
        .groupBy(*(f"f.{name}" for name in failovers.columns))
        .agg(F.min("complete_us").alias("accepted_us"))
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
    named = F.array_distinct(F.regexp_extract_all("target", F.lit("node-([0-9]+)"), F.lit(1))).cast("array<bigint>")
    on_nodes = "startswith(kind, 'node_') or startswith(kind, 'link_') and not contains(target, 'client')"
    hits = tables.faults.where(on_nodes).select(
        "run",
        F.explode(named).alias("node"),
        F.col("at_us").alias("ended_us"),
        "until_us",
        F.col("name").alias("cause"),
        F.col("kind").isin(*ENDS_A_PROCESS).alias("for_good"),
    )
    return resigned.unionByName(hits)


def _last_lines(tables: Tables, handed: DataFrame) -> DataFrame:
    """The last note of the node that lost its office before its successor took it: run, epoch, last_us."""
    lines = tables.notes.select("run", "node", F.col("at_us").alias("line_us"))
    mine = lines.join(F.broadcast(handed), ["run", "node"]).where("line_us between at_us and active_us")
    return mine.groupBy("run", "epoch").agg(F.max("line_us").alias("last_us"))
