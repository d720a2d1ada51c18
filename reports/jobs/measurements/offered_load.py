"""Offered, sent and completed operations per second, and how late the generator was.

The workers count them (LOAD). In a run without their counts, this job counts the operations of the schedule. The final
read, which follows the load, is not one of them.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements import fault_windows
from reports.jobs.shared.expressions import second_of
from reports.read_tables import Tables

_COUNTS = ("offered", "sent", "completed", "failed")


def transform(tables: Tables) -> DataFrame:
    """Columns: run, second, offered, sent, completed, failed, max_slip_us, cpu_permille (busiest worker, or -1),
    in_load (whether the schedule still wanted writes), calm (whether it is also outside faults)."""
    columns = ["run", "second", *_COUNTS, "max_slip_us", "cpu_permille"]
    rows = tables.load.select(*columns).unionByName(_from_operations(tables).select(*columns))
    sums = [F.sum(name).alias(name) for name in _COUNTS]
    worst = [F.max(name).alias(name) for name in ("max_slip_us", "cpu_permille")]
    loaded = rows.groupBy("run", "second").agg(*sums, *worst)
    struck = fault_windows.troubled(tables).withColumn("struck", F.lit(True))
    begun = F.min(F.expr("if(offered > 0, second, null)")).over(Window.partitionBy("run"))
    marked = loaded.withColumn("begun", begun).join(F.broadcast(struck), ["run", "second"], "left")
    whole = marked.join(F.broadcast(_last_written(tables)), "run", "left")
    in_load = F.expr("offered > 0 and (last is null or second < last)")
    calm = F.expr(f"struck is null and second >= begun + {tables.config.begin_s}")
    return whole.withColumns({"in_load": in_load, "calm": in_load & calm}).drop("struck", "begun", "last")


def _last_written(tables: Tables) -> DataFrame:
    """The second in which the schedule wanted the last write. Behind it are only the last polls. Columns: run, last."""
    writes = tables.operations.where("f in ('produce', 'transaction')")
    return writes.groupBy("run").agg(second_of(F.max("intended_us")).alias("last"))


def _from_operations(tables: Tables) -> DataFrame:
    scheduled = tables.operations.where(~F.col("run").isin(tables.runs_with("load"))).where("f in ('fetch', 'produce')")
    marks = F.expr(
        "inline(array(struct(intended_us as at_us, 'offered' as what, 0L as slip_us), "
        "struct(invoke_us as at_us, 'sent' as what, invoke_us - intended_us as slip_us), "
        "struct(complete_us as at_us, if(type = 'ok', 'completed', 'failed') as what, 0L as slip_us)))"
    )
    events = scheduled.select("run", marks).groupBy("run", second_of("at_us").alias("second"))
    counts = [F.count_if(F.col("what") == name).alias(name) for name in _COUNTS]
    summed = events.agg(*counts, F.max("slip_us").alias("max_slip_us"))
    return summed.withColumn("cpu_permille", F.lit(-1).cast("long"))
