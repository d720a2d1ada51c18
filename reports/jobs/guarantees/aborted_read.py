"""aborted-read (G1a): a reader with read_committed saw a value of a transaction that was never committed.

A transaction whose commit has an unknown end does not count: it may be committed. Readers with read_uncommitted may see
everything.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.evidence import committed_reads
from reports.jobs.shared.intervals import meeting
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, SEQUENCES, TRANSACTIONS, VALUES, seen, sent
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    failed = tables.once(sent).where("fate = 'fail'")
    shown = meeting(failed, tables.once(seen), VALUES, SEQUENCES, ("first", "last"))
    values = shown.select(
        *VALUES,
        F.greatest("first", "first_sequence").alias("low"),
        F.least("last", "last_sequence").alias("high"),
        F.col("process").alias("producer"),
        F.col("index").alias("sent_in"),
        "asked",
    )
    reads = committed_reads(tables).join(F.broadcast(values), VALUES)
    reads = reads.where("first_sequence <= high and last_sequence >= low")
    first = F.min(F.struct("complete_us", "process", "index", "shift")).alias("witness")
    found = reads.groupBy(*VALUES, "low", "high", "producer", "sent_in", "asked").agg(first)
    found = found.select("*", "witness.*").withColumn("offset", F.col("low") - F.col("shift"))
    detail = sentence(
        "%s read value %s of %s at offset %s. Its transaction (operation %s of %s) was not committed: the producer "
        "asked for %s.",
        "process",
        "low",
        "writer",
        "offset",
        "sent_in",
        "producer",
        "asked",
    )
    return anomalies(found, detail)


JUDGED = Judging(
    "aborted-read",
    needs=TRANSACTIONS,
    evidence="transactions_not_committed",
    unit="transactions that were not committed",
    find=transform,
    about=ABOUT,
)
