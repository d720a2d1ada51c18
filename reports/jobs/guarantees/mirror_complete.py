"""mirror-complete: the target of a mirror holds at the end whatever the source holds.

Only partitions that were read to their end in both clusters are judged. Offsets over which a reset moved the mirror's
position forward do not count (its reset policy is ``latest``, or records were deleted before it came to them). The
target may hold a record twice, since the promise is at least once; that is only counted.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.measurements.mirror import held_by_target
from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.intervals import merged, subtracted
from reports.jobs.shared.judging import Judging
from reports.read_tables import Tables

WRITER_SUFFIX = "-writer"
"""A mirror's name followed by this is its other half, which writes."""
_VALUE = [*PARTITION, "writer"]


def transform(tables: Tables) -> DataFrame:
    source = tables.reads.where("f = 'final_read' and type = 'ok' and writer != ''")
    source = source.join(F.broadcast(_judged(tables)), PARTITION, "left_semi")
    wanted = merged(source, _VALUE, "first_sequence", "last_sequence")
    held = held_by_target(tables).select(*_VALUE, "first_sequence", "last_sequence")
    found = merged(held.unionByName(_jumped_over(source, tables)), _VALUE, "first_sequence", "last_sequence")
    missing = subtracted(wanted, found, _VALUE)
    lost = F.broadcast(missing).join(source, _VALUE).where("first_sequence <= last and last_sequence >= first")
    lost = lost.withColumns(
        {
            "from": F.greatest("first", "first_sequence") - F.col("shift"),
            "to": F.least("last", "last_sequence") - F.col("shift"),
        }
    )
    detail = sentence(
        "The source holds offsets %s to %s, written by %s. The cluster that they were copied to does not.",
        "from",
        "to",
        "writer",
    )
    return anomalies(lost, detail, offset="from")


def _jumped_over(source: DataFrame, tables: Tables) -> DataFrame:
    """The values at offsets over which a reset moved the mirror (Kafka's auto.offset.reset). Columns: _VALUE,
    first_sequence, last_sequence."""
    mirrors = tables.copies.select("run", F.regexp_replace("process", f"{WRITER_SUFFIX}$", "").alias("process"))
    resets = tables.resets.where("to_offset > greatest(from_offset, 0)")
    jumps = resets.join(F.broadcast(mirrors.distinct()), ["run", "process"], "left_semi")
    jumps = jumps.select(*PARTITION, "from_offset", (F.col("to_offset") - 1).alias("until_offset"))
    over = source.join(F.broadcast(jumps), PARTITION)
    over = over.where("first_offset <= until_offset and last_offset >= from_offset")
    return over.select(
        *_VALUE,
        (F.greatest("first_offset", "from_offset") + F.col("shift")).alias("first_sequence"),
        (F.least("last_offset", "until_offset") + F.col("shift")).alias("last_sequence"),
    )


def _judged(tables: Tables) -> DataFrame:
    """Partitions read to their end in both clusters."""
    read = tables.target_runs.where("count = 0").select(*PARTITION).distinct()
    return read.join(F.broadcast(tables.ends), PARTITION, "left_semi")


JUDGED = Judging(
    "mirror-complete",
    needs=("operations", "runs", "ends", "target_runs"),
    evidence="records_at_target",
    unit="records read at the target",
    find=transform,
)
