"""Values in logs: corrupt-value, inconsistent-offsets, duplicate and nonmonotonic-send."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import (
    agreed_values,
    placed_values,
    sequences,
    with_clock_steps,
    with_witness,
    without_leaders_word,
)
from reports.jobs.expressions import PARTITION, READER
from reports.jobs.guarantee_job import LOG, GuaranteeJob, anomalies, counted, sentence
from reports.jobs.intervals import merged, overlaps, subtracted
from reports.manifest import PRODUCER_EXPIRATION_MS
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


_DUPLICATE = [*PARTITION, "writer", "producer_id"]
_SHOWN = ("first_sequence", "last_sequence", _DUPLICATE, ["shift"])


def duplicates_without_expiration(tables: Tables) -> DataFrame:
    """Return the duplicates of runs in which no ID of a producer expires.

    The rows that show how long a send lasted, and by how much clocks were stepped, may be missing before the end of a
    run.
    """
    clashes = written_twice(tables)
    if tables.config.producers_expire:
        clashes = clashes.where(tables.config.per_run("producer_expiration_us") >= PRODUCER_EXPIRATION_MS * 1000)
    return _duplicates(tables, clashes)


@GuaranteeJob(
    needs=LOG,
    evidence="idempotent_records_read",
    unit="records of idempotent producers read",
    early=duplicates_without_expiration,
)
def duplicate(tables: Tables) -> DataFrame:
    """duplicate: one value at two offsets under one producer ID.

    P-6 promises this for one producer ID only: a retry without one (-1) may write twice, so such writers are not
    judged. P-7: neither are values whose ID may have expired between the two writes.
    """
    clashes = written_twice(tables)
    if tables.config.producers_expire:
        clashes = subtracted(clashes, _expired_between(tables, clashes), [*_DUPLICATE, "shift", "other_shift"])
    return _duplicates(tables, clashes)


def written_twice(tables: Tables) -> DataFrame:
    """Return the sequences of a writer that are at two offsets each under one producer ID.

    Columns: _DUPLICATE, first, last, shift, other_shift."""
    agreed = sequences(tables.once(agreed_values).where("producer_id >= 0"), [*_DUPLICATE, "shift"])
    return overlaps(agreed, _DUPLICATE, ["shift"])


def _duplicates(tables: Tables, clashes: DataFrame) -> DataFrame:
    seen = with_witness(clashes, placed_values(tables).where("producer_id >= 0"), *_SHOWN)
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


def _expired_between(tables: Tables, clashes: DataFrame) -> DataFrame:
    """Return the parts of ``written_twice`` between whose writes the producer ID may have expired.

    An ID without an open transaction expires when ``producer.id.expiration.ms`` have passed since the timestamp of its
    last record, by the clock of a node (P-7). The timestamp is that of the clock tick in which the send began, or of a
    later one. So the send, with its retries, lasted at least for the expiration less a tick and less all steps of
    clocks. It lasted until its end, unless both values were known before. Values of a send whose end is unknown may
    have been written after it. A step of unknown size excuses nothing.
    """
    expiration_us, tick_us = (tables.config.per_run(setting) for setting in ("producer_expiration_us", "clock_tick_us"))
    sends = with_clock_steps(tables.sends.where("f = 'produce' and invoke_us >= 0"), tables)
    sends = sends.withColumn("least_us", expiration_us - tick_us - F.col("stepped_us"))
    lasting = sends.where("type = 'info' or complete_us - invoke_us >= least_us")
    parts = (
        lasting.select(*PARTITION, "writer", "first_sequence", "last_sequence", "invoke_us", "least_us")
        .join(F.broadcast(clashes), [*PARTITION, "writer"])
        .where("first_sequence <= last and last_sequence >= first")
        .withColumns({"first": F.greatest("first", "first_sequence"), "last": F.least("last", "last_sequence")})
        .select(*clashes.columns, "invoke_us", "least_us")
    )
    shown = with_witness(parts, placed_values(tables).where("producer_id >= 0"), *_SHOWN)
    return shown.where("complete_us - invoke_us >= least_us")


@GuaranteeJob(
    needs=LOG,
    evidence="acked_sends",
    unit="acknowledged sends",
)
def nonmonotonic_send(tables: Tables) -> DataFrame:
    """nonmonotonic-send: a producer's next acknowledged send to a partition is at or before its last one.

    A new leader may write again at offsets that only the old one had acknowledged (acks=1). Such sends are omitted.
    """
    placed = without_leaders_word(tables.sends.where("type in ('ok', 'info') and first_offset >= 0"), tables)
    in_order = Window.partitionBy(*READER).orderBy("index", "position")
    back = placed.withColumn("previous", F.lag("last_offset").over(in_order)).where("first_offset <= previous")
    detail = sentence("A send was acknowledged at offset %s after one at offset %s.", "first_offset", "previous")
    return anomalies(back, detail, offset="first_offset")
