"""commit-regression: a committed offset, its metadata epoch or its generation goes back.

Only requests that did not overlap have an order. A commit that was acknowledged may not have a smaller epoch (M-7) or
generation than one that was acknowledged before it began. A fetched offset may not be older than that either. Commits
in older versions leave no epoch (M-11). What was known before such a commit is forgotten, and nothing is known as long
as it may still take effect.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.commits import NEVER_US, STORED, requests, written
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.read_tables import Tables

NAME = "commit-regression"
_COMMIT = (*STORED, "process", "index")
_KEPT = (*_COMMIT, "offset", "generation", "draft", "stored_epoch", "invoke_us", "at_us")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    return _smaller_epochs(tables).unionByName(_older_generations(tables)).unionByName(_older_values(tables))


def _smaller_epochs(tables: Tables) -> DataFrame:
    known = _with_greatest_before(_between_old_versions(tables), "stored_epoch", "calm")
    detail = sentence(
        "%s committed offset %s with metadata epoch %s after epoch %s had been committed, and was not refused.",
        "process",
        "offset",
        "stored_epoch",
        "known",
    )
    return anomalies(known.where(F.col("stored_epoch") < F.col("known")), NAME, detail, at_us="at_us")


def _older_generations(tables: Tables) -> DataFrame:
    acked = written(tables).where((F.col("end") == "ok") & (F.col("generation") >= 0)).select(*_KEPT)
    known = _with_greatest_before(acked, "generation")
    detail = sentence(
        "%s committed offset %s in generation %s after generation %s had committed.",
        "process",
        "offset",
        "generation",
        "known",
    )
    return anomalies(known.where(F.col("generation") < F.col("known")), NAME, detail, at_us="at_us")


def _with_greatest_before(acked: DataFrame, value: str, *more: str) -> DataFrame:
    """Adds ``known``: the greatest ``value`` that was acknowledged before a commit began."""
    keys = (*STORED, *more)
    ends = acked.select(*keys, F.col("at_us").alias("point_us"), F.lit(1).alias("is_end"), F.col(value).alias("seen"))
    starts = acked.withColumn("point_us", F.col("invoke_us")).withColumn("is_end", F.lit(0))
    before = Window.partitionBy(*keys).orderBy("point_us", "is_end").rowsBetween(Window.unboundedPreceding, -1)
    both = starts.unionByName(ends, allowMissingColumns=True)
    return both.withColumn("known", F.max("seen").over(before)).where(F.col("is_end") == 0)


def _between_old_versions(tables: Tables) -> DataFrame:
    """Acknowledged commits with an epoch that have no commit without an epoch beside them.

    ``calm`` numbers the times between commits without an epoch."""
    commits = written(tables)
    old = commits.where(~F.col("draft"))
    acked = commits.where(F.col("draft") & (F.col("end") == "ok")).select(*_KEPT)
    none = F.lit(None).cast("long")
    points = (
        acked.select(*_COMMIT, F.col("invoke_us").alias("point_us"), F.lit(0).alias("step"), F.lit(0).alias("mark"))
        .unionByName(
            acked.select(*_COMMIT, F.col("at_us").alias("point_us"), F.lit(0).alias("step"), F.lit(0).alias("mark"))
        )
        .unionByName(
            old.select(
                *STORED,
                F.col("process"),
                none.alias("index"),
                F.col("invoke_us").alias("point_us"),
                F.lit(1).alias("step"),
                F.lit(1).alias("mark"),
            )
        )
        .unionByName(
            old.where(F.col("until_us") < NEVER_US).select(
                *STORED,
                F.col("process"),
                none.alias("index"),
                F.col("until_us").alias("point_us"),
                F.lit(-1).alias("step"),
                F.lit(1).alias("mark"),
            )
        )
    )
    in_time = Window.partitionBy(*STORED).orderBy("point_us").rangeBetween(Window.unboundedPreceding, 0)
    placed = points.withColumn("calm", F.sum("mark").over(in_time)).withColumn("open", F.sum("step").over(in_time))
    alone = (
        placed.where(F.col("index").isNotNull())
        .groupBy(*_COMMIT)
        .agg(F.min("calm").alias("calm"), F.max("calm").alias("calm_after"), F.max("open").alias("open"))
        .where((F.col("calm") == F.col("calm_after")) & (F.col("open") == 0))
        .select(*_COMMIT, "calm")
    )
    return acked.join(alone, list(_COMMIT))


def _older_values(tables: Tables) -> DataFrame:
    """Fetched values that no commit can have left there once another commit was acknowledged."""
    rows = tables.once("commit_requests", requests)
    fetched = rows.where((F.col("kind") == "fetched") & (F.col("end") == "ok"))
    commits = written(tables)
    acked = commits.where(F.col("end") == "ok")
    last = F.struct("invoke_us", "offset", "stored_epoch")
    ends = acked.select(*STORED, F.col("at_us").alias("point_us"), F.lit(1).alias("is_end"), last.alias("committed"))
    starts = fetched.withColumn("point_us", F.col("invoke_us")).withColumn("is_end", F.lit(0))
    before = Window.partitionBy(*STORED).orderBy("point_us", "is_end").rowsBetween(Window.unboundedPreceding, -1)
    both = starts.unionByName(ends, allowMissingColumns=True)
    judged = both.withColumn("last", F.max("committed").over(before)).where(
        (F.col("is_end") == 0) & F.col("last").isNotNull()
    )
    explained = (
        (F.col("left_until_us") >= F.col("last.invoke_us"))
        & (F.col("left_from_us") < F.col("at_us"))
        & (~F.col("draft") | (F.col("left_epoch") == F.col("metadata_epoch")))
    )
    keys = ["offset", *STORED]
    left = commits.select(
        *(F.col(name).alias(f"w_{name}") for name in keys),
        F.col("stored_epoch").alias("left_epoch"),
        F.col("invoke_us").alias("left_from_us"),
        F.col("until_us").alias("left_until_us"),
    )
    equal = explained
    for name in keys:
        equal = equal & (F.col(name) == F.col(f"w_{name}"))
    gone = tables.changes.where((F.col("change") == "delete") & (F.col("type") != "fail")).select("run", "topic")
    wrong = judged.join(left, equal, "left_anti").join(gone.distinct(), ["run", "topic"], "left_anti")
    detail = sentence(
        "%s fetched offset %s with metadata epoch %s, though offset %s with epoch %s had been committed.",
        "process",
        "offset",
        "metadata_epoch",
        "last.offset",
        "last.stored_epoch",
    )
    return anomalies(wrong, NAME, detail, at_us="at_us")


JUDGED = Judging(
    NAME,
    needs=("operations", "commits"),
    evidence="offsets_committed",
    unit="offsets committed",
    find=transform,
)
