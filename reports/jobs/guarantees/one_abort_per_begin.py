"""one-abort-per-begin: in the committed metadata log each Begin is closed once, by End or Abort, before the next.

Every node notes each batch that it loads from the committed log. Together they tell the whole log, however often a node
was killed. The nodes that wrote a snapshot had noted what it replaced. Two nodes that noted different kinds at one
offset disagree about the log itself.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import metadata_log_anomalies, sentence
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import METADATA_COMMITTED, notes, number, text
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    committed = notes(tables, METADATA_COMMITTED).select("run", "at_us", number("offset"), text("kind"))
    markers = committed.where("kind in ('begin', 'end', 'abort')")
    seen = markers.groupBy("run", "offset", "kind").agg(F.min("at_us").alias("at_us"))
    in_order = Window.partitionBy("run").orderBy("offset", "at_us")
    steps = seen.withColumn("last", F.lag(F.struct("kind", "offset")).over(in_order))
    wrong = steps.where("last.offset <=> offset or (kind = 'begin') = (last.kind <=> 'begin')")
    last = F.when(F.col("last").isNull(), "none").otherwise(sentence("%s at %s", "last.kind", "last.offset"))
    detail = sentence("A committed %s marker at offset %s follows this marker: %s.", "kind", "offset", last)
    return metadata_log_anomalies(wrong, detail)


JUDGED = Judging(
    "one-abort-per-begin",
    needs=("trace",),
    evidence="metadata_markers",
    unit="committed markers noted",
    find=transform,
)
