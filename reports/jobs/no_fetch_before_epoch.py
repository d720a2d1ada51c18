"""no-fetch-before-epoch: a consumer fetches from a partition only once its metadata is as new as the offset's epoch.

That epoch was committed with the offset (M-10), or stored with it outside (M-13). The consumer's first fetch after it
learnt an offset is judged, by the newest metadata that it had taken until then. A client that left and came back knows
nothing, so it begins anew.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "no-fetch-before-epoch"
LEARNT = ("fetched", "loaded")
"""Kinds of COMMITS that bring a consumer an offset with its epoch."""
_CLIENT = ("run", "process")
_LEFT, _TAKEN, _OWED, _FETCH = range(4)


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    in_time = Window.partitionBy(*_CLIENT).orderBy("at_us", "step", "index")
    steps = _steps(tables).withColumn("life", F.sum((F.col("step") == _LEFT).cast("int")).over(in_time))
    so_far = Window.partitionBy(*_CLIENT, "life").orderBy("at_us", "step", "index")
    had = F.max(F.when(F.col("step") == _TAKEN, F.col("epoch"))).over(so_far)
    steps = steps.withColumn("had", F.coalesce(had, F.lit(-1))).where(F.col("step") >= _OWED)
    place = Window.partitionBy(*_CLIENT, "life", "topic", "partition").orderBy("at_us", "step", "index")
    firsts = steps.withColumn("owed_step", F.lag("step").over(place)).withColumn("owed", F.lag("epoch").over(place))
    early = firsts.where((F.col("step") == _FETCH) & (F.col("owed_step") == _OWED) & (F.col("had") < F.col("owed")))
    detail = sentence(
        "%s fetched the partition with metadata epoch %s; the offset that it had learnt has epoch %s.",
        "process",
        "had",
        "owed",
    )
    return anomalies(early, NAME, detail, at_us="at_us", offset=-1)


def _steps(tables: Tables) -> DataFrame:
    """What happened to each client. Columns: run, process, step, at_us, index, topic, partition, epoch."""
    has_epoch = F.col("error").isNull() & (F.col("metadata_epoch") >= 0)
    learnt = tables.commits.where(F.col("kind").isin(*LEARNT) & has_epoch)
    clients = F.broadcast(learnt.select(*_CLIENT).distinct())
    asked = tables.operations.where(F.col("f") == "fetch").select(*_CLIENT, "index", F.col("invoke_us").alias("at_us"))
    fetched = tables.positions.join(clients, list(_CLIENT), "left_semi").join(asked, [*_CLIENT, "index"])
    parts = (
        (_LEFT, tables.memberships.where(F.col("event") == "left").withColumn("index", F.lit(-1)), ()),
        (_TAKEN, tables.metadata_epochs.where("accepted"), ("epoch",)),
        (_OWED, learnt, ("epoch", "place")),
        (_FETCH, fetched, ("place",)),
    )
    none, nowhere = F.lit(None).cast("long"), F.lit(None).cast("string")
    frames = [
        frame.select(
            *_CLIENT,
            F.lit(step).alias("step"),
            "at_us",
            F.col("index").cast("long").alias("index"),
            F.col("topic") if "place" in has else nowhere.alias("topic"),
            F.col("partition") if "place" in has else none.alias("partition"),
            F.col("metadata_epoch").alias("epoch") if "epoch" in has else none.alias("epoch"),
        )
        for step, frame, has in parts
    ]
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionByName(frame)
    return result


JUDGED = Judging(
    NAME,
    needs=("operations", "positions", "commits", "metadata_epochs"),
    evidence="epochs_learnt",
    unit="offsets learnt with a metadata epoch",
    find=transform,
    about=("M-9", "M-13"),
)
