"""Transactions with their fate: the values that they sent and those that exist, and how they ended.

The fate is *ok* if the producer received the acknowledgement of its commit. It is *fail* if the transaction can never
be committed: an abort or nothing was requested, or the commit was refused with a fatal error. Otherwise it is unknown,
*info*.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.compacted_topics import excused, has_keyed
from reports.jobs.evidence import log_starts, read_values, sequences
from reports.jobs.expressions import OPERATION, PARTITION, second_of
from reports.jobs.faults import DURING, fault_windows
from reports.jobs.intervals import meeting, merged, subtracted
from reports.jobs.latency import quantiles
from reports.read_tables import Tables

TRANSACTIONS: Final = ("operations", "runs", "transactions")
ABOUT: Final = tuple(f"X-{number}" for number in range(1, 15))
"""Runs with transactional producers exercise these clauses."""

VALUES: Final = [*PARTITION, "writer"]
SEQUENCES: Final = ("first_sequence", "last_sequence")
_FATE = (
    "case when requested_end != 'commit' or outcome = 'failed' then 'fail' when outcome = 'ok' then 'ok' "
    "else 'info' end"
)


def transactions(tables: Tables) -> DataFrame:
    """TRANSACTIONS with ``fate``."""
    return tables.transactions.withColumn("fate", F.expr(_FATE))


def sent(tables: Tables) -> DataFrame:
    """The runs that transactions sent. Columns: OPERATION, topic, partition, writer, first_sequence, last_sequence,
    first_offset, last_offset, and those of the transaction."""
    runs = tables.sends.select(
        *OPERATION,
        "topic",
        "partition",
        "writer",
        "first_sequence",
        "last_sequence",
        "first_offset",
        "last_offset",
    )
    ends = tables.once(transactions).select(
        *OPERATION, "transactional_id", "fate", "requested_end", "from_us", "at_us", "until_us"
    )
    return runs.join(ends, OPERATION)


def seen(tables: Tables) -> DataFrame:
    """The values that readers with read_committed saw: merged intervals of sequences. Columns: VALUES, first, last."""
    return sequences(_committed(tables), VALUES)


def _committed(tables: Tables) -> DataFrame:
    return tables.once(read_values).where("is_ok and is_ours and isolation = 1")


def parts(tables: Tables) -> DataFrame:
    """Return how much of each transaction that may be committed is there. Columns: OPERATION, transactional_id, fate,
    until_us, ``there`` and ``missing`` (numbers of values), and of one value that is missing: topic, partition, offset,
    sequence, writer.

    A value is missing if no reader with read_committed saw it, although one read beyond it, or its partition was read
    to the end. Values below a log start that was seen do not count. X-11: neither does what a cleaner may have taken.
    """
    runs = tables.once(sent).where("fate != 'fail'")
    sent_values = merged(runs, VALUES, "first_sequence", "last_sequence")
    holes = subtracted(sent_values, tables.once(seen), VALUES)
    gone = _inside(runs, holes)
    unexcused = gone
    if has_keyed(tables):
        taken = merged(excused(tables, VALUES, 1), VALUES, "first_sequence", "last_sequence")
        unexcused = _inside(runs, subtracted(holes, taken, VALUES))
    judged = (
        unexcused.join(_read_until(tables), PARTITION, "left")
        .join(log_starts(tables), PARTITION, "left")
        .where("offset <= read_until and until >= coalesce(start_offset, 0)")
    )
    example = F.min(F.struct("topic", "partition", "offset", F.col("low").alias("sequence"), "writer")).alias("example")
    missing = judged.groupBy(*OPERATION).agg(F.sum(F.expr("high - low + 1")).alias("missing"), example)
    unread = gone.groupBy(*OPERATION).agg(F.sum(F.expr("high - low + 1")).alias("unread"))
    whole = runs.groupBy(*OPERATION, "transactional_id", "fate", "until_us").agg(
        F.sum(F.expr("last_sequence - first_sequence + 1")).alias("values")
    )
    counted = whole.join(missing, OPERATION).join(unread, OPERATION)
    return counted.select("*", (F.col("values") - F.col("unread")).alias("there"), "example.*").drop("example")


def _inside(runs: DataFrame, holes: DataFrame) -> DataFrame:
    """The parts of runs in these intervals of sequences. Adds: low, high (sequences), offset, until (of both)."""
    parts = meeting(runs, holes, VALUES, SEQUENCES, ("first", "last"))
    low, high = F.greatest("first", "first_sequence"), F.least("last", "last_sequence")
    shift = F.col("first_sequence") - F.col("first_offset")
    return parts.withColumns({"low": low, "high": high, "offset": low - shift, "until": high - shift})


def _read_until(tables: Tables) -> DataFrame:
    """The offset up to which readers with read_committed know each partition (``read_until``): the highest one that
    they read, or the last below the end if a partition was read to its end with nothing open."""
    reached = _committed(tables).select(*PARTITION, F.col("last").alias("read_until"))
    stable = F.coalesce("last_stable_offset", "high_watermark")
    ended = tables.ends.select(*PARTITION, (F.least(stable, "high_watermark") - 1).alias("read_until"))
    return reached.unionByName(ended).groupBy(*PARTITION).agg(F.max("read_until").alias("read_until"))


FENCED: Final = "PRODUCER_FENCED"
"""A producer that another with its transactional ID has replaced gets this error. The client takes it from any response
that says as much; INVALID_PRODUCER_EPOCH of a Produce is no proof (KIP-588)."""
WHOLE_RUN: Final = -1
NO_FAULT: Final = ""
_COMMITTED, _ABORTED, _UNDECIDED = "fate = 'ok'", "fate = 'fail'", "fate = 'info'"


def transaction_totals(tables: Tables) -> DataFrame:
    """Columns: run, group (of workers that consume, transform and produce; "" of other producers), producers
    (transactional IDs), begun, committed, aborted, aborts_requested (by the producer), undecided (no
    response said whether they are committed), fenced, records (that workers took from their source), and
    records_committed."""
    made = tables.transforms.groupBy(*OPERATION).agg(F.sum("count").alias("records"))
    workers = tables.transforms.groupBy("run", "process").agg(F.min("group").alias("group"))
    rows = tables.once(transactions).join(workers, ["run", "process"], "left").join(made, OPERATION, "left")
    records = F.coalesce("records", F.lit(0))
    return rows.groupBy("run", F.coalesce("group", F.lit("")).alias("group")).agg(
        F.countDistinct("transactional_id").alias("producers"),
        F.count("*").alias("begun"),
        *_end_counts(),
        F.count_if(F.expr(f"{_ABORTED} and requested_end = 'abort'")).alias("aborts_requested"),
        F.sum(records).alias("records"),
        F.sum(F.when(F.expr(_COMMITTED), records).otherwise(0)).alias("records_committed"),
    )


def times_to_decide(tables: Tables) -> DataFrame:
    """The time from the request of an end until its response. Columns: run, requested_end (commit or
    abort), second (of the response; WHOLE_RUN for all), count, min_us, p50_us, p99_us, max_us."""
    ends = tables.once(transactions).where("requested_end != 'nothing' and outcome = 'ok'")
    seconds = F.explode(F.array(second_of("until_us"), F.lit(WHOLE_RUN).cast("long"))).alias("second")
    took = ends.select("run", "requested_end", seconds, _waited().alias("low_us"))
    durations = took.withColumns({"high_us": F.col("low_us") + 1, "count": F.lit(1)})
    return quantiles(durations, ("run", "requested_end", "second"), ("p50_us", "p99_us"))


def transactions_by_fault(tables: Tables) -> DataFrame:
    """Transactions that were open in a second with the fault, or just after. Columns: run, fault (NO_FAULT:
    those that none touched), begun, committed, aborted, undecided, fenced, longest_us (until the response to an end's
    request came, or the producer stopped waiting; null if none was requested)."""
    rows = tables.once(transactions)
    open_in = F.explode(F.sequence(second_of("from_us"), F.greatest(second_of("from_us"), second_of("until_us"))))
    faulty_seconds = fault_windows(tables).where(F.col("window") == DURING).drop("window")
    touched = rows.select(*OPERATION, open_in.alias("second")).join(F.broadcast(faulty_seconds), ["run", "second"])
    named = rows.join(touched.select(*OPERATION, "fault").distinct(), OPERATION, "left")
    return named.groupBy("run", F.coalesce("fault", F.lit(NO_FAULT)).alias("fault")).agg(
        F.count("*").alias("begun"),
        *_end_counts(),
        F.max(F.when(F.col("requested_end") != "nothing", _waited())).alias("longest_us"),
    )


def _end_counts() -> list[Column]:
    counted = {
        "committed": _COMMITTED,
        "aborted": _ABORTED,
        "undecided": _UNDECIDED,
        "fenced": f"coalesce(error = '{FENCED}', false)",
    }
    return [F.count_if(F.expr(condition)).alias(name) for name, condition in counted.items()]


def _waited() -> Column:
    return F.greatest(F.lit(0), F.col("until_us") - F.col("at_us"))
