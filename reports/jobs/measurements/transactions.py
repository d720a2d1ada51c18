"""How transactions ended, how long their ends took, and how those fared that were open while a fault struck."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements import fault_windows
from reports.jobs.shared.expressions import OPERATION, second_of
from reports.jobs.shared.quantiles import quantiles
from reports.jobs.shared.transactions import transactions
from reports.read_tables import Tables

FENCED: Final = "PRODUCER_FENCED"
"""A producer that another with its transactional ID has replaced hears this error. The client takes it from any answer
that says as much; INVALID_PRODUCER_EPOCH of a Produce is no proof (KIP-588)."""
WHOLE_RUN: Final = -1
NO_FAULT: Final = ""
_COMMITTED, _ABORTED, _UNDECIDED = "fate = 'ok'", "fate = 'fail'", "fate = 'info'"


def transform(tables: Tables) -> DataFrame:
    """Columns: run, group (of workers that consume, transform and produce; "" of other producers), producers
    (transactional IDs), begun, committed, aborted, asked (aborts that the producer asked for), undecided (nobody was
    told whether they are committed), fenced, records (that workers took from their source), records_committed."""
    made = tables.transforms.groupBy(*OPERATION).agg(F.sum("count").alias("records"))
    workers = tables.transforms.groupBy("run", "process").agg(F.min("group").alias("group"))
    rows = tables.once(transactions).join(workers, ["run", "process"], "left").join(made, OPERATION, "left")
    records = F.coalesce("records", F.lit(0))
    return rows.groupBy("run", F.coalesce("group", F.lit("")).alias("group")).agg(
        F.countDistinct("transactional_id").alias("producers"),
        F.count("*").alias("begun"),
        *_ends(),
        F.count_if(F.expr(f"{_ABORTED} and asked = 'abort'")).alias("asked"),
        F.sum(records).alias("records"),
        F.sum(F.when(F.expr(_COMMITTED), records).otherwise(0)).alias("records_committed"),
    )


def decided(tables: Tables) -> DataFrame:
    """The time from the request of an end until the producer was told that it is done. Columns: run, asked (commit or
    abort), second (in which it was told; WHOLE_RUN for all), count, min_us, p50_us, p99_us, max_us."""
    told = tables.once(transactions).where("asked != 'nothing' and outcome = 'ok'")
    seconds = F.explode(F.array(second_of("until_us"), F.lit(WHOLE_RUN).cast("long"))).alias("second")
    took = told.select("run", "asked", seconds, _waited().alias("low_us"))
    each = took.withColumns({"high_us": F.col("low_us") + 1, "count": F.lit(1)})
    return quantiles(each, ("run", "asked", "second"), ("p50_us", "p99_us"))


def around_faults(tables: Tables) -> DataFrame:
    """Transactions that were open in a second in which the fault struck, or just after. Columns: run, fault (NO_FAULT:
    those that none touched), begun, committed, aborted, undecided, fenced, longest_us (until the answer to the request
    of an end came, or the producer gave up; null if none was requested)."""
    rows = tables.once(transactions)
    open_in = F.explode(F.sequence(second_of("from_us"), F.greatest(second_of("from_us"), second_of("until_us"))))
    struck = fault_windows.transform(tables).where(F.col("window") == fault_windows.DURING).drop("window")
    touched = rows.select(*OPERATION, open_in.alias("second")).join(F.broadcast(struck), ["run", "second"])
    named = rows.join(touched.select(*OPERATION, "fault").distinct(), OPERATION, "left")
    return named.groupBy("run", F.coalesce("fault", F.lit(NO_FAULT)).alias("fault")).agg(
        F.count("*").alias("begun"),
        *_ends(),
        F.max(F.when(F.col("asked") != "nothing", _waited())).alias("longest_us"),
    )


def _ends() -> list[Column]:
    counted = {
        "committed": _COMMITTED,
        "aborted": _ABORTED,
        "undecided": _UNDECIDED,
        "fenced": f"coalesce(error = '{FENCED}', false)",
    }
    return [F.count_if(F.expr(condition)).alias(name) for name, condition in counted.items()]


def _waited() -> Column:
    return F.greatest(F.lit(0), F.col("until_us") - F.col("at_us"))
