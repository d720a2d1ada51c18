"""one-leader-per-epoch: two nodes were elected, or took up the controller's office, in one epoch."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.jobs.notes import CONTROLLER_ACTIVATED, LEADER_ELECTED, notes, number
from reports.read_tables import Tables

NAME = "one-leader-per-epoch"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    led = notes(tables, LEADER_ELECTED, CONTROLLER_ACTIVATED).select("run", "node", "at_us", number("epoch"))
    by_node = led.groupBy("run", "epoch", "node").agg(F.min("at_us").alias("at_us"))
    number_to_text = F.transform(F.sort_array(F.collect_set("node")), lambda one: one.cast("string"))
    leaders = (
        by_node.groupBy("run", "epoch")
        .agg(
            F.count(F.lit(1)).alias("leaders"),
            F.max("at_us").alias("at_us"),
            F.array_join(number_to_text, ", ").alias("who"),
            F.max_by("node", "at_us").alias("last"),
        )
        .where(F.col("leaders") > 1)
    )
    detail = sentence("Nodes %s all led the quorum in epoch %s.", "who", "epoch")
    named = F.format_string("node-%s", F.col("last").cast("string"))
    return anomalies(
        leaders,
        NAME,
        detail,
        at_us="at_us",
        topic=F.lit("__cluster_metadata"),
        partition=0,
        offset=-1,
        process=named,
        index=-1,
    )


JUDGED = Judging(
    NAME,
    needs=("trace",),
    evidence="leader_elections",
    unit="elections won",
    find=transform,
)
