"""lost-transaction: a commit was acknowledged, and no reader with read_committed ever saw any of its values.

If some are there, it is torn-transaction. A transactional ID that is in use must not go on with another producer ID or
a lower epoch (X-1) either: then its coordinator has forgotten it, and with it what was decided and not told.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, TRANSACTIONS, parts
from reports.read_tables import Tables

USED_UP = 30_000
"""From this epoch on the next producer may get another producer ID, since epochs end at 32,767."""
IDLE_US = 2_500_000
"""Who was idle for so long may have been forgotten: no scenario has a smaller transactional.id.expiration.ms (X-10)."""


def transform(tables: Tables) -> DataFrame:
    return _nothing_there(tables).unionByName(_forgotten(tables))


def _forgotten(tables: Tables) -> DataFrame:
    in_order = Window.partitionBy("run", "process", "transactional_id").orderBy("index")
    identity = F.struct("producer_id", "producer_epoch", "from_us")
    followed = tables.transactions.where("producer_id >= 0").withColumn("last", F.lag(identity).over(in_order))
    lower = "producer_id = last.producer_id and producer_epoch < last.producer_epoch"
    other = (
        f"producer_id != last.producer_id and last.producer_epoch < {USED_UP} and from_us - last.from_us < {IDLE_US}"
    )
    detail = sentence(
        "%s went on as producer %s with epoch %s after producer %s with epoch %s, so its coordinator forgot it.",
        "transactional_id",
        "producer_id",
        "producer_epoch",
        "last.producer_id",
        "last.producer_epoch",
    )
    return anomalies(followed.where(f"({lower}) or ({other})"), detail, at_us="from_us")


def _nothing_there(tables: Tables) -> DataFrame:
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
