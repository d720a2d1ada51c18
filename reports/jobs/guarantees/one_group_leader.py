"""one-group-leader, as far as a group's members tell: a generation gives one partition to two of them.

A generation has one leader, which makes one assignment. Members hear of it only when it was written to the group's log,
so its number is not used again, also by another coordinator. The simulator also compares the leaders that coordinators
write.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    given = tables.memberships.where("event = 'assigned' and generation >= 0")
    in_time = Window.partitionBy("run", "group", "generation", "topic", "partition").orderBy("at_us", "process")
    both = given.withColumn("first", F.first("process").over(in_time)).where("process != first")
    detail = sentence(
        "In generation %s of group %s the partition was given to %s and to %s.",
        "generation",
        "group",
        "first",
        "process",
    )
    return anomalies(both, detail)


JUDGED = Judging(
    "one-group-leader",
    needs=("memberships",),
    evidence="partitions_given",
    unit="partitions given to members",
    find=transform,
)
