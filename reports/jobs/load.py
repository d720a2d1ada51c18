"""The load of a run: operations offered, sent and completed by second, and how busy the workers were."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import second_of
from reports.jobs.faults import troubled_seconds
from reports.read_tables import Tables

_LOAD_COUNTS = ("offered", "sent", "completed", "failed")


def offered_load(tables: Tables) -> DataFrame:
    """Offered, sent and completed operations per second, and how late the generator was.

    The workers count them (LOAD). In a run without their counts, this job counts the operations of the schedule. The
    final read, which follows the load, is not one of them.

    Columns: run, second, offered, sent, completed, failed, max_slip_us, cpu_permille (busiest worker, or -1), in_load
    (whether the schedule still wanted writes), calm (whether it is also outside faults).
    """
    columns = ["run", "second", *_LOAD_COUNTS, "max_slip_us", "cpu_permille"]
    rows = tables.load.select(*columns).unionByName(_load_of_operations(tables).select(*columns))
    sums = [F.sum(name).alias(name) for name in _LOAD_COUNTS]
    worst = [F.max(name).alias(name) for name in ("max_slip_us", "cpu_permille")]
    loaded = rows.groupBy("run", "second").agg(*sums, *worst)
    faulty = troubled_seconds(tables).withColumn("faulty", F.lit(True))
    begun = F.min(F.expr("if(offered > 0, second, null)")).over(Window.partitionBy("run"))
    marked = loaded.withColumn("begun", begun).join(F.broadcast(faulty), ["run", "second"], "left")
    whole = marked.join(F.broadcast(_last_written(tables)), "run", "left")
    in_load = F.expr("offered > 0 and (last is null or second < last)")
    calm = F.expr(f"faulty is null and second >= begun + {tables.config.begin_s}")
    return whole.withColumns({"in_load": in_load, "calm": in_load & calm}).drop("faulty", "begun", "last")


def _last_written(tables: Tables) -> DataFrame:
    """The second in which the schedule offered the last write. After it there are only the last polls. Columns: run,
    last."""
    writes = tables.operations.where("f in ('produce', 'transaction')")
    return writes.groupBy("run").agg(second_of(F.max("intended_us")).alias("last"))


def _load_of_operations(tables: Tables) -> DataFrame:
    scheduled = tables.operations.where(~F.col("run").isin(tables.runs_with("load"))).where("f in ('fetch', 'produce')")
    marks = F.expr(
        "inline(array(struct(intended_us as at_us, 'offered' as what, 0L as slip_us), "
        "struct(invoke_us as at_us, 'sent' as what, invoke_us - intended_us as slip_us), "
        "struct(complete_us as at_us, if(type = 'ok', 'completed', 'failed') as what, 0L as slip_us)))"
    )
    events = scheduled.select("run", marks).groupBy("run", second_of("at_us").alias("second"))
    counts = [F.count_if(F.col("what") == name).alias(name) for name in _LOAD_COUNTS]
    summed = events.agg(*counts, F.max("slip_us").alias("max_slip_us"))
    return summed.withColumn("cpu_permille", F.lit(-1).cast("long"))


def completed_operations(tables: Tables) -> DataFrame:
    """Operations by the second of their completion, by kind, end and error.

    Columns: run, second, f, type, error ("" none), operations.
    """
    error = F.coalesce("error", F.lit("")).alias("error")
    grouped = tables.operations.groupBy("run", second_of("complete_us").alias("second"), "f", "type", error)
    return grouped.agg(F.count("*").alias("operations"))


def worker_effort(tables: Tables) -> DataFrame:
    """Effort of each load worker, and the time for which it was itself the limit.

    A second counts as limited when the worker's loop wanted a processor nearly all the time, had one for at least half
    of it, and its own timer came late. In that case the worker itself caused the delay. A worker that waits for the
    broker sleeps, and one that other processes keep from the processor wants it but hardly gets it.

    Columns: run, worker, seconds (of load), limited_seconds, cpu_permille, wanted_permille (means), worst_lag_us.
    """
    config = tables.config
    measured = tables.load.where("offered > 0 and wanted_permille is not null")
    busy = (F.col("wanted_permille") >= config.busy_permille) & (F.col("cpu_permille") >= config.working_permille)
    return measured.groupBy("run", "worker").agg(
        F.count("*").alias("seconds"),
        F.count_if(busy & (F.col("lag_us") >= config.late_us)).alias("limited_seconds"),
        F.round(F.avg("cpu_permille")).cast("long").alias("cpu_permille"),
        F.round(F.avg("wanted_permille")).cast("long").alias("wanted_permille"),
        F.max("lag_us").alias("worst_lag_us"),
    )
