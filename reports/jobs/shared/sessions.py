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
FIRST_REVISIONS = (1000, 1002)
"""The drafts of Fetch that carry the first revision: the page's, and that of followers."""
SESSION = ("run", "node", "incarnation", "session")
INCREMENTAL = f"session_epoch != 0 and (session_epoch != -1 or api_version in {FIRST_REVISIONS})"
"""The condition of a request (or its reply) that goes on in a session. All others are full."""

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
    "answered_session_id",
)
_LIFE = "case when what = 'session_created' then 1 when what in ('session_closed', 'session_evicted') then 0 end"


def session_notes(tables: Tables) -> DataFrame:
    """TRACE's notes on sessions; ``session`` is the session's ID."""
    return tables.trace.where(F.col("what").isin(*_NOTES)).withColumn("session", number("session_id"))


def session_rows(tables: Tables) -> DataFrame:
    """Requests and replies of fetches that name a session, or go on in one (``_ROW``), and the notes on sessions.

    ``session`` is the session's ID. ``alive`` says whether that session stood in the cache after the row. ``life``
    counts how often it had been created until then.
    """
    return _with_life(session_notes(tables).select(*_ROW), _fetches(tables).where(f"session != 0 or {INCREMENTAL}"))


def full_answers(tables: Tables) -> DataFrame:
    """Answers of the final revision to full fetches that carry a session's ID, as rows of that session. ``asked`` is
    the session that the request had named. Other columns are those of ``session_rows``."""
    given = _fetches(tables).where(f"what = 'reply' and not ({INCREMENTAL}) and answered_session_id != 0")
    given = given.where(f"api_version not in {FIRST_REVISIONS}").withColumn("asked", F.col("session"))
    given = given.withColumn("session", F.col("answered_session_id"))
    noted = session_notes(tables).select(*_ROW).withColumn("asked", F.lit(0).cast("long"))
    return _with_life(noted, given).where("what = 'reply'")


def _with_life(noted: DataFrame, rows: DataFrame) -> DataFrame:
    """Adds ``alive`` and ``life`` (see ``session_rows``) to both together."""
    until_now = so_far(Window.partitionBy(*SESSION).orderBy("seq"))
    both = rows.select(*noted.columns).unionByName(noted)
    alive = F.coalesce(F.last(F.expr(_LIFE), ignorenulls=True).over(until_now), F.lit(0))
    return both.withColumns({"alive": alive, "life": F.count_if(F.expr("what = 'session_created'")).over(until_now)})


def _fetches(tables: Tables) -> DataFrame:
    fetches = tables.trace.where(f"api_key = {FETCH} and what in ('request', 'reply')")
    return fetches.withColumn("session", F.col("session_id")).select(*_ROW)


def answered_requests(tables: Tables) -> DataFrame:
    """One row per incremental fetch request: SESSION, seq, at_us, connection, client_id, session_epoch, ``alive``,
    ``life``, ``of_first`` (of the first revision).

    Of its answer, null if the trace does not tell it: ``error``, ``reply_seq``, ``reply_us``, ``ended`` (the session
    had ended until then), ``at_once`` (nothing else happened in the session between the two).
    """
    in_order = Window.partitionBy(*SESSION).orderBy("seq")
    same = Window.partitionBy(*SESSION, "connection", "session_epoch", "what").orderBy("seq")
    rows = tables.once(session_rows).where("what in ('request', 'reply')")
    rows = rows.withColumn("before", F.lag("seq").over(in_order)).where(INCREMENTAL)
    rows = rows.withColumn("nth", F.row_number().over(same))
    key = [*SESSION, "connection", "session_epoch", "nth"]
    replies = rows.where("what = 'reply'").select(
        *key,
        "error",
        "before",
        F.col("seq").alias("reply_seq"),
        F.col("at_us").alias("reply_us"),
        F.struct("alive", "life").alias("at_reply"),
    )
    requests = rows.where("what = 'request'").drop("error", "before", "what", "answered_session_id")
    return (
        requests.join(replies, key, "left")
        .withColumn("of_first", F.col("api_version").isin(*FIRST_REVISIONS))
        .withColumn("at_once", F.expr("before = seq"))
        .withColumn("ended", F.expr("alive = 1 and (at_reply.alive = 0 or at_reply.life != life)"))
        .drop("api_version", "before", "at_reply")
    )
