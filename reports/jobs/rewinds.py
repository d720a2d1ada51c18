"""rewinds: a fetcher is told OFFSET_OUT_OF_RANGE at a position that its partition holds, and goes elsewhere.

Some positions do not count: those below a log start that was seen (deleted), those above the log's end once all is
quiet (lost), and those above a place where a replica truncated its log after somebody had read up to there. Earlier
truncations explain nothing, since the log has grown again since then. Later ones, by a stale leader that comes back,
explain nothing either.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION, anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.evidence import log_starts
from reports.jobs.judging import Judging
from reports.jobs.notes import TRUNCATED, notes, number, text
from reports.read_tables import Tables

NAME = "rewinds"
OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    moved = tables.resets.where(F.col("reason") == OUT_OF_RANGE)
    cut = notes(tables, *TRUNCATED).select(
        F.col("run").alias("c_run"),
        text("partition").alias("c_name"),
        number("offset").alias("cut"),
        F.col("at_us").alias("cut_us"),
    )
    known = (
        moved.join(F.broadcast(_reached(moved, tables)), [*PARTITION, "from_offset"], "left")
        .join(log_starts(tables), list(PARTITION), "left")
        .join(tables.ends.select(*PARTITION, "high_watermark"), list(PARTITION), "left")
        .withColumn("name", F.concat_ws("-", "topic", F.col("partition").cast("string")))
    )
    at = F.col("from_offset")
    held = (at >= F.coalesce("start_offset", F.lit(0))) & (at <= F.coalesce("high_watermark", at))
    same = (F.col("run") == F.col("c_run")) & (F.col("name") == F.col("c_name"))
    since = F.coalesce("reached_us", F.lit(0))
    explained = same & (F.col("cut") < at) & (F.col("cut_us") >= since) & (F.col("cut_us") <= F.col("at_us"))
    wrong = known.where(held).join(F.broadcast(cut), explained, "left_anti")
    went = F.when(F.col("to_offset") < 0, "did not go on").otherwise(
        sentence("went on at %s: %s offsets away", "to_offset", F.abs(F.col("to_offset") - at))
    )
    detail = sentence(
        "%s stood at offset %s, was told that it is out of range, and %s; its metadata epoch was %s.",
        "process",
        "from_offset",
        went,
        "metadata_epoch",
    )
    return anomalies(wrong, NAME, detail, at_us="at_us", offset=at)


def _reached(moved: DataFrame, tables: Tables) -> DataFrame:
    """When a fetch first came to each of these positions. Columns: PARTITION, from_offset, reached_us."""
    places = moved.select(*PARTITION, "from_offset").distinct()
    came = tables.positions.where(F.col("error").isNull()).join(F.broadcast(places), list(PARTITION))
    came = came.where(F.col("next_offset") >= F.col("from_offset"))
    ended = tables.operations.select("run", "process", "index", "complete_us")
    return (
        came.join(ended, ["run", "process", "index"])
        .groupBy(*PARTITION, "from_offset")
        .agg(F.min("complete_us").alias("reached_us"))
    )


JUDGED = Judging(
    NAME,
    needs=("operations", "positions", "commits"),
    evidence="positions",
    unit="partition answers",
    find=transform,
    found_in="resets",
)
