"""session-lost: FETCH_SESSION_ID_NOT_FOUND for a session that this node made and has neither closed nor evicted.

A session that is closed because a request came with a wrong epoch is lost, too. In its trace the note of the closing
stands between that request and its refusal.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.jobs.session_epoch_order import session_anomalies
from reports.jobs.sessions import INVALID_SESSION_EPOCH, SESSION, answered_requests, session_rows
from reports.read_tables import Tables

NAME = "session-lost"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    requests = tables.once("answered_requests", answered_requests)
    lost = requests.where((F.col("outcome") == "unknown_id") & (F.col("alive") == 1))
    detail = sentence(
        "Node %s did not know session %s of %s (epoch %s), which it had neither closed nor evicted.",
        "node",
        "session",
        "client_id",
        "session_epoch",
    )
    unknown = session_anomalies(lost, NAME, detail)
    detail = sentence(
        "Node %s closed session %s of %s because of a request with the wrong epoch %s.",
        "node",
        "session",
        "client_id",
        "session_epoch",
    )
    return unknown.unionByName(session_anomalies(_closed_for_an_epoch(tables), NAME, detail))


def _closed_for_an_epoch(tables: Tables) -> DataFrame:
    """The refusal follows the note directly, or follows the error that ends a fetch which waited on the session."""
    order = Window.partitionBy(*SESSION).orderBy("seq")
    reply = F.struct("what", "connection", "error")
    rows = session_rows(tables).select(
        *SESSION,
        "seq",
        "at_us",
        "what",
        F.lag("what").over(order).alias("asked"),
        F.lag("connection").over(order).alias("connection"),
        F.lag("client_id").over(order).alias("client_id"),
        F.lag("session_epoch").over(order).alias("session_epoch"),
        F.lead(reply).over(order).alias("first"),
        F.lead(reply, 2).over(order).alias("second"),
    )
    asked = (F.col("what") == "session_closed") & (F.col("asked") == "request") & (F.col("session_epoch") > 0)
    return rows.where(asked & (_refused("first") | _refused("second")))


def _refused(reply: str) -> Column:
    refused = (
        (F.col(f"{reply}.what") == "reply")
        & (F.col(f"{reply}.connection") == F.col("connection"))
        & (F.col(f"{reply}.error") == INVALID_SESSION_EPOCH)
    )
    return F.coalesce(refused, F.lit(False))


JUDGED = Judging(
    NAME,
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    find=transform,
)
