"""The trace of each fetch session: its requests with their answers, and the notes on its life.

A node answers a connection's requests in order, so the n-th answer to (connection, epoch) belongs to the n-th such
request. A node refuses at once, so a refusal directly follows its request in the session's own trace. An error that
comes later ends a fetch that had been accepted and was waiting. It does not tell what became of the epoch.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import so_far
from reports.jobs.shared.notes import number
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
    "error",
)
_FOLLOWS_ITS_REQUEST = (
    "asked.what = 'request' and asked.session_epoch = session_epoch "
    f"and (api_version < {FIRST_REVISION} or asked.connection = connection)"
)
"""In the first revision a request on the same connection ends the waiting request that it repeats. In the final
revision only a refusal, or an epoch that is accepted twice, follows its request."""


def session_notes(tables: Tables) -> DataFrame:
    """TRACE's notes on sessions; ``session`` is the session's ID."""
    return tables.trace.where(F.col("what").isin(*_NOTES)).withColumn("session", number("session_id"))


def session_rows(tables: Tables) -> DataFrame:
    """Requests and replies of incremental fetches (epoch > 0), and notes; ``session`` is the session's ID."""
    fetches = tables.trace.where(f"api_key = {FETCH} and session_id != 0 and what in ('request', 'reply')")
    requests = fetches.withColumn("session", F.col("session_id"))
    return requests.select(*_ROW).unionByName(session_notes(tables).select(*_ROW))


def answered_requests(tables: Tables) -> DataFrame:
    """One row per incremental fetch request: SESSION, seq, at_us, client_id, session_epoch, ``outcome``
    (accepted, wrong_epoch, unknown_id, untold), ``alive`` (the session stood in the cache when it was asked),
    ``resends`` (of the first revision, in which the last number may be sent again)."""
    in_order = Window.partitionBy(*SESSION).orderBy("seq")
    life = F.expr(
        "case when what = 'session_created' then 1 when what in ('session_closed', 'session_evicted') then 0 end"
    )
    same = Window.partitionBy(*SESSION, "connection", "session_epoch", "what").orderBy("seq")
    asked = F.struct("what", "session_epoch", "connection")
    rows = (
        session_rows(tables)
        .withColumn("alive", F.coalesce(F.last(life, ignorenulls=True).over(so_far(in_order)), F.lit(0)))
        .withColumn("asked", F.lag(asked).over(in_order))
        .withColumn("at_once", F.expr(_FOLLOWS_ITS_REQUEST))
        .withColumn("nth", F.row_number().over(same))
        .where("session_epoch > 0")
    )
    key = [*SESSION, "connection", "session_epoch", "nth"]
    replies = rows.where("what = 'reply'").select(*key, "error", "at_once")
    requests = rows.where("what = 'request'").drop("error", "at_once", "what", "asked")
    outcome = F.expr(
        "case when error = 0 then 'accepted' when not coalesce(at_once, false) then 'untold' "
        f"when error = {INVALID_SESSION_EPOCH} or error = {INVALID_FETCH_SESSION} and alive = 1 then 'wrong_epoch' "
        f"when error in ({SESSION_ID_NOT_FOUND}, {INVALID_FETCH_SESSION}) then 'unknown_id' else 'untold' end"
    )
    found = requests.join(replies, key, "left").withColumn("outcome", outcome)
    return found.withColumn("resends", F.col("api_version") >= FIRST_REVISION).drop("api_version")
