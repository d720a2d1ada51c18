"""one-leader-per-epoch: two nodes were elected, or took up the controller's office, in one epoch."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import metadata_log_anomalies, sentence
from reports.jobs.shared.expressions import node_name
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import CONTROLLER_ACTIVATED, LEADER_ELECTED, notes, number
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
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
    who = F.array_join(F.transform("nodes", lambda one: one.cast("string")), ", ")
    second = {"at_us": F.expr("get(claims, 1).at_us"), "second": F.expr("get(claims, 1).node"), "who": who}
    return claims.where("size(nodes) > 1").withColumns(second)


JUDGED = Judging(
    "one-leader-per-epoch",
    needs=("trace",),
    evidence="leader_elections",
    unit="elections won",
    find=transform,
)
