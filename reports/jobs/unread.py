"""Acknowledged values that no ok operation ever read: the common part of lost-write and unseen.

Jepsen's ``unseen`` is both together. Here lost-write holds the values that reads overtook and unseen holds the rest, so
each breach is told once. Values of an operation with unknown end count if a part of their run was read, because a batch
is written whole or not at all. What only the leader of a replicated partition acknowledged (acks=1) may be lost with
it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import PARTITION
from reports.jobs.evidence import durably_acknowledged, log_starts, ok_reads
from reports.jobs.intervals import merged, subtracted
from reports.read_tables import Tables

_KEYS = (*PARTITION, "writer")
_SEND = (*_KEYS, "first_offset", "first_sequence", "last_sequence", "process", "index", "complete_us")


def unread(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, writer, process, index, complete_us, first_offset, last_offset, first_sequence,

    reach (highest offset that an ok operation read of the partition, -1 none), start_offset (log start, 0 unknown).
    """
    reads = ok_reads(tables).where(F.col("valid") & (F.col("writer") != ""))
    sends = tables.once("written", _written)
    written = merged(sends, _KEYS, "first_sequence", "last_sequence")
    seen = merged(reads, _KEYS, "first_sequence", "last_sequence")
    missing = subtracted(written, seen, _KEYS)
    # Broadcast, so that the sends need not be moved: few are missing in all but the worst of runs.
    parts = sends.join(F.broadcast(missing), list(_KEYS)).where(
        (F.col("first_sequence") <= F.col("last")) & (F.col("last_sequence") >= F.col("first"))
    )
    low, high = F.greatest("first", "first_sequence"), F.least("last", "last_sequence")
    shift = F.col("first_sequence") - F.col("first_offset")
    clipped = parts.select(
        *_KEYS,
        "process",
        "index",
        "complete_us",
        low.alias("first_sequence"),
        (low - shift).alias("first_offset"),
        (high - shift).alias("last_offset"),
    )
    reach = ok_reads(tables).groupBy(*PARTITION).agg(F.max("last_offset").alias("reach"))
    return (
        clipped.join(reach, list(PARTITION), "left")
        .join(log_starts(tables), list(PARTITION), "left")
        .withColumn("reach", F.coalesce("reach", F.lit(-1)))
        .withColumn("start_offset", F.coalesce("start_offset", F.lit(0)))
        .withColumn("first_offset", F.greatest("first_offset", "start_offset"))
        .withColumn("first_sequence", F.col("first_sequence"))
        .where(F.col("last_offset") >= F.col("start_offset"))
    )


def _written(tables: Tables) -> DataFrame:
    reads = ok_reads(tables).where(F.col("valid") & (F.col("writer") != ""))
    return durably_acknowledged(tables).select(*_SEND).unionByName(_proven(tables, reads))


def _proven(tables: Tables, reads: DataFrame) -> DataFrame:
    """Sends of unknown end from which a value was read, with the offset that the read implies."""
    unknown = tables.sends.where(F.col("type") == "info")
    asked = F.broadcast(unknown.select(*_KEYS).distinct())  # There are few writers and partitions.
    places = merged(reads.join(asked, list(_KEYS), "left_semi"), [*_KEYS, "shift"], "first_sequence", "last_sequence")
    known = places.select(*_KEYS, "first", "last", F.col("shift").alias("read_shift"))
    found = known.join(F.broadcast(unknown), list(_KEYS)).where(
        (F.col("first_sequence") <= F.col("last")) & (F.col("last_sequence") >= F.col("first"))
    )
    columns = [name for name in _SEND if name != "first_offset"]
    implied = found.groupBy(*columns).agg(F.max("read_shift").alias("read_shift"))
    return implied.withColumn("first_offset", F.col("first_sequence") - F.col("read_shift")).select(*_SEND)
