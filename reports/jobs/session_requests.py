"""The requests of fetch sessions, in the trace of our broker and in the frames before another one.

In the trace: a node responds to the requests of a connection in order, so the n-th reply to (connection, epoch) belongs
to the n-th such request. A node refuses at once, so a refusal directly follows its request in the session's own trace.
A later error ends a fetch that had been accepted and was parked. It does not show whether the epoch advanced.

In the frames: the proxy sees when a request goes to the node and when its response comes, and not what the node does in
between. Requests that are under way on two connections at once may be handled in either order. So only a *clear*
request is judged: all earlier requests of its session have their responses when it is sent, and no other request of the
session is sent until its own response. After a request without a response, or with an error that does not show whether
the epoch advanced, no request of the session is clear any more. A node may evict a session at any time to make room for
another one (F-18), which the proxy does not see. So FETCH_SESSION_ID_NOT_FOUND ends a session here.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import before, number, so_far
from reports.read_tables import Tables

FETCH = 1
LARGEST_EPOCH = 2**31 - 1
SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71
INVALID_FETCH_SESSION = 10001
"""The first revision gives this response to an unknown session and to a wrong number alike."""
FIRST_REVISIONS = (1000, 1002)
"""The drafts of Fetch that carry the first revision: the page's, and that of followers."""
RETURNED = "kind in ('returned', 'told')"
"""The condition of a line in a response. Older runs have the second word."""
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
    "response_session_id",
)
_LIFE = "case when what = 'session_created' then 1 when what in ('session_closed', 'session_evicted') then 0 end"


def session_notes(tables: Tables) -> DataFrame:
    """TRACE's notes on sessions; ``session`` is the session's ID."""
    return tables.trace.where(F.col("what").isin(*_NOTES)).withColumn("session", number("session_id"))


def session_rows(tables: Tables) -> DataFrame:
    """Return requests and replies of fetches that name a session, or continue one (``_ROW``), and the notes on
    sessions.

    ``session`` is the session's ID. ``alive`` says whether that session was in the cache after the row. ``life`` counts
    how often it had been created until then.
    """
    return _with_life(session_notes(tables).select(*_ROW), _fetches(tables).where(f"session != 0 or {INCREMENTAL}"))


def full_responses(tables: Tables) -> DataFrame:
    """Return the replies of the final revision to full fetches that have a session's ID, as rows of that session.

    ``requested`` is the session that the request had named. Other columns are those of ``session_rows``.
    """
    replies = _fetches(tables).where(f"what = 'reply' and not ({INCREMENTAL}) and response_session_id != 0")
    replies = replies.where(f"api_version not in {FIRST_REVISIONS}").withColumn("requested", F.col("session"))
    replies = replies.withColumn("session", F.col("response_session_id"))
    noted = session_notes(tables).select(*_ROW).withColumn("requested", F.lit(0).cast("long"))
    return _with_life(noted, replies).where("what = 'reply'")


def _with_life(noted: DataFrame, rows: DataFrame) -> DataFrame:
    """Add ``alive`` and ``life`` (see ``session_rows``) to both together."""
    until_now = so_far(Window.partitionBy(*SESSION).orderBy("seq"))
    both = rows.select(*noted.columns).unionByName(noted)
    alive = F.coalesce(F.last(F.expr(_LIFE), ignorenulls=True).over(until_now), F.lit(0))
    return both.withColumns({"alive": alive, "life": F.count_if(F.expr("what = 'session_created'")).over(until_now)})


def _fetches(tables: Tables) -> DataFrame:
    fetches = tables.trace.where(f"api_key = {FETCH} and what in ('request', 'reply')")
    return fetches.withColumn("session", F.col("session_id")).select(*_ROW)


def requests_with_replies(tables: Tables) -> DataFrame:
    """Return one row for each incremental fetch request: SESSION, seq, at_us, connection, client_id, session_epoch,
    ``alive``, ``life``, ``of_first`` (of the first revision).

    Of its reply, null if the trace lacks it: ``error``, ``reply_seq``, ``reply_us``, ``ended`` (the session had ended
    until then), ``at_once`` (nothing else happened in the session between the two).
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
    requests = rows.where("what = 'request'").drop("error", "before", "what", "response_session_id")
    return (
        requests.join(replies, key, "left")
        .withColumn("of_first", F.col("api_version").isin(*FIRST_REVISIONS))
        .withColumn("at_once", F.expr("before = seq"))
        .withColumn("ended", F.expr("alive = 1 and (at_reply.alive = 0 or at_reply.life != life)"))
        .drop("api_version", "before", "at_reply")
    )


WIRE_SESSION = ("run", "node", "session")
WIRE_LINE = (*WIRE_SESSION, "topic", "partition")
_SESSIONS_SINCE = 7
_NEVER = 2**63 - 1
_SHOWS_EPOCH = f"response_seq >= 0 and error in (0, {SESSION_ID_NOT_FOUND}, {INVALID_SESSION_EPOCH})"
ENDS_WIRE_SESSION = (
    f"error = 0 and (session_epoch <= 0 or response_session_id != session) or error = {SESSION_ID_NOT_FOUND} "
    "and response_seq >= 0"
)
"""The condition of a request after which its session is gone: it was closed (F-6, F-8), or unknown."""


def wire_fetches(tables: Tables) -> DataFrame:
    """FRAMES of fetches in the versions that have sessions."""
    return tables.frames.where(
        f"api_key = {FETCH} and api_version >= {_SESSIONS_SINCE} and api_version not in {FIRST_REVISIONS}"
    )


def wire_creations(tables: Tables) -> DataFrame:
    """The responses that gave a session, which only full fetches get: SESSION, ``made_seq`` and ``made_us`` (when),
    ``made_on`` (the connection), and of the request ``session_id``, ``session_epoch``, ``seq``, ``client_id``."""
    replies = wire_fetches(tables).where(
        "session_epoch <= 0 and error = 0 and response_session_id != 0 and response_seq >= 0"
    )
    return replies.select(
        "run",
        "node",
        F.col("response_session_id").alias("session"),
        F.col("response_seq").alias("made_seq"),
        F.col("until_us").alias("made_us"),
        F.col("connection").alias("made_on"),
        "session_id",
        "session_epoch",
        "seq",
        "client_id",
    )


def wire_requests(tables: Tables) -> DataFrame:
    """One row for each request that names a session which the proxy saw being given, with FRAMES' columns and SESSION.

    ``made_us``, ``made_on``: when and on which connection the session was given. ``clear``: see above. ``gone``: the
    session had ended before. ``expected``: the epoch that it expected.
    """
    made = (
        wire_creations(tables)
        .groupBy(*WIRE_SESSION)
        .agg(
            F.min_by("made_us", "made_seq").alias("made_us"),
            F.min_by("made_on", "made_seq").alias("made_on"),
            F.min("made_seq").alias("made_seq"),
        )
    )
    requests = wire_fetches(tables).where("session_id != 0").withColumn("session", F.col("session_id"))
    in_order = Window.partitionBy(*WIRE_SESSION).orderBy("seq")
    earlier = before(in_order)
    settled = F.coalesce(F.max(F.expr(f"if({_SHOWS_EPOCH}, response_seq, {_NEVER})")).over(earlier), F.lit(0))
    next_seq = F.coalesce(F.lead("seq").over(in_order), F.lit(_NEVER))
    accepted = F.expr("if(response_seq >= 0 and error = 0 and session_epoch > 0, session_epoch, null)")
    last = F.last(accepted, ignorenulls=True).over(earlier)
    return (
        requests.join(made, [*WIRE_SESSION], "inner")
        .where("made_seq < seq")
        .withColumns(
            {
                "clear": F.expr("response_seq >= 0") & (settled < F.col("seq")) & (next_seq > F.col("response_seq")),
                "gone": F.coalesce(F.max(F.expr(ENDS_WIRE_SESSION)).over(earlier), F.lit(False)),
                "expected": F.when(last.isNull() | (last == LARGEST_EPOCH), 1).otherwise(last + 1),
            }
        )
    )


def wire_responses(tables: Tables) -> DataFrame:
    """Return the responses by which a session's partitions are known: SESSION, ``seq``, ``response_seq``, ``until_us``,
    ``client_id``, ``incremental`` and ``judged``. The first of a session is the response that gave it.

    All others are judged only if they respond to clear requests. A response that throttles its client (KIP-219) may
    omit everything, so it is not judged either. Whether an epoch is accepted shows in its response, and epochs are
    accepted in their order. So what was accepted beside another request is known once all have responses.
    """
    first = wire_creations(tables).where("session_id != session and session_epoch = 0")
    first = first.select(
        *WIRE_SESSION,
        "seq",
        F.col("made_seq").alias("response_seq"),
        F.col("made_us").alias("until_us"),
        "client_id",
        F.lit(False).alias("incremental"),
        F.lit(True).alias("judged"),
    )
    then = tables.once(wire_requests).where("response_seq >= 0 and not gone and session_epoch > 0 and error = 0")
    then = then.where("response_session_id = session").join(
        first.select(*WIRE_SESSION).distinct(), [*WIRE_SESSION], "left_semi"
    )
    then = then.select(
        *WIRE_SESSION,
        "seq",
        "response_seq",
        "until_us",
        "client_id",
        F.lit(True).alias("incremental"),
        F.expr("clear and throttle_ms = 0").alias("judged"),
    )
    return first.unionByName(then)


def wire_lines(tables: Tables) -> DataFrame:
    """Return one row for each partition in a request or a response of ``wire_responses``: its columns, ``topic``,
    ``partition``, ``named``, ``forgotten``, and ``line`` (null, or the partition's line in the response).

    ``held``: the partition was in the session before. ``line_before`` is what the session's responses last had of it
    since it came into the session; null if nothing.
    """
    lines = tables.frame_lines.drop("node", "offset")
    of_responses = lines.join(tables.once(wire_responses), ["run", "seq"])
    line = F.struct("seq", "response_seq", "high_watermark", "log_start_offset", "error", "record_bytes", "points_on")
    of_request = ("seq", "response_seq", "until_us", "client_id", "incremental", "judged")
    by_request = of_responses.groupBy(*WIRE_LINE, *of_request).agg(
        F.bool_or(F.expr("kind = 'named'")).alias("named"),
        F.bool_or(F.expr("kind = 'forgotten'")).alias("forgotten"),
        F.first(F.when(F.expr(RETURNED), line), ignorenulls=True).alias("line"),
    )
    in_order = Window.partitionBy(*WIRE_LINE).orderBy("seq")
    last_in = F.last(F.when(F.col("named"), F.col("seq")), ignorenulls=True).over(before(in_order))
    last_out = F.last(F.when(F.col("forgotten"), F.col("seq")), ignorenulls=True).over(before(in_order))
    last_line = F.last("line", ignorenulls=True).over(before(in_order))
    return by_request.withColumns({"last_in": last_in, "last_out": last_out, "last_line": last_line}).select(
        *by_request.columns,
        F.expr("last_in is not null and last_in > coalesce(last_out, -1)").alias("held"),
        F.expr("if(last_line.seq > coalesce(last_out, -1), last_line, null)").alias("line_before"),
    )
