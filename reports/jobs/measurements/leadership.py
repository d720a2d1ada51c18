"""Who led replicated partitions, with which in-sync replicas, and when that changed. The leaders' own notes say so."""

from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import first_rows, second_of
from reports.jobs.shared.notes import ISR_CHANGED, LEADS, notes, number, text
from reports.read_tables import Tables

MOST_PARTITIONS = 12
MOST_CHANGES = 400
"""The page shows at most so many changes of one partition."""


def changes(tables: Tables) -> DataFrame:
    """Columns: run, partition (topic-index), at_us, node (the leader), what, leader_epoch (null: isr_changed), isr."""
    noted = notes(tables, LEADS, ISR_CHANGED)
    return noted.select(
        "run", text("partition"), "at_us", "node", "what", number("leader_epoch"), text("isr"), "incarnation", "seq"
    )


def transform(tables: Tables) -> DataFrame:
    """The changes of the partitions that changed most. Columns: those of ``changes``, and ``place`` (1: changed
    most)."""
    rows = tables.once(changes)
    counted = rows.groupBy("run", "partition").agg(F.count("*").alias("changes"))
    in_order = Window.partitionBy("run").orderBy(F.desc("changes"), "partition")
    most = first_rows(counted, MOST_PARTITIONS, in_order).withColumnRenamed("n", "place")
    shown = first_rows(rows.join(F.broadcast(most), ["run", "partition"]), MOST_CHANGES, _in_time())
    return shown.select("run", "place", "n", "partition", "at_us", "node", "what", "leader_epoch", "isr")


def by_second(tables: Tables) -> DataFrame:
    """Columns: run, second, elected (leaders that took over), grown, shrunk (in-sync sets), of all partitions."""
    size = F.size(F.split("isr", ","))
    sizes = tables.once(changes).withColumns({"size": size, "size_before": F.lag(size).over(_in_time())})
    return sizes.groupBy("run", second_of("at_us").alias("second")).agg(
        F.count_if(F.col("what") == LEADS).alias("elected"),
        F.count_if(F.expr("size > size_before")).alias("grown"),
        F.count_if(F.expr("size < size_before")).alias("shrunk"),
    )


def _in_time() -> WindowSpec:
    return Window.partitionBy("run", "partition").orderBy("at_us", "node", "incarnation", "seq")
