"""duplicate: one value at two offsets under one producer ID.

P-6 promises this for one producer ID only: a retry without one (-1) may write twice, so such writers are not judged.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.evidence import agreed_values, placed_values, sequences, with_witness
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.intervals import overlaps
from reports.jobs.shared.judging import LOG, Judging
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
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


JUDGED = Judging(
    "duplicate",
    needs=LOG,
    evidence="idempotent_records_read",
    unit="records of idempotent producers read",
    find=transform,
)
