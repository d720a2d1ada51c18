"""commit-regression: a committed offset, its metadata epoch or its generation goes back.

Only requests that did not overlap have an order. A commit that was acknowledged may not have a smaller epoch (M-7) or
generation than one that was acknowledged before it began. A fetched offset may not be older than that either. Commits
in older versions leave no epoch (M-11). What was known before such a commit is forgotten, and nothing is known as long
as it may still take effect.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.commits import STORED, requests, with_known_before, written
from reports.jobs.shared.expressions import with_operation, without_match
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables

_COMMIT = [*STORED, "process", "index"]


def transform(tables: Tables) -> DataFrame:
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
    gone = F.broadcast(gone.select("run", "topic", F.coalesce("invoke_us", F.lit(0)).alias("asked_us")))
    judged_still = without_match(unexplained, gone, ["run", "topic"], "other.asked_us <= this.at_us")
    detail = sentence(
        "%s fetched offset %s with metadata epoch %s, though offset %s with epoch %s had been committed.",
        "process",
        "offset",
        "metadata_epoch",
        "known.offset",
        "known.stored_epoch",
    )
    return anomalies(judged_still, detail)


JUDGED = Judging(
    "commit-regression",
    needs=("operations", "commits"),
    evidence="offsets_committed",
    unit="offsets committed",
    find=transform,
)
