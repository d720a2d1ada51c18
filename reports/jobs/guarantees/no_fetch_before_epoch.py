"""no-fetch-before-epoch: a consumer fetches from a partition only once its metadata is as new as the offset's epoch.

That epoch was committed with the offset (M-10), or stored with it outside (M-13). The consumer's first fetch after it
learnt an offset is judged, by the newest metadata that it had taken until then. A client that left and came back knows
nothing, so it begins anew.
"""

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import with_operation
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables

_CLIENT = ["run", "process"]
_LEFT, _TAKEN, _LEARNT, _FETCH = range(4)
"""What can happen to a client, in the order in which it counts if it happens at the same time."""


def transform(tables: Tables) -> DataFrame:
    in_time = ("at_us", "step", "index")
    left = F.count_if(F.col("step") == _LEFT).over(Window.partitionBy(*_CLIENT).orderBy(*in_time))
    life = Window.partitionBy(*_CLIENT, "life").orderBy(*in_time)
    taken = F.max(F.when(F.col("step") == _TAKEN, F.col("metadata_epoch"))).over(life)
    steps = _steps(tables).withColumn("life", left).withColumn("had", F.coalesce(taken, F.lit(-1)))
    in_partition = Window.partitionBy(*_CLIENT, "life", "topic", "partition").orderBy(*in_time)
    firsts = steps.where(F.col("step") >= _LEARNT).withColumns(
        {"previous": F.lag("step").over(in_partition), "learnt": F.lag("metadata_epoch").over(in_partition)}
    )
    early = firsts.where(f"step = {_FETCH} and previous = {_LEARNT} and had < learnt")
    detail = sentence(
        "%s fetched the partition with metadata epoch %s, but the offset that it had learnt has epoch %s.",
        "process",
        "had",
        "learnt",
    )
    return anomalies(early, detail)


def _steps(tables: Tables) -> DataFrame:
    """What happened to each client. Columns: run, process, step, at_us, and, where they apply, index, topic, partition,
    metadata_epoch."""
    learnt = tables.commits.where("kind in ('fetched', 'loaded') and error is null and metadata_epoch >= 0")
    fetched = tables.positions.join(F.broadcast(learnt.select(*_CLIENT).distinct()), _CLIENT, "left_semi")
    asked = with_operation(fetched, tables, "f", "invoke_us").where("f = 'fetch'")
    frames = [
        tables.memberships.where("event = 'left'").select(*_CLIENT, "at_us", F.lit(-1).cast("long").alias("index")),
        tables.metadata_epochs.where("accepted").select(*_CLIENT, "at_us", "index", "metadata_epoch"),
        learnt.select(*_CLIENT, "at_us", "index", "topic", "partition", "metadata_epoch"),
        asked.select(*_CLIENT, F.col("invoke_us").alias("at_us"), "index", "topic", "partition"),
    ]
    steps = [frame.withColumn("step", F.lit(step)) for step, frame in enumerate(frames)]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), steps)


JUDGED = Judging(
    "no-fetch-before-epoch",
    needs=("operations", "positions", "commits", "metadata_epochs"),
    evidence="epochs_learnt",
    unit="offsets learnt with a metadata epoch",
    find=transform,
    about=("M-9", "M-13"),
)
