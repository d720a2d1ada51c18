"""lso-regression: a node tells a smaller last stable offset than it had told before as the same leader (X-4).

Only responses to fetches that named the leader epoch count, because a leader of another epoch refuses such a fetch.
They have an order if one had come before the other was requested. A new leader may show less, so each node and epoch is
judged by itself. A follower, which serves the consumers of its rack (KIP-392), may show less after a restart: it knows
the high watermark of its checkpoint only. So nodes are excluded if the trace names another leader of that epoch.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import PARTITION, before, with_operation
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import LEADS, notes, number, text
from reports.jobs.shared.transactions import ABOUT
from reports.read_tables import Tables

_LEADER = [*PARTITION, "node", "leader_epoch"]


def transform(tables: Tables) -> DataFrame:
    told = tables.positions.where("last_stable_offset >= 0 and leader_epoch >= 0 and error is null")
    answers = with_operation(told, tables, "node", "invoke_us", "complete_us").where("node >= 0")
    led = notes(tables, LEADS).select("run", text("partition").alias("place"), number("leader_epoch"), "node")
    leaders = led.groupBy("run", "place", "leader_epoch").agg(F.collect_set("node").alias("leaders"))
    named = answers.withColumn("place", F.concat_ws("-", "topic", "partition"))
    known = named.join(F.broadcast(leaders), ["run", "place", "leader_epoch"], "left")
    answers = known.where("leaders is null or array_contains(leaders, node)").drop("leaders", "place")
    ends = answers.select(
        *_LEADER,
        F.col("complete_us").alias("point_us"),
        F.lit(1).alias("is_end"),
        F.col("last_stable_offset").alias("shown"),
    )
    starts = answers.withColumn("point_us", F.col("invoke_us")).withColumn("is_end", F.lit(0))
    # An answer that came in the very microsecond of the question comes after it.
    in_time = Window.partitionBy(*_LEADER).orderBy("point_us", "is_end")
    both = starts.unionByName(ends, allowMissingColumns=True)
    shown = both.withColumn("known", F.max("shown").over(before(in_time)))
    back = shown.where("is_end = 0 and last_stable_offset < known")
    detail = sentence(
        "Node %s, the leader in epoch %s, told the last stable offset %s after it had told %s.",
        "node",
        "leader_epoch",
        "last_stable_offset",
        "known",
    )
    return anomalies(back, detail, offset=F.col("last_stable_offset"))


JUDGED = Judging(
    "lso-regression",
    needs=("operations", "positions"),
    evidence="stable_offsets",
    unit="last stable offsets told",
    find=transform,
    about=ABOUT,
)
