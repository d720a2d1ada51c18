"""Gives every anomaly row the same columns, and adds the fault that was active when the anomaly happened."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

PARTITION = ("run", "topic", "partition")
COLUMNS = ("run", "guarantee", "topic", "partition", "offset", "process", "index", "at_us", "detail")


def anomalies(
    frame: DataFrame,
    guarantee: str,
    detail: Column,
    *,
    at_us: str = "complete_us",
    topic: Column | None = None,
    partition: Column | int | None = None,
    offset: Column | int | None = None,
    process: Column | None = None,
    index: Column | int | None = None,
) -> DataFrame:
    """``frame`` must have ``run`` and ``at_us``, and each of topic, partition, offset, process and index that is not
    given."""
    return frame.select(
        F.col("run").cast("long").alias("run"),
        F.lit(guarantee).alias("guarantee"),
        (F.col("topic") if topic is None else topic).alias("topic"),
        _given(partition, "partition").cast("long").alias("partition"),
        _given(offset, "offset").cast("long").alias("offset"),
        (F.col("process") if process is None else process).alias("process"),
        _given(index, "index").cast("long").alias("index"),
        F.col(at_us).cast("long").alias("at_us"),
        detail.alias("detail"),
    )


def _given(value: Column | int | None, name: str) -> Column:
    if value is None:
        return F.col(name)
    return F.lit(value) if isinstance(value, int) else value


def sentence(template: str, *columns: str | Column) -> Column:
    """Formats the columns as ``printf`` does; every column is a %s."""
    return F.format_string(
        template, *(one.cast("string") if isinstance(one, Column) else _text(one) for one in columns)
    )


def _text(name: str) -> Column:
    return F.col(name).cast("string")


def with_active_fault(found: DataFrame, faults: DataFrame) -> DataFrame:
    """Adds the column ``fault`` by an as-of join.

    Faults that are active come first, then those that hit this very client, then the latest. ``found`` must be small,
    and it is, because it holds examples only. The faults are broadcast.
    """
    marks = faults.where(~F.startswith("kind", F.lit("preset"))).select(
        F.col("run").alias("f_run"),
        F.col("at_us").alias("f_at_us"),
        F.greatest("at_us", "until_us").alias("f_until_us"),
        F.col("name").alias("f_name"),
        F.col("hit").alias("f_hit"),
        F.col("client_id").alias("f_client"),
    )
    numbered = found.withColumn("number", F.monotonically_increasing_id())
    matching = (F.col("run") == F.col("f_run")) & (F.col("f_at_us") <= F.col("at_us"))
    score = F.struct(
        (F.col("f_until_us") >= F.col("at_us")).cast("int").alias("active"),
        ((F.col("f_client") == F.col("process")) & (F.col("process") != "")).cast("int").alias("same_client"),
        F.col("f_at_us").alias("at_us"),
        F.col("f_until_us").alias("until_us"),
        F.col("f_name").alias("name"),
        F.col("f_hit").alias("hit"),
    )
    joined = numbered.join(F.broadcast(marks), matching, "left")
    best = joined.groupBy("number", *found.columns).agg(F.max(F.when(F.col("f_name").isNotNull(), score)).alias("best"))
    since_s = F.format_number((F.col("at_us") - F.col("best.until_us")) / 1e6, 1)
    named = sentence("%s #%s", "best.name", "best.hit")
    text = (
        F.when(F.col("best").isNull(), "")
        .when(F.col("best.active") == 1, named)
        .otherwise(F.concat(since_s, F.lit(" s after "), named))
    )
    return best.select(*found.columns, text.alias("fault"))
