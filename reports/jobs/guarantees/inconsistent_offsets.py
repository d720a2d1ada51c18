"""inconsistent-offsets: two values at one offset.

The evidence is every read, however its operation ended, and every acknowledged send. Intervals that agree (same
writer, same shift) are merged. Any two that still overlap disagree about each offset that they share.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.evidence import agreed_values, placed_values, with_witness
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.intervals import merged, overlaps
from reports.jobs.shared.judging import LOG, Judging
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
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


JUDGED = Judging(
    "inconsistent-offsets",
    needs=LOG,
    evidence="records_read",
    unit="records read",
    find=transform,
)
