"""rewinds: a fetcher is told OFFSET_OUT_OF_RANGE at a position that its partition holds, and goes elsewhere.

Only clients with metadata epochs are judged (M-15), and not those that began at an offset which was committed without
an epoch (M-11). Some positions do not count: those below a log start that was seen (deleted), those above the log's end
once all is quiet (lost), and those above a place where a replica truncated its log after somebody had read up to there.
Earlier truncations explain nothing, since the log has grown again since then. Later ones, by a stale leader that comes
back, explain nothing either.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.evidence import log_starts
from reports.jobs.shared.expressions import PARTITION, READER, with_operation, without_match
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import TRUNCATED, notes, number, text
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    moved = _with_epoch(tables.resets.where("reason = 'OFFSET_OUT_OF_RANGE' and metadata_epoch >= 0"), tables)
    known = (
        moved.join(F.broadcast(_reached(moved, tables)), [*PARTITION, "from_offset"], "left")
        .join(log_starts(tables), PARTITION, "left")
        .join(tables.ends.select(*PARTITION, "high_watermark"), PARTITION, "left")
        .withColumn("name", F.concat_ws("-", "topic", F.col("partition").cast("string")))
    )
    held = known.where("from_offset between coalesce(start_offset, 0) and coalesce(high_watermark, from_offset)")
    truncations = notes(tables, *TRUNCATED).select("run", text("partition").alias("name"), number("offset"), "at_us")
    explained = "other.offset < this.from_offset and other.at_us between coalesce(this.reached_us, 0) and this.at_us"
    wrong = without_match(held, F.broadcast(truncations), ["run", "name"], explained)
    went = F.when(F.col("to_offset") < 0, "did not go on").otherwise(
        sentence(
            "went on at %s, %s away",
            "to_offset",
            counted(F.abs(F.col("to_offset") - F.col("from_offset")), "one offset", "%s offsets"),
        )
    )
    detail = sentence(
        "%s stood at offset %s, was told that it is out of range, and %s. Its metadata epoch was %s.",
        "process",
        "from_offset",
        went,
        "metadata_epoch",
    )
    return anomalies(wrong, detail, offset="from_offset")


def _with_epoch(moved: DataFrame, tables: Tables) -> DataFrame:
    """Those of the resets before which the client had last learnt an offset with an epoch, or none."""
    learnt = tables.commits.where("kind in ('fetched', 'loaded') and error is null")
    learnt = learnt.select(*READER, F.struct("at_us", "metadata_epoch", "offset").alias("learnt"))
    earlier = [F.col(f"reset.{name}") == F.col(f"told.{name}") for name in READER]
    known = moved.alias("reset").join(learnt.alias("told"), [*earlier, F.expr("learnt.at_us <= reset.at_us")], "left")
    last = known.groupBy(*(F.col(f"reset.{name}").alias(name) for name in moved.columns)).agg(
        F.max("learnt").alias("last")
    )
    return last.where("last is null or last.metadata_epoch >= 0 or last.offset < 0").drop("last")


def _reached(moved: DataFrame, tables: Tables) -> DataFrame:
    """When a fetch first came to each of these positions. Columns: PARTITION, from_offset, reached_us."""
    places = moved.select(*PARTITION, "from_offset").distinct()
    came = tables.positions.where("error is null").join(F.broadcast(places), PARTITION)
    ended = with_operation(came.where("next_offset >= from_offset"), tables, "complete_us")
    return ended.groupBy(*PARTITION, "from_offset").agg(F.min("complete_us").alias("reached_us"))


JUDGED = Judging(
    "rewinds",
    needs=("operations", "positions", "metadata_epochs"),
    evidence="positions_with_epochs",
    unit="partition answers to clients with metadata epochs",
    find=transform,
    found_in="resets",
)
