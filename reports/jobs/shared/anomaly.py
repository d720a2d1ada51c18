"""Gives every anomaly row the same columns, and adds the fault that was active when the anomaly happened."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.guarantees import GUARANTEES
from reports.jobs.shared.expressions import without_presets

_DOES_NOT_APPLY = {"topic": "", "partition": -1, "offset": -1, "process": "", "index": -1}
_NUMBERS = ("run", "partition", "offset", "index", "at_us")


def anomalies(frame: DataFrame, detail: Column, **given: Column | str | int) -> DataFrame:
    """Columns: run, topic, partition, offset, process, index, at_us, detail.

    They are the frame's columns of these names, unless ``given`` names or makes another. One that the frame lacks does
    not apply to the breach. The time is ``at_us`` or, if the frame has no such column, the end of the operation,
    ``complete_us``.
    """
    columns: dict[str, Column | str | int] = {"run": "run"}
    for name, nothing in _DOES_NOT_APPLY.items():
        columns[name] = name if name in frame.columns else F.lit(nothing)
    columns["at_us"] = "at_us" if "at_us" in frame.columns else "complete_us"
    made = {name: _column(each) for name, each in (columns | given).items()}
    shaped = {name: each.cast("long") if name in _NUMBERS else each for name, each in made.items()}
    return frame.select(*(each.alias(name) for name, each in shaped.items()), detail.alias("detail"))


def metadata_log_anomalies(frame: DataFrame, detail: Column, **given: Column | str | int) -> DataFrame:
    """Anomalies of the quorum and of the metadata log."""
    return anomalies(frame, detail, topic=F.lit("__cluster_metadata"), partition=0, **given)


def _column(given: Column | str | int) -> Column:
    if isinstance(given, Column):
        return given
    return F.col(given) if isinstance(given, str) else F.lit(given)


def sentence(template: str, *columns: str | Column) -> Column:
    """Formats the columns as ``printf`` does; every column is a %s."""
    return F.format_string(template, *(_column(one).cast("string") for one in columns))


def counted(count: str | Column, one: str, many: str) -> Column:
    """Returns ``one`` if the count is 1, else ``many``, whose %s is the count."""
    return F.when(_column(count) == 1, F.lit(one)).otherwise(sentence(many, count))


_LOSES = "mark.kind rlike '^(node_|directory_|files_|rolling_|disk_(error|full|write|bit)|link_(cut|down))'"
"""Faults that can cost a broker what it holds, or part it from the others. Slow and lost frames cannot."""
_ACKNOWLEDGED = ("lost-write", "unseen", "lost-transaction")
"""The time of their breaches is that of the acknowledgement, so what caused the loss came later."""
_LOSSES = tuple(name for name, one in GUARANTEES.items() if one.keeps_writes)


def with_active_fault(found: DataFrame, faults: DataFrame) -> DataFrame:
    """Adds the column ``fault`` by an as-of join.

    Faults that are active come first, then those that hit this very client, then the latest. What lost records is
    named after a fault that can do so, if there is one: for a record that was acknowledged the first one from then on,
    and else the latest before. ``found`` must be small, and it is, because it holds examples only. The faults are
    broadcast.
    """
    numbered = found.withColumn("number", F.monotonically_increasing_id()).alias("found")
    marks = F.broadcast(without_presets(faults)).alias("mark")
    loses = F.col("found.guarantee").isin(*_LOSSES) & F.expr(_LOSES)
    later = loses & F.col("found.guarantee").isin(*_ACKNOWLEDGED) & F.expr("mark.until_us >= found.at_us")
    same_run = F.expr("mark.run = found.run")
    joined = numbered.join(marks, same_run & (later | F.expr("mark.at_us <= found.at_us")), "left")
    active = F.expr("mark.until_us >= found.at_us and mark.at_us <= found.at_us").alias("active")
    same_client = F.expr("mark.client_id = found.process and found.process != ''").alias("same_client")
    rank = F.when(later, 2).when(loses, 1).otherwise(0).alias("rank")
    order = F.when(later, -F.col("mark.at_us")).otherwise(0).alias("order")
    score = F.struct(rank, order, active, same_client, "mark.at_us", "mark.until_us", "mark.name", "mark.hit")
    best = F.max(F.when(F.col("mark.name").isNotNull(), score)).alias("best")
    named = sentence("%s #%s", "best.name", "best.hit")
    since_s = F.format_number((F.col("at_us") - F.col("best.until_us")) / 1e6, 1)
    before_s = F.format_number((F.col("best.at_us") - F.col("at_us")) / 1e6, 1)
    text = (
        F.when(F.col("best").isNull(), "")
        .when(F.col("best.active"), named)
        .when(F.col("best.at_us") > F.col("at_us"), F.concat(before_s, F.lit(" s before "), named))
        .otherwise(F.concat(since_s, F.lit(" s after "), named))
    )
    ranked = joined.groupBy("number", *(f"found.{name}" for name in found.columns)).agg(best)
    return ranked.select(*found.columns, text.alias("fault"))
