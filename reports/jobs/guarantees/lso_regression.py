"""lso-regression: a node tells a smaller last stable offset than it had told before as the same leader (X-4).

Only answers to fetches that named the leader epoch count, because such a fetch is refused by a leader of another epoch.
They have an order if one had come before the other was asked for. A new leader may show less, and so may a follower, so
each node and epoch is judged by itself.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import PARTITION, before, with_operation
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT
from reports.read_tables import Tables

_LEADER = [*PARTITION, "node", "leader_epoch"]


def transform(tables: Tables) -> DataFrame:
    told = tables.positions.where("last_stable_offset >= 0 and leader_epoch >= 0 and error is null")
    answers = with_operation(told, tables, "node", "invoke_us", "complete_us").where("node >= 0")
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
    known = both.withColumn("known", F.max("shown").over(before(in_time)))
    back = known.where("is_end = 0 and last_stable_offset < known")
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
