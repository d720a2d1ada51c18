"""Acknowledged values that are lost: those that no ok operation ever read, and those beyond the end of their log. They
are the common part of lost-write and unseen.

As with Jepsen, unseen is all of them, and lost-write those that reads overtook. Values of an operation with unknown end
count if a part of their run was read, because a batch is written whole or not at all. A record that only the leader of
a replicated partition acknowledged (acks=1) may be lost with that leader, so it does not count. Neither does one that
a cleaner may have taken (X-11).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.evidence import durably_acknowledged, log_starts, read_values, sequences
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.intervals import meeting, merged, subtracted
from reports.jobs.shared.keyed import excused, has_keyed
from reports.read_tables import Tables

_KEYS = [*PARTITION, "writer"]
_SEND = (*_KEYS, "first_offset", "first_sequence", "last_sequence", "process", "index", "complete_us")
_OVERLAP = "first_sequence <= last and last_sequence >= first"


def unread(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, writer, process, index, complete_us, first_offset, last_offset, first_sequence,
    reach (highest offset that an ok operation read of the partition, -1 none), start_offset (log start, 0 unknown)."""
    read = tables.once(read_values).where("is_ok")
    seen = sequences(read.where("is_ours"), _KEYS)
    if has_keyed(tables):
        taken = excused(tables, _KEYS, 0).withColumnsRenamed({"first_sequence": "first", "last_sequence": "last"})
        seen = merged(seen.unionByName(taken), _KEYS, "first", "last")
    sends = tables.once(written)
    missing = subtracted(merged(sends, _KEYS, "first_sequence", "last_sequence"), seen, _KEYS)
    # Broadcast, so that the sends need not be moved: few are missing in all but the worst of runs.
    parts = sends.join(F.broadcast(missing), _KEYS).where(_OVERLAP)
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
    reach = read.groupBy(*PARTITION).agg(F.max("last").alias("reach"))
    return (
        clipped.join(reach, PARTITION, "left")
        .join(log_starts(tables), PARTITION, "left")
        .fillna({"reach": -1, "start_offset": 0})
        .withColumn("first_offset", F.greatest("first_offset", "start_offset"))
        .where("last_offset >= start_offset")
    )


def beyond_the_end(tables: Tables) -> DataFrame:
    """Acknowledged values at or above the high watermark at which the final read found the end of their partition,
    whoever may have read them before. A partition that does not exist any more ends at 0.

    Columns: as ``unread`` but reach and start_offset, and high_watermark, error (why the partition is not there)."""
    ends = tables.ends.select(*PARTITION, "high_watermark", "error")
    sends = durably_acknowledged(tables).select(*_SEND, "last_offset").join(F.broadcast(ends), PARTITION)
    gone = sends.where("last_offset >= high_watermark")
    first = F.greatest("first_offset", "high_watermark")
    return gone.withColumns(
        {"first_offset": first, "first_sequence": F.col("first_sequence") + first - F.col("first_offset")}
    ).drop("last_sequence")


def lost(tables: Tables) -> DataFrame:
    """All of them, each once. Columns: those that both have, reach (-1 for values beyond the end), high_watermark
    (null if the partition was not read to its end), error, is_gone (beyond the end)."""
    gone = tables.once(beyond_the_end)
    ends = tables.ends.select(*PARTITION, "high_watermark", "error")
    others = tables.once(unread).join(gone, [*PARTITION, "process", "index"], "left_anti")
    others = others.join(F.broadcast(ends), PARTITION, "left")
    columns = [name for name in gone.columns if name not in ("high_watermark", "error")]
    told = [*columns, "reach", "high_watermark", "error", "is_gone"]
    gone = gone.withColumns({"reach": F.lit(-1).cast("long"), "is_gone": F.lit(True)})
    return gone.select(*told).unionByName(others.withColumn("is_gone", F.lit(False)).select(*told))


def written(tables: Tables) -> DataFrame:
    """Sends of which a record is in the log: those acknowledged, and those of unknown end from which a value was read,
    with the offset that the read implies."""
    unknown = tables.sends.where("type = 'info'")
    asked = F.broadcast(unknown.select(*_KEYS).distinct())  # There are few writers and partitions.
    read = tables.once(read_values).where("is_ok and is_ours").join(asked, _KEYS, "left_semi")
    places = sequences(read, [*_KEYS, "shift"]).withColumnRenamed("shift", "read_shift")
    found = meeting(places, unknown, _KEYS, ("first", "last"), ("first_sequence", "last_sequence"))
    implied = found.groupBy(*(name for name in _SEND if name != "first_offset")).agg(
        (F.col("first_sequence") - F.max("read_shift")).alias("first_offset")
    )
    return durably_acknowledged(tables).select(*_SEND).unionByName(implied)
