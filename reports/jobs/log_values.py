"""Values in logs: corrupt-value, inconsistent-offsets, duplicate and nonmonotonic-send."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import agreed_values, placed_values, sequences, with_witness, without_leaders_word
from reports.jobs.expressions import PARTITION, READER
from reports.jobs.guarantee_job import LOG, GuaranteeJob, anomalies, counted, sentence
from reports.jobs.intervals import merged, overlaps
from reports.read_tables import Tables


@GuaranteeJob(
    needs=LOG,
    evidence="records_read",
    unit="records read",
)
def corrupt_value(tables: Tables) -> DataFrame:
    """corrupt-value: a record was read whose value no writer of ours made. Its checksum is wrong or missing."""
    bad = tables.reads.where("not valid or writer = ''")
    records = counted("count", "one record is", "%s records are")
    detail = sentence("From offset %s on %s not what any writer of this run sent.", "first_offset", records)
    return anomalies(bad, detail, offset="first_offset")


@GuaranteeJob(
    needs=LOG,
    evidence="records_read",
    unit="records read",
)
def inconsistent_offsets(tables: Tables) -> DataFrame:
    """inconsistent-offsets: two values at one offset.

    The evidence is every read, however its operation ended, and every acknowledged send. Intervals that agree (same
    writer, same shift) are merged. Any two that still overlap disagree about each offset that they share.
    """
    values = placed_values(tables)
    agreed = merged(tables.once(agreed_values), [*PARTITION, "writer", "shift"], "first", "last")
    clashes = overlaps(agreed, PARTITION, ["writer", "shift"])
    seen = with_witness(clashes, values, "first_offset", "last_offset", PARTITION, ["writer", "shift"])
    detail = sentence(
        "Offset %s holds value %s of %s and value %s of %s. %s offsets hold two values.",
        "first",
        F.col("first") + F.col("other_shift"),
        "other_writer",
        F.col("first") + F.col("shift"),
        "writer",
        F.col("last") - F.col("first") + 1,
    )
    return anomalies(seen, detail, offset="first")


@GuaranteeJob(
    needs=LOG,
    evidence="idempotent_records_read",
    unit="records of idempotent producers read",
)
def duplicate(tables: Tables) -> DataFrame:
    """duplicate: one value at two offsets under one producer ID.

    P-6 promises this for one producer ID only: a retry without one (-1) may write twice, so such writers are not
    judged.
    """
    values = placed_values(tables).where("producer_id >= 0")
    keys = [*PARTITION, "writer", "producer_id"]
    agreed = sequences(tables.once(agreed_values).where("producer_id >= 0"), [*keys, "shift"])
    clashes = overlaps(agreed, keys, ["shift"])
    seen = with_witness(clashes, values, "first_sequence", "last_sequence", keys, ["shift"])
    detail = sentence(
        "Value %s of %s is at offset %s and at offset %s under producer ID %s. %s values are there twice.",
        "first",
        "writer",
        F.col("first") - F.col("other_shift"),
        F.col("first") - F.col("shift"),
        "producer_id",
        F.col("last") - F.col("first") + 1,
    )
    return anomalies(seen, detail, offset=F.col("first") - F.col("shift"))


@GuaranteeJob(
    needs=LOG,
    evidence="acked_sends",
    unit="acknowledged sends",
)
def nonmonotonic_send(tables: Tables) -> DataFrame:
    """nonmonotonic-send: a producer's next acknowledged send to a partition is at or before its last one.

    A new leader may write again at offsets that only the old one had acknowledged (acks=1). Such sends are left out.
    """
    placed = without_leaders_word(tables.sends.where("type in ('ok', 'info') and first_offset >= 0"), tables)
    in_order = Window.partitionBy(*READER).orderBy("index", "position")
    back = placed.withColumn("previous", F.lag("last_offset").over(in_order)).where("first_offset <= previous")
    detail = sentence("A send was acknowledged at offset %s after one at offset %s.", "first_offset", "previous")
    return anomalies(back, detail, offset="first_offset")
