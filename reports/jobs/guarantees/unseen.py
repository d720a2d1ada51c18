"""unseen: nobody read an acknowledged record, although the partition was read to its end (ENDS).

Those that reads overtook belong to lost-write, too.
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
    missing = tables.once(unread).join(ends, PARTITION)
    detail = sentence(
        "Offset %s, written by %s, was acknowledged and not read by the end. The high watermark was %s then. %s",
        "first_offset",
        "writer",
        "high_watermark",
        counted(F.col("last_offset") - F.col("first_offset") + 1, "One record is unseen.", "%s records are unseen."),
    )
    return anomalies(missing, detail, offset="first_offset")


JUDGED = Judging(
    "unseen",
    needs=(*LOG, "ends"),
    evidence="records_acked",
    unit="records acknowledged",
    find=transform,
)
