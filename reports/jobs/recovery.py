"""What a lost answer costs its fetcher: the time until the next good answer from that node, and the bytes.

A fetch whose end is unknown opens an episode. The next fetch at the same node that ends ok closes it, and what lies
between belongs to it. Full fetches beyond a fetcher's first at a node bring partitions that were sent before, and so
does a request that is sent again with its number.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.read_tables import Tables

_PLACE = ("run", "process", "node")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """One row for each episode that ended: run, process, node, lost_us (the fetcher gave up waiting), recovered_us
    (from then to the good answer), asking_us (of that, between requests and their answers: without the fetcher's own
    pauses, new connections, and further answers that did not come), attempts, request_bytes, response_bytes,
    partitions_named, partitions_answered."""
    in_order = Window.partitionBy(*_PLACE).orderBy("index")
    lost = F.col("type") == "info"
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    good = F.sum((F.col("type") == "ok").cast("int")).over(before)
    fetches = _fetches(tables).withColumn("good_before", F.coalesce(good, F.lit(0)))
    episode = Window.partitionBy(*_PLACE, "good_before").orderBy("index")
    so_far = episode.rowsBetween(Window.unboundedPreceding, -1)
    given_up = F.min(F.when(lost, F.col("complete_us"))).over(so_far)
    inside = fetches.withColumn("lost_us", given_up).where(F.col("lost_us").isNotNull())
    ended = F.max(F.when(F.col("type") == "ok", F.col("complete_us")))
    answered = F.when(~lost, F.col("complete_us") - F.col("invoke_us")).otherwise(0)
    return (
        inside.groupBy(*_PLACE, "good_before")
        .agg(
            F.min("lost_us").alias("lost_us"),
            (ended - F.min("lost_us")).alias("recovered_us"),
            F.sum(answered).alias("asking_us"),
            F.count(F.lit(1)).alias("attempts"),
            F.sum("request_bytes").alias("request_bytes"),
            F.sum("response_bytes").alias("response_bytes"),
            F.sum("partitions_sent").alias("partitions_named"),
            F.sum(F.greatest("partitions_answered", F.lit(0))).alias("partitions_answered"),
        )
        .where(F.col("recovered_us").isNotNull())
        .drop("good_before")
    )


def sent_again(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, fetches, named, answered, requests_again, named_again, answered_again, request_bytes,
    response_bytes. Only fetches of fetchers that ended ok count."""
    in_order = Window.partitionBy(*_PLACE).orderBy("index")
    full = F.col("session_epoch") <= 0
    earlier_full = F.sum(full.cast("int")).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    repeated = (
        (F.lag("session_id").over(in_order) == F.col("session_id"))
        & (F.lag("session_epoch").over(in_order) == F.col("session_epoch"))
        & (F.col("session_epoch") > 0)
    )
    again = (full & (F.coalesce(earlier_full, F.lit(0)) > 0)) | F.coalesce(repeated, F.lit(False))
    marked = _fetches(tables).withColumn("again", again).where(F.col("type") == "ok")
    return marked.groupBy("run").agg(
        F.count(F.lit(1)).alias("fetches"),
        F.sum("partitions_sent").alias("named"),
        F.sum("partitions_answered").alias("answered"),
        F.sum(F.col("again").cast("long")).alias("requests_again"),
        _sum_again("partitions_sent", "named_again"),
        _sum_again("partitions_answered", "answered_again"),
        F.sum("request_bytes").alias("request_bytes"),
        F.sum("response_bytes").alias("response_bytes"),
    )


def _sum_again(name: str, alias: str) -> Column:
    return F.sum(F.when(F.col("again"), F.col(name)).otherwise(0)).alias(alias)


def _fetches(tables: Tables) -> DataFrame:
    ended = F.col("error").isNull() | (F.col("error") != "unfinished")
    return tables.operations.where((F.col("f") == "fetch") & ended)
