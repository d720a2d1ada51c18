"""one-partition-leader-per-epoch: two nodes led a partition in one leader epoch."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import REPLICATION, Judging
from reports.jobs.leadership import changes
from reports.read_tables import Tables

NAME = "one-partition-leader-per-epoch"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    led = tables.once("leadership", changes).where(F.col("leader_epoch").isNotNull())
    number_to_text = F.transform(F.sort_array(F.collect_set("node")), lambda one: one.cast("string"))
    clashes = (
        led.groupBy("run", "partition", "leader_epoch")
        .agg(
            F.count_distinct("node").alias("leaders"),
            F.max("at_us").alias("at_us"),
            F.array_join(number_to_text, ", ").alias("who"),
            F.max_by("node", "at_us").alias("last"),
        )
        .where(F.col("leaders") > 1)
    )
    detail = sentence("Nodes %s all led %s in leader epoch %s.", "who", "partition", "leader_epoch")
    named = F.format_string("node-%s", F.col("last").cast("string"))
    return anomalies(
        clashes,
        NAME,
        detail,
        at_us="at_us",
        topic=F.regexp_extract("partition", r"^(.*)-\d+$", 1),
        partition=F.regexp_extract("partition", r"-(\d+)$", 1).cast("long"),
        offset=-1,
        process=named,
        index=-1,
    )


JUDGED = Judging(
    NAME,
    needs=("trace",),
    evidence="partition_leaderships",
    unit="leaderships of replicated partitions begun",
    find=transform,
    about=REPLICATION,
)
