"""unseen: nobody read an acknowledged record, although the partition was read to its end (ENDS).

Records that reads overtook belong to lost-write.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.expressions import PARTITION
from reports.jobs.shared.judging import LOG, Judging
from reports.jobs.shared.unread import unread
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    ends = tables.ends.select(*PARTITION, "high_watermark")
    tail = tables.once(unread).where("last_offset > reach").join(ends, PARTITION)
    tail = tail.withColumn("from", F.greatest("first_offset", F.col("reach") + 1))
    detail = sentence(
        "Offset %s, written by %s, was acknowledged and not read by the end. The high watermark was %s then. %s",
        "from",
        "writer",
        "high_watermark",
        counted(F.col("last_offset") - F.col("from") + 1, "One record is unseen.", "%s records are unseen."),
    )
    return anomalies(tail, detail, offset="from")


JUDGED = Judging(
    "unseen",
    needs=(*LOG, "ends"),
    evidence="records_acked",
    unit="records acknowledged",
    find=transform,
)
