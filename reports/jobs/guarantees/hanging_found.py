"""hanging-found (X-12): an admin's tools find each hanging transaction and no other, and end what they abort (KIP-664).

Three things break it:

- A look at a partition tells nothing of a transaction that hangs there: its write was acknowledged before, no
  coordinator ever heard of it (``error`` not_added), and nobody has asked to abort it.
- A transaction was found hanging and aborted, although its producer had it open, within its timeout.
- A later look tells a transaction as open that was aborted with success.

Leaders that are cut off or paused may tell old news. Scenarios with such faults must not promise it.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import OPERATION, PARTITION
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables

LOOK: Final = [*OPERATION, "topic", "partition"]
OPEN: Final = [*PARTITION, "producer_id", "start_offset"]


def transform(tables: Tables) -> DataFrame:
    told = tables.told_transactions
    written = _written(tables)
    found = [_missed(told, written), _wrongly_aborted(told, written), _left(told)]
    return found[0].unionByName(found[1]).unionByName(found[2])


def _written(tables: Tables) -> DataFrame:
    """The acknowledged writes of transactions. Columns: OPEN, and those of the transaction."""
    runs = tables.sends.where("first_offset >= 0").select(
        *OPERATION, "topic", "partition", F.col("first_offset").alias("start_offset")
    )
    return runs.join(tables.transactions, OPERATION).select(
        *OPEN,
        "transactional_id",
        "producer_epoch",
        "error",
        "from_us",
        F.col("at_us").alias("left_us"),
        F.least("at_us", F.col("from_us") + F.col("timeout_us")).alias("surely_until_us"),
    )


def _missed(told: DataFrame, written: DataFrame) -> DataFrame:
    looks = told.groupBy(*LOOK).agg(F.min("asked_us").alias("asked_us"), F.max("told_us").alias("told_us"))
    asked_to_end = told.where("abort != ''").groupBy(*OPEN).agg(F.min("abort_us").alias("ended_us"))
    strays = written.where("error = 'not_added'").join(asked_to_end, OPEN, "left")
    due = looks.join(strays, PARTITION).where("asked_us >= left_us and (ended_us is null or told_us < ended_us)")
    missed = due.join(
        told.select(*LOOK, "producer_id", "start_offset"), [*LOOK, "producer_id", "start_offset"], "left_anti"
    )
    detail = sentence("The look was told nothing of the open transaction of %s.", "transactional_id")
    return anomalies(missed, detail, offset="start_offset", at_us="told_us")


def _wrongly_aborted(told: DataFrame, written: DataFrame) -> DataFrame:
    known = written.where("coalesce(error, '') != 'not_added'").select(
        *OPEN, "producer_epoch", "from_us", "surely_until_us", F.col("transactional_id").alias("owner")
    )
    wrong = (
        told.where("abort != ''")
        .join(known, [*OPEN, "producer_epoch"])
        .where("from_us <= asked_us and told_us < surely_until_us")
    )
    detail = sentence("The transaction of %s was aborted as a hanging one, while its producer had it open.", "owner")
    return anomalies(wrong, detail, offset="start_offset", at_us="told_us")


def _left(told: DataFrame) -> DataFrame:
    aborted = told.where("abort = 'ok'").groupBy(*OPEN).agg(F.min("abort_end_us").alias("ended_us"))
    left = told.join(aborted, OPEN).where("asked_us >= ended_us")
    detail = sentence("The transaction of producer %s was aborted before, and is told to be open.", "producer_id")
    return anomalies(left, detail, offset="start_offset", at_us="told_us")


JUDGED = Judging(
    "hanging-found",
    needs=("operations", "runs", "transactions", "told_transactions"),
    evidence="looks_at_partitions",
    unit="looks at partitions",
    find=transform,
    about=("X-12",),
    found_in="told_transactions",
)
