"""Committed offsets: commit-regression and commits-accepted, and the requests that both judge.

``requests`` has each commit and fetch of an offset with its times, and its result as far as that is known. Other jobs
use it, too.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import before, with_operation, without_match
from reports.jobs.guarantee_job import A_COMMIT, GuaranteeJob, anomalies, sentence
from reports.read_tables import Tables

STORED: Final = ["run", "group", "topic", "partition"]
"""The columns that together name one committed offset."""
NEVER_US: Final = 2**62
"""The end of a request whose effect may come at any time."""

SETTLED_US: Final = 500_000
"""The longest time that a node which hung takes to read what its kernel still has of a dead connection."""

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
    """Return COMMITS of the coordinator with ``invoke_us``, ``node`` and ``end`` (ok, refused or unknown).

    ``until_us`` is when the request had taken effect, ``stored_epoch`` the metadata epoch that a commit stores. A node
    that hung may have read a commit of unknown end late, but hardly after it had responded to a request that was sent
    later. SETTLED_US after that response the commit is over.
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
    """Add ``known``: the greatest ``value`` of the commits that were acknowledged before ``since_us``; else null.

    ``since_us`` is a column of ``frame``. Only commits with the same ``keys`` count.
    """
    ends = acked.select(*keys, F.col("at_us").alias("point_us"), F.lit(1).alias("is_end"), value.alias("acked"))
    starts = frame.withColumn("point_us", F.col(since_us)).withColumn("is_end", F.lit(0))
    in_time = Window.partitionBy(*keys).orderBy("point_us", "is_end")
    both = starts.unionByName(ends, allowMissingColumns=True)
    return both.withColumn("known", F.max("acked").over(before(in_time))).where("is_end = 0")


_COMMIT = [*STORED, "process", "index"]


@GuaranteeJob(
    needs=("operations", "commits"),
    evidence="offsets_committed",
    unit="offsets committed",
    excused_by=A_COMMIT,
)
def commit_regression(tables: Tables) -> DataFrame:
    """commit-regression: a committed offset, its metadata epoch or its generation goes back.

    Only requests that did not overlap have an order. A commit that was acknowledged may not have a smaller epoch (M-7)
    or generation than one that was acknowledged before it began. A fetched offset may not be older than that either.
    Commits in older versions leave no epoch (M-11). Such a commit resets the known epoch, and the epoch is unknown as
    long as the commit may still take effect.
    """
    return _smaller_epochs(tables).unionByName(_older_generations(tables)).unionByName(_older_values(tables))


def _smaller_epochs(tables: Tables) -> DataFrame:
    calm = _between_old_versions(tables)
    known = with_known_before(calm, "invoke_us", calm, F.col("stored_epoch"), [*STORED, "calm"])
    detail = sentence(
        "%s committed offset %s with metadata epoch %s after epoch %s had been committed, and was not refused.",
        "process",
        "offset",
        "stored_epoch",
        "known",
    )
    return anomalies(known.where("stored_epoch < known"), detail)


def _older_generations(tables: Tables) -> DataFrame:
    acked = written(tables).where("end = 'ok' and generation >= 0")
    known = with_known_before(acked, "invoke_us", acked, F.col("generation"))
    detail = sentence(
        "%s committed offset %s in generation %s after generation %s had committed.",
        "process",
        "offset",
        "generation",
        "known",
    )
    return anomalies(known.where("generation < known"), detail)


def _between_old_versions(tables: Tables) -> DataFrame:
    """Acknowledged commits with an epoch that have no commit without an epoch beside them.

    ``calm`` numbers the times between commits without an epoch. The beginnings and ends of all commits are counted in
    time: how many without an epoch began or ended up to then (``calm``), and how many of them are not over (``open``).
    """
    commits = written(tables).where("not draft or end = 'ok'")
    bounds = F.expr("inline(array(struct(invoke_us as point_us, 1 as step), struct(until_us as point_us, -1 as step)))")
    points = commits.select(*_COMMIT, (~F.col("draft")).cast("int").alias("old"), bounds)
    in_time = Window.partitionBy(*STORED).orderBy("point_us").rangeBetween(Window.unboundedPreceding, 0)
    placed = points.withColumn("calm", F.sum("old").over(in_time)).withColumn(
        "open", F.sum(F.col("old") * F.col("step")).over(in_time)
    )
    new = placed.where("old = 0").groupBy(*_COMMIT)
    alone = new.agg(F.min("calm").alias("calm"), F.max("calm").alias("calm_after"), F.max("open").alias("open")).where(
        "calm = calm_after and open = 0"
    )
    return commits.where("draft").join(alone.select(*_COMMIT, "calm"), _COMMIT)


def _older_values(tables: Tables) -> DataFrame:
    """Fetched values that no commit can have left there once another commit was acknowledged."""
    fetched = tables.once(requests).where("kind = 'fetched' and end = 'ok'")
    commits = written(tables)
    last = F.struct("invoke_us", "offset", "stored_epoch")
    judged = with_known_before(fetched, "invoke_us", commits.where("end = 'ok'"), last).where("known is not null")
    explained = (
        "other.until_us >= this.known.invoke_us and other.invoke_us < this.at_us "
        "and (not this.draft or other.stored_epoch = this.metadata_epoch)"
    )
    unexplained = without_match(judged, commits, [*STORED, "offset"], explained)
    gone = with_operation(tables.changes.where("change = 'delete' and type != 'fail'"), tables, "invoke_us", how="left")
    gone = F.broadcast(gone.select("run", "topic", F.coalesce("invoke_us", F.lit(0)).alias("requested_us")))
    judged_still = without_match(unexplained, gone, ["run", "topic"], "other.requested_us <= this.at_us")
    detail = sentence(
        "%s fetched offset %s with metadata epoch %s, though offset %s with epoch %s had been committed.",
        "process",
        "offset",
        "metadata_epoch",
        "known.offset",
        "known.stored_epoch",
    )
    return anomalies(judged_still, detail)


OLDER_EPOCH = "INVALID_METADATA_EPOCH"
NEVER_RIGHT = ("UNSUPPORTED_VERSION", "UNKNOWN_SERVER_ERROR", "INVALID_REQUEST")


@GuaranteeJob(
    needs=("operations", "commits"),
    evidence="offsets_committed",
    unit="offsets committed",
    excused_by=A_COMMIT,
)
def commits_accepted(tables: Tables) -> DataFrame:
    """commits-accepted, as far as the members show it: a commit is refused that should have passed.

    M-7: a coordinator refuses a commit if the last one for the partition had a greater metadata epoch. So a commit with
    a greater epoch must have begun before the refusal came, and no acknowledged commit may be known to have followed
    it. M-11: a commit in a version without the epoch stores -1, and any epoch may follow it. An unknown version, an
    invalid request or an unknown error of the server is never right. The simulator also judges refusals of unknown
    topics.
    """
    attempts = tables.once(requests).where("kind = 'commit'")
    commits = written(tables)
    older = attempts.where(F.col("error") == OLDER_EPOCH)
    followed = with_known_before(older, "invoke_us", commits.where("end = 'ok'"), F.col("invoke_us"))
    may_be_last = (
        "other.stored_epoch > this.metadata_epoch and other.invoke_us < this.at_us "
        "and other.until_us >= coalesce(this.known, -1)"
    )
    wrong = without_match(followed, commits, STORED, may_be_last).select(attempts.columns)
    wrong = wrong.unionByName(attempts.where(F.col("error").isin(*NEVER_RIGHT)))
    detail = sentence(
        "A commit of %s with offset %s and metadata epoch %s was refused: %s.",
        "process",
        "offset",
        "metadata_epoch",
        "error",
    )
    return anomalies(wrong, detail)
