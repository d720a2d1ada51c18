"""The figures by which runs are compared: latencies, rates and distributions.

Quiet seconds are separated from those with a fault. Each run, or each of the blocks that it is cut into, is one unit of
the comparison. The warm-up is excluded, and so are the first and the last second of the load, because they are cut off.
The load ends with its most frequent operation. A second in which no operation ended counts, too.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import so_far
from reports.jobs.faults import DURING, fault_windows
from reports.jobs.latency import buckets_after_warm_up, merged_buckets, quantiles
from reports.jobs.load import completed_operations
from reports.read_tables import Tables
from reports.statistics.confidence import MIN_BLOCK_S

QUIET, FAULTY = "quiet", "faulty"
QUANTILES = ("p50_us", "p90_us", "p99_us", "p999_us")
UNIT = ("run", "phase", "block")
AFTER_THE_LOAD = "final_read"
"""The suite's own reads."""


def seconds(tables: Tables) -> DataFrame:
    """Columns: run, second, phase, block. A run's seconds of one phase are cut into ``config.blocks``, a short run's
    into fewer."""
    load = buckets_after_warm_up(tables).where(F.col("operation") != AFTER_THE_LOAD)
    of_each = load.groupBy("run", "operation").agg(F.sum("count").alias("n"), F.min("second"), F.max("second"))
    most = F.max_by(F.struct("min(second)", "max(second)"), "n").alias("most")
    known = of_each.groupBy("run").agg(most).select("run", "most.*")
    every = known.where("`max(second)` - `min(second)` >= 2").select(
        "run", F.explode(F.expr("sequence(`min(second)` + 1, `max(second)` - 1)")).alias("second")
    )
    faulty = fault_windows(tables).where(F.col("window") == DURING).select("run", "second")
    phased = every.join(faulty.distinct().withColumn("hit", F.lit(True)), ["run", "second"], "left").withColumn(
        "phase", F.when(F.col("hit"), FAULTY).otherwise(QUIET)
    )
    whole = Window.partitionBy("run", "phase")
    place = F.count("*").over(so_far(whole.orderBy("second"))) - 1
    cut = F.greatest(F.lit(1), F.least(F.lit(tables.config.blocks), F.floor(F.count("*").over(whole) / MIN_BLOCK_S)))
    block = F.floor(place * cut / F.count("*").over(whole)).cast("long")
    return phased.select("run", "second", "phase", block.alias("block"))


def latencies_of_units(tables: Tables) -> DataFrame:
    """Columns: UNIT, operation, count, min_us, QUANTILES, max_us; of response times."""
    return quantiles(tables.once(_response), (*UNIT, "operation"), QUANTILES)


def rates_of_units(tables: Tables) -> DataFrame:
    """Columns: UNIT, operation, operations (that ended ok), seconds. The same operations in each unit, if need be 0."""
    parts = tables.once(seconds)
    units = parts.groupBy(*UNIT).agg(F.count("*").alias("seconds"))
    ended = (
        completed_operations(tables)
        .where(f"type = 'ok' and f <> '{AFTER_THE_LOAD}'")
        .withColumnRenamed("f", "operation")
    )
    counted = (
        ended.join(parts, ["run", "second"]).groupBy(*UNIT, "operation").agg(F.sum("operations").alias("operations"))
    )
    kinds = ended.select("run", "operation").distinct()
    return units.join(kinds, "run").join(counted, [*UNIT, "operation"], "left").fillna({"operations": 0})


def distribution(tables: Tables) -> DataFrame:
    """Columns: run, operation, measure, high_us, count; of response times in quiet seconds, in steps of 1/16 octave."""
    return merged_buckets(tables.once(_response).where(F.col("phase") == QUIET))


def _response(tables: Tables) -> DataFrame:
    measured = buckets_after_warm_up(tables).where(f"measure = 'response' and operation <> '{AFTER_THE_LOAD}'")
    return measured.join(tables.once(seconds), ["run", "second"])
