"""Committed offsets with the times of their requests, and how each request ended as far as that is known."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import before, with_operation
from reports.read_tables import Tables

STORED: Final = ["run", "group", "topic", "partition"]
"""The columns that together name one committed offset."""
NEVER_US: Final = 2**62
"""The end of a request whose effect may come at any time."""

SETTLED_US: Final = 500_000
"""Physical: so long a node that hung may take to read what its kernel still held of a dead connection."""

REFUSED: Final = (
    "INVALID_METADATA_EPOCH",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "FENCED_INSTANCE_ID",
    "OFFSET_METADATA_TOO_LARGE",
    "INVALID_COMMIT_OFFSET_SIZE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "INVALID_GROUP_ID",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "UNSUPPORTED_VERSION",
    "not_sent",
    "refused",
)
"""Errors of a commit that wrote nothing. After another error (the coordinator moved, or a timeout) a part may have been
written, and may be replicated later."""


def requests(tables: Tables) -> DataFrame:
    """COMMITS of the coordinator with ``invoke_us``, ``node`` and ``end`` (ok, refused or unknown).

    ``until_us`` is when the request had taken effect, ``stored_epoch`` the metadata epoch that a commit leaves. A node
    that hung may have read a commit of unknown end late, but hardly after it had answered a request that was sent
    later. SETTLED_US after that answer the commit is over.
    """
    error = F.col("error")
    end = F.when(error.isNull(), "ok").when(error.isin(*REFUSED), "refused").otherwise("unknown")
    rows = tables.commits.where("kind in ('commit', 'fetched')")
    rows = with_operation(rows, tables, "invoke_us", "node", how="left")
    later = Window.partitionBy(*STORED).orderBy("point_us").rowsBetween(1, Window.unboundedFollowing)
    acked_us = F.expr("if(kind = 'commit' and end = 'ok', at_us, null)")
    over = F.coalesce(F.min(acked_us).over(later) + SETTLED_US, F.lit(NEVER_US))
    return (
        rows.withColumn("invoke_us", F.least(F.coalesce("invoke_us", "at_us"), "at_us"))
        .withColumn("end", end)
        .withColumn("point_us", F.expr("if(end = 'unknown', at_us, invoke_us)"))
        .withColumn("until_us", F.when(F.col("end") == "unknown", over).otherwise(F.col("at_us")))
        .withColumn("stored_epoch", F.expr("if(draft, metadata_epoch, -1)"))
        .drop("point_us")
    )


def written(tables: Tables) -> DataFrame:
    """Commits that wrote something, or may have."""
    return tables.once(requests).where("kind = 'commit' and end != 'refused'")


def with_known_before(
    frame: DataFrame, since_us: str, acked: DataFrame, value: Column, keys: Sequence[str] = STORED
) -> DataFrame:
    """Adds ``known``: the greatest ``value`` of the commits that were acknowledged before ``since_us``; else null.

    ``since_us`` is a column of ``frame``. Only commits with the same ``keys`` count.
    """
    ends = acked.select(*keys, F.col("at_us").alias("point_us"), F.lit(1).alias("is_end"), value.alias("acked"))
    starts = frame.withColumn("point_us", F.col(since_us)).withColumn("is_end", F.lit(0))
    in_time = Window.partitionBy(*keys).orderBy("point_us", "is_end")
    both = starts.unionByName(ends, allowMissingColumns=True)
    return both.withColumn("known", F.max("acked").over(before(in_time))).where("is_end = 0")
