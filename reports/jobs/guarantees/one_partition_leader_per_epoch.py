"""one-partition-leader-per-epoch: two nodes led a partition in one leader epoch."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.guarantees.one_leader_per_epoch import led_by_several
from reports.jobs.measurements.leadership import changes
from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import node_name
from reports.jobs.shared.judging import REPLICATION, Judging
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    led = tables.once(changes).where("leader_epoch is not null")
    led = led.groupBy("run", "partition", "leader_epoch", "node").agg(F.min("at_us").alias("at_us"))
    detail = sentence("Nodes %s all led %s in leader epoch %s.", "who", "partition", "leader_epoch")
    return anomalies(
        led_by_several(led, "partition", "leader_epoch"),
        detail,
        topic=F.regexp_extract("partition", r"^(.*)-\d+$", 1),
        partition=F.regexp_extract("partition", r"-(\d+)$", 1),
        process=node_name("second"),
    )


JUDGED = Judging(
    "one-partition-leader-per-epoch",
    needs=("trace",),
    evidence="partition_leaderships",
    unit="leaderships of replicated partitions begun",
    find=transform,
    about=REPLICATION,
)
