"""hanging-transaction: the last stable offset stands below the high watermark once all is quiet.

A transaction may do that as long as its coordinator need not have aborted it: within its timeout and the interval in
which coordinators look for old ones (``transaction.abort.timed.out.transaction.cleanup.interval.ms``, 10 s by default).
Only transactions that the history knows, and of which nobody was told the end, may still be open.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import without_match
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.transactions import ABOUT, transactions
from reports.read_tables import Tables

CLEANUP_US = 10_000_000


def transform(tables: Tables) -> DataFrame:
    held = tables.ends.where("last_stable_offset >= 0 and last_stable_offset < high_watermark")
    untold = tables.once(transactions).where("outcome != 'ok'")
    may_be_open = f"other.at_us + other.timeout_us + {CLEANUP_US} >= this.end_us"
    hanging = without_match(held, untold, ["run"], may_be_open)
    detail = sentence(
        "The last stable offset stands at %s, and the high watermark at %s. No transaction may still be open.",
        "last_stable_offset",
        "high_watermark",
    )
    return anomalies(hanging, detail, offset=F.col("last_stable_offset"), at_us=F.col("end_us"))


JUDGED = Judging(
    "hanging-transaction",
    needs=("operations", "transactions", "ends"),
    evidence="transactions",
    unit="transactions",
    find=transform,
    about=ABOUT,
)
