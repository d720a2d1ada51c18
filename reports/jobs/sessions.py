"""The trace of each fetch session: its requests with their answers, and the notes on its life.

A node answers a connection's requests in order, so the n-th answer to (connection, epoch) belongs to the n-th such
request. A node refuses at once, so a refusal directly follows its request in the session's own trace. An error that
comes later ends a fetch that had been accepted and was waiting. It does not tell what became of the epoch.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from reports.read_tables import Tables

FETCH = 1
LARGEST_EPOCH = 2**31 - 1
SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71
INVALID_FETCH_SESSION = 10001
"""The first revision gives this answer to an unknown session and to a wrong number alike."""
FIRST_REVISION = 1000
"""The version of Fetch that carries the first revision."""
SESSION = ("run", "node", "incarnation", "session")

_NOTES = ("session_created", "session_closed", "session_evicted")
_ROW = (
    *SESSION,
    "seq",
    "at_us",
    "what",
    "connection",
    "client_id",
    "api_version",
    "session_epoch",
    "answered_session_id",
    "error",
)


def session_rows(tables: Tables) -> DataFrame:
    """Requests and replies of incremental fetches (epoch > 0), and notes; ``session`` is the session's ID."""
    fetches = tables.trace.where(
        (F.col("api_key") == FETCH) & (F.col("session_id") != 0) & F.col("what").isin("request", "reply")
    ).withColumn("session", F.col("session_id"))
    notes = tables.trace.where(F.col("what").isin(*_NOTES)).withColumn("session", noted("session_id"))
    return fetches.select(*_ROW).unionByName(notes.select(*_ROW))


def noted(field: str) -> Column:
    return F.get_json_object("detail", f"$.{field}").cast("long")


def answered_requests(tables: Tables) -> DataFrame:
    """One row per incremental fetch request: SESSION, seq, at_us, client_id, session_epoch, ``outcome``
    (accepted, wrong_epoch, unknown_id, untold), ``alive`` (the session stood in the cache when it was asked),
    ``resends`` (of the first revision, in which the last number may be sent again)."""
    in_order = Window.partitionBy(*SESSION).orderBy("seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    life = F.when(F.col("what") == "session_created", 1).when(F.col("what").isin(*_NOTES[1:]), 0)
    same = Window.partitionBy(*SESSION, "connection", "session_epoch", "what").orderBy("seq")
    rows = (
        session_rows(tables)
        .withColumn("alive", F.coalesce(F.last(life, ignorenulls=True).over(so_far), F.lit(0)))
        .withColumn("at_once", _lagged_is_its_request(in_order))
        .withColumn("nth", F.row_number().over(same))
        .where((F.col("session_epoch") > 0) & F.col("what").isin("request", "reply"))
    )
    key = [*SESSION, "connection", "session_epoch", "nth"]
    replies = rows.where(F.col("what") == "reply").select(*key, "error", "at_once", "answered_session_id")
    requests = rows.where(F.col("what") == "request").drop("error", "at_once", "what", "answered_session_id")
    at_once = F.coalesce("at_once", F.lit(False))
    either = at_once & (F.col("error") == INVALID_FETCH_SESSION)
    outcome = (
        F.when(F.col("error") == 0, "accepted")
        .when(either & (F.col("alive") == 1), "wrong_epoch")
        .when(either, "unknown_id")
        .when(at_once & (F.col("error") == INVALID_SESSION_EPOCH), "wrong_epoch")
        .when(at_once & (F.col("error") == SESSION_ID_NOT_FOUND), "unknown_id")
        .otherwise("untold")
    )
    found = requests.join(replies, key, "left").withColumn("outcome", outcome)
    return found.withColumn("resends", F.col("api_version") == FIRST_REVISION).drop("api_version")


def _lagged_is_its_request(window: WindowSpec) -> Column:
    """In the first revision a request on the same connection ends the waiting request that it repeats.

    In the final revision only a refusal, or an epoch that is accepted twice, is answered so."""
    lagged = [F.lag(name).over(window) == F.col(name) for name in ("session_epoch", "connection")]
    same = lagged[0] & ((F.col("api_version") != FIRST_REVISION) | lagged[1])
    return (F.lag("what").over(window) == "request") & same
