"""precommitted-read: a reader with read_committed had a value before its producer asked to commit the transaction.

All times are of one clock. The request to commit is sent at ``at_us`` at the earliest, so an answer that came before
cannot follow from it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.evidence import committed_reads
from reports.jobs.shared.intervals import meeting
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, SEQUENCES, TRANSACTIONS, VALUES, sent
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    sends = tables.once(sent).where("asked = 'commit'")
    values = sends.select(*VALUES, F.col("first_sequence").alias("low"), F.col("last_sequence").alias("high"), "at_us")
    read = ("process", "index", "shift")
    first = F.min(F.struct("complete_us", *read)).alias("first")
    # Every reader reads the same batches. The first of them is enough.
    reads = committed_reads(tables).groupBy(*VALUES, "first_sequence", "last_sequence").agg(first)
    early = meeting(reads.select("*", "first.*"), values, VALUES, SEQUENCES, ("low", "high"))
    early = early.where("complete_us < at_us")
    sequence = F.greatest("low", "first_sequence")
    early = early.withColumns({"sequence": sequence, "offset": sequence - F.col("shift"), "asked_us": F.col("at_us")})
    detail = sentence(
        "%s read value %s of %s %s us before its producer asked to commit it.",
        "process",
        "sequence",
        "writer",
        F.col("asked_us") - F.col("complete_us"),
    )
    return anomalies(early.drop("at_us"), detail)


JUDGED = Judging(
    "precommitted-read",
    needs=TRANSACTIONS,
    evidence="transactions_committed",
    unit="transactions whose commit was asked for",
    find=transform,
    about=ABOUT,
)
