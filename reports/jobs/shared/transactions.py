"""Transactions and what they sent, with their fate: ok, fail or info.

It is ok if the producer was told that its commit is done, and fail if a commit can never come: an abort was asked for,
nothing was, or the commit was refused for good. It is info if nobody knows.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.evidence import log_starts, read_values, sequences
from reports.jobs.shared.expressions import OPERATION, PARTITION
from reports.jobs.shared.intervals import meeting, merged, subtracted
from reports.jobs.shared.keyed import excused, has_keyed
from reports.read_tables import Tables

TRANSACTIONS: Final = ("operations", "runs", "transactions")
ABOUT: Final = tuple(f"X-{number}" for number in range(1, 15))
"""Runs with transactional producers exercise these clauses."""

VALUES: Final = [*PARTITION, "writer"]
SEQUENCES: Final = ("first_sequence", "last_sequence")
_FATE = "case when asked != 'commit' or outcome = 'failed' then 'fail' when outcome = 'ok' then 'ok' else 'info' end"


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
    told = tables.once(transactions).select(
        *OPERATION, "transactional_id", "fate", "asked", "from_us", "at_us", "until_us"
    )
    return runs.join(told, OPERATION)


def seen(tables: Tables) -> DataFrame:
    """The values that readers with read_committed saw: merged intervals of sequences. Columns: VALUES, first, last."""
    return sequences(_committed(tables), VALUES)


def _committed(tables: Tables) -> DataFrame:
    return tables.once(read_values).where("is_ok and is_ours and isolation = 1")


def parts(tables: Tables) -> DataFrame:
    """How much of each transaction that may be committed is there. Columns: OPERATION, transactional_id, fate,
    until_us, ``there`` and ``missing`` (numbers of values), and of one value that is missing: topic, partition, offset,
    sequence, writer.

    A value is missing if no reader with read_committed saw it, although one read beyond it, or its partition was read
    to the end. Values below a log start that was seen do not count. X-11: neither does what a cleaner may have taken.
    """
    runs = tables.once(sent).where("fate != 'fail'")
    wanted = merged(runs, VALUES, "first_sequence", "last_sequence")
    holes = subtracted(wanted, tables.once(seen), VALUES)
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
    found = whole.join(missing, OPERATION).join(unread, OPERATION)
    return found.select("*", (F.col("values") - F.col("unread")).alias("there"), "example.*").drop("example")


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
