"""lost-write: nobody read an acknowledged record, although reads went beyond it.

Records below a log start that some client was told are not missed, since retention or DeleteRecords may have removed
them.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, counted, sentence
from reports.jobs.shared.judging import LOG, Judging
from reports.jobs.shared.unread import unread
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    lost = tables.once(unread).where("first_offset <= reach")
    detail = sentence(
        "Offset %s (value %s of %s) was acknowledged and never read, though reads went on to offset %s. %s",
        "first_offset",
        "first_sequence",
        "writer",
        "reach",
        counted(
            F.least("last_offset", "reach") - F.col("first_offset") + 1, "One record is lost.", "%s records are lost."
        ),
    )
    return anomalies(lost, detail, offset="first_offset")


JUDGED = Judging(
    "lost-write",
    needs=LOG,
    evidence="records_acked",
    unit="records acknowledged",
    find=transform,
)
