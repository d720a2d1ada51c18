"""What the probe last found on each target, section by section, and which cases changed since the probe before."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.read_nights import NightTables

GOOD = "pass"
UNJUDGED = ("not advertised", "not played", "not judged")
"""These say that a case was not for this broker, or could not be played. They are neither good nor bad."""


def transform(tables: NightTables) -> DataFrame:
    """Columns: target, section, night (of the last probe), cases, passed, unjudged, must (that did not pass), should
    (alike), changed: what each case (case_id) was (was; empty: it is new) and is (now; empty: it is gone), and failed:
    the cases behind ``must`` and ``should`` (case_id, level, outcome)."""
    probes = tables.cells.select("target", "night").distinct()
    nights = probes.withColumn("place", F.row_number().over(Window.partitionBy("target").orderBy(F.desc("night"))))
    placed = tables.cells.join(F.broadcast(nights.where("place <= 2")), ["target", "night"])
    key = ["target", "section", "case_id"]
    cases = placed.groupBy(*key).agg(
        F.max(F.when(F.col("place") == 1, F.col("outcome"))).alias("now"),
        F.max(F.when(F.col("place") == 2, F.col("outcome"))).alias("was"),
        F.max_by("level", "night").alias("level"),
    )
    probed = nights.groupBy("target").agg(F.max("night").alias("night"), F.max("place").alias("probes"))
    judged = cases.join(F.broadcast(probed), "target").withColumn(
        "bad", F.col("now").isNotNull() & ~F.col("now").isin(GOOD, *UNJUDGED)
    )
    differs = F.col("now").eqNullSafe(F.col("was")) | (F.col("probes") < 2)
    change = F.struct("case_id", F.coalesce("was", F.lit("")).alias("was"), F.coalesce("now", F.lit("")).alias("now"))
    failed = F.struct("case_id", "level", F.col("now").alias("outcome"))
    return judged.groupBy("target", "section").agg(
        F.max("night").alias("night"),
        F.count("now").alias("cases"),
        F.count_if(F.col("now") == GOOD).alias("passed"),
        F.count_if(F.col("now").isin(*UNJUDGED)).alias("unjudged"),
        F.count_if(F.expr("bad and level = 'MUST'")).alias("must"),
        F.count_if(F.expr("bad and level <> 'MUST'")).alias("should"),
        F.array_sort(F.collect_list(F.when(~differs, change))).alias("changed"),
        F.array_sort(F.collect_list(F.when(F.col("bad"), failed))).alias("failed"),
    )
