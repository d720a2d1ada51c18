"""Committed offsets with the times of their requests, and how each request ended as far as that is known."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables

STORED: Final = ("run", "group", "topic", "partition")
"""The columns that together name one committed offset."""
NEVER_US: Final = 2**62
"""The end of a request whose effect may come at any time."""

SETTLED_US: Final = 500_000

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
    asked = tables.operations.select("run", "process", "index", "invoke_us", "node")
    error = F.col("error")
    end = F.when(error.isNull(), "ok").when(error.isin(*REFUSED), "refused").otherwise("unknown")
    rows = tables.commits.where(F.col("kind").isin("commit", "fetched"))
    rows = rows.join(asked, ["run", "process", "index"], "left")
    in_time = Window.partitionBy(*STORED).orderBy("point_us").rowsBetween(1, Window.unboundedFollowing)
    acked = F.when((F.col("kind") == "commit") & (F.col("end") == "ok"), F.col("at_us"))
    over = F.coalesce(F.col("next_us") + SETTLED_US, F.lit(NEVER_US))
    return (
        rows.withColumn("invoke_us", F.least(F.coalesce("invoke_us", "at_us"), "at_us"))
        .withColumn("end", end)
        .withColumn("point_us", F.when(F.col("end") == "unknown", F.col("at_us")).otherwise(F.col("invoke_us")))
        .withColumn("next_us", F.min(acked).over(in_time))
        .withColumn("until_us", F.when(F.col("end") == "unknown", over).otherwise(F.col("at_us")))
        .withColumn("stored_epoch", F.when(F.col("draft"), F.col("metadata_epoch")).otherwise(-1))
        .drop("point_us", "next_us")
    )


def written(tables: Tables) -> DataFrame:
    """Commits that wrote something, or may have."""
    rows = tables.once("commit_requests", requests)
    return rows.where((F.col("kind") == "commit") & (F.col("end") != "refused"))
