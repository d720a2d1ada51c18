"""Leaders of partitions and of the quorum: one-leader-per-epoch, one-partition-leader-per-epoch, and failovers.

The measurements show leaders and in-sync replicas of replicated partitions over time, and for how long there was no
active controller. The source is the notes of the leaders.
"""

from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import (
    CONTROLLER_ACTIVATED,
    ISR_CHANGED,
    LEADER_ELECTED,
    LEADER_RESIGNED,
    LEADS,
    first_rows,
    node_name,
    notes,
    number,
    second_of,
    text,
)
from reports.jobs.guarantee_job import REPLICATION, GuaranteeJob, anomalies, metadata_log_anomalies, sentence
from reports.read_tables import Tables

MAX_PARTITIONS = 12
MAX_CHANGES = 400
"""Limits the changes of one partition on the page."""


def leader_changes(tables: Tables) -> DataFrame:
    """Columns: run, partition (topic-index), at_us, node (the leader), what, leader_epoch (null: isr_changed), isr."""
    noted = notes(tables, LEADS, ISR_CHANGED)
    return noted.select(
        "run", text("partition"), "at_us", "node", "what", number("leader_epoch"), text("isr"), "incarnation", "seq"
    )


def most_changed_partitions(tables: Tables) -> DataFrame:
    """The changes of the partitions that changed most. Columns: those of ``changes``, and ``place`` (1: changed
    most)."""
    rows = tables.once(leader_changes)
    counted = rows.groupBy("run", "partition").agg(F.count("*").alias("changes"))
    in_order = Window.partitionBy("run").orderBy(F.desc("changes"), "partition")
    most = first_rows(counted, MAX_PARTITIONS, in_order).withColumnRenamed("n", "place")
    shown = first_rows(rows.join(F.broadcast(most), ["run", "partition"]), MAX_CHANGES, _in_time())
    return shown.select("run", "place", "n", "partition", "at_us", "node", "what", "leader_epoch", "isr")


def leader_changes_by_second(tables: Tables) -> DataFrame:
    """Columns: run, second, elected (leaders that took over), grown, shrunk (in-sync sets), of all partitions."""
    size = F.size(F.split("isr", ","))
    sizes = tables.once(leader_changes).withColumns({"size": size, "size_before": F.lag(size).over(_in_time())})
    return sizes.groupBy("run", second_of("at_us").alias("second")).agg(
        F.count_if(F.col("what") == LEADS).alias("elected"),
        F.count_if(F.expr("size > size_before")).alias("grown"),
        F.count_if(F.expr("size < size_before")).alias("shrunk"),
    )


def _in_time() -> WindowSpec:
    return Window.partitionBy("run", "partition").orderBy("at_us", "node", "incarnation", "seq")


@GuaranteeJob(
    needs=("trace",),
    evidence="leader_elections",
    unit="elections won",
)
def one_leader_per_epoch(tables: Tables) -> DataFrame:
    """one-leader-per-epoch: two nodes were elected, or took up the controller's office, in one epoch."""
    led = notes(tables, LEADER_ELECTED, CONTROLLER_ACTIVATED).select("run", "node", "at_us", number("epoch"))
    by_node = led.groupBy("run", "epoch", "node").agg(F.min("at_us").alias("at_us"))
    detail = sentence("Nodes %s all led the quorum in epoch %s.", "who", "epoch")
    return metadata_log_anomalies(led_by_several(by_node, "epoch"), detail, process=node_name("second"))


def led_by_several(led: DataFrame, *office: str) -> DataFrame:
    """The offices that several nodes held. ``led`` has one row for each node and office.

    Columns: run, office, at_us (of the second claim), who (the nodes), second (the node that made it).
    """
    claims = led.groupBy("run", *office).agg(
        F.sort_array(F.collect_list(F.struct("at_us", "node"))).alias("claims"),
        F.sort_array(F.collect_set("node")).alias("nodes"),
    )
    who = F.array_join(F.transform("nodes", lambda node: node.cast("string")), ", ")
    second = {"at_us": F.expr("get(claims, 1).at_us"), "second": F.expr("get(claims, 1).node"), "who": who}
    return claims.where("size(nodes) > 1").withColumns(second)


@GuaranteeJob(
    needs=("trace",),
    evidence="partition_leaderships",
    unit="leaderships of replicated partitions begun",
    about=REPLICATION,
)
def one_partition_leader_per_epoch(tables: Tables) -> DataFrame:
    """one-partition-leader-per-epoch: two nodes led a partition in one leader epoch."""
    led = tables.once(leader_changes).where("leader_epoch is not null")
    led = led.groupBy("run", "partition", "leader_epoch", "node").agg(F.min("at_us").alias("at_us"))
    detail = sentence("Nodes %s all led %s in leader epoch %s.", "who", "partition", "leader_epoch")
    return anomalies(
        led_by_several(led, "partition", "leader_epoch"),
        detail,
        topic=F.regexp_extract("partition", r"^(.*)-\d+$", 1),
        partition=F.regexp_extract("partition", r"-(\d+)$", 1),
        process=node_name("second"),
    )


ADMIN = ("create_topics", "delete_topics", "alter_configs", "update_features")
RESIGNED = "resigned"
ENDS_A_PROCESS = ("node_killed", "node_powered_off", "host_lost", "node_terminated")
_SLACK_US = 1_000_000
"""A fault that healed no longer ago than this still explains why there is another controller."""


def controller_failovers(tables: Tables) -> DataFrame:
    """Time without an active controller: from the moment at which one was lost until the next took office.

    A controller is lost when its process ends, when it resigns, or when a fault begins on its node or on a link between
    nodes that is still in force when its successor takes office. If none of these is known, the last line that it
    traced before its successor took office counts. For clients the time ends when the successor accepts the first admin
    request.

    Columns: run, epoch, node, lost_us, cause (a fault's name, RESIGNED or empty), next_node, next_epoch, active_us,
    accepted_us (null: no request was accepted after it).
    """
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
    """Return the times at which a node may have lost its office. Columns: run, node, ended_us, until_us, cause,
    for_good."""
    resigned = notes(tables, LEADER_RESIGNED).select(
        "run",
        "node",
        F.col("at_us").alias("ended_us"),
        F.col("at_us").alias("until_us"),
        F.lit(RESIGNED).alias("cause"),
        F.lit(True).alias("for_good"),
    )
    named = F.array_distinct(F.regexp_extract_all("target", F.lit("node-([0-9]+)"), F.lit(1))).cast("array<bigint>")
    on_links = "startswith(kind, 'link_') and not contains(target, 'client')"
    hits = tables.faults.where(f"startswith(kind, 'node_') or kind = 'host_lost' or {on_links}").select(
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
