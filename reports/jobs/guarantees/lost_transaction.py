"""lost-transaction: a commit was acknowledged, and no reader with read_committed ever saw any of its values.

If some are there, it is torn-transaction.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, TRANSACTIONS, parts
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    lost = tables.once(parts).where("fate = 'ok' and there = 0")
    detail = sentence(
        "Operation %s of %s committed %s values as %s, and nobody ever read one of them. One is value %s of %s, at "
        "offset %s.",
        "index",
        "process",
        "values",
        "transactional_id",
        "sequence",
        "writer",
        "offset",
    )
    return anomalies(lost, detail, at_us=F.col("until_us"))


JUDGED = Judging(
    "lost-transaction",
    needs=TRANSACTIONS,
    evidence="transactions_ok",
    unit="transactions that were committed",
    find=transform,
    about=ABOUT,
)
