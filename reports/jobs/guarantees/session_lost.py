"""session-lost: FETCH_SESSION_ID_NOT_FOUND for a session that this node made and has neither closed nor evicted.

A session that is closed because a request came with a wrong epoch is lost, too. In its trace the note of the closing
stands between that request and its refusal.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.sessions import INVALID_SESSION_EPOCH, SESSION, answered_requests, session_rows
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    lost = tables.once(answered_requests).where("outcome = 'unknown_id' and alive = 1")
    unknown = sentence(
        "Node %s did not know session %s of %s (epoch %s), which it had neither closed nor evicted.",
        "node",
        "session",
        "client_id",
        "session_epoch",
    )
    closed = sentence(
        "Node %s closed session %s of %s because of a request with the wrong epoch %s.",
        "node",
        "session",
        "client_id",
        "session_epoch",
    )
    found = anomalies(lost, unknown, process="client_id")
    return found.unionByName(anomalies(_closed_for_an_epoch(tables), closed, process="client_id"))


def _closed_for_an_epoch(tables: Tables) -> DataFrame:
    """The refusal follows the note directly, or follows the error that ends a fetch which waited on the session."""
    order = Window.partitionBy(*SESSION).orderBy("seq")
    reply = F.struct("what", "connection", "error")
    rows = session_rows(tables).select(
        *SESSION,
        "at_us",
        "what",
        F.lag("what").over(order).alias("asked"),
        *(F.lag(name).over(order).alias(name) for name in ("connection", "client_id", "session_epoch")),
        F.lead(reply).over(order).alias("first"),
        F.lead(reply, 2).over(order).alias("second"),
    )
    closed = rows.where("what = 'session_closed' and asked = 'request' and session_epoch > 0")
    refusal = F.expr(f"struct('reply' as what, connection, {INVALID_SESSION_EPOCH}L as error)")
    return closed.where(F.col("first").eqNullSafe(refusal) | F.col("second").eqNullSafe(refusal))


JUDGED = Judging(
    "session-lost",
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    find=transform,
)
