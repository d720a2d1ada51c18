"""The fetch sessions of a broker that is not ours, as the frames show them that passed the proxy before it.

The proxy sees when a request goes to the node and when its answer comes, and not what the node does between. What two
connections carry at one time may be handled in either order. So only a *clear* request is judged: all that was sent
before it in its session is answered by then, and nothing else is sent in the session until its own answer. After a
request without an answer, or with an error that does not tell what became of the epoch, nothing is clear any more.

A node may forget a session at any time to make room for another (F-18), and nobody tells the proxy. Its refusal as
unknown therefore ends a session here.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.expressions import before
from reports.jobs.shared.sessions import (
    FETCH,
    FIRST_REVISIONS,
    INVALID_SESSION_EPOCH,
    LARGEST_EPOCH,
    SESSION_ID_NOT_FOUND,
)
from reports.read_tables import Tables

SESSION = ("run", "node", "session")
LINE = (*SESSION, "topic", "partition")
_SESSIONS_SINCE = 7
_NEVER = 2**63 - 1
_IS_TOLD = f"answered_seq >= 0 and error in (0, {SESSION_ID_NOT_FOUND}, {INVALID_SESSION_EPOCH})"
ENDS = (
    f"error = 0 and (session_epoch <= 0 or answered_session_id != session) or error = {SESSION_ID_NOT_FOUND} "
    "and answered_seq >= 0"
)
"""The condition of a request after which its session is gone: it was closed (F-6, F-8), or unknown."""


def fetches(tables: Tables) -> DataFrame:
    """FRAMES of fetches in the versions that have sessions."""
    return tables.frames.where(
        f"api_key = {FETCH} and api_version >= {_SESSIONS_SINCE} and api_version not in {FIRST_REVISIONS}"
    )


def created(tables: Tables) -> DataFrame:
    """The answers that gave a session, which only full fetches get: SESSION, ``made_seq`` and ``made_us`` (when),
    ``made_on`` (the connection), and of the request ``session_id``, ``session_epoch``, ``seq``, ``client_id``."""
    given = fetches(tables).where("session_epoch <= 0 and error = 0 and answered_session_id != 0 and answered_seq >= 0")
    return given.select(
        "run",
        "node",
        F.col("answered_session_id").alias("session"),
        F.col("answered_seq").alias("made_seq"),
        F.col("until_us").alias("made_us"),
        F.col("connection").alias("made_on"),
        "session_id",
        "session_epoch",
        "seq",
        "client_id",
    )


def steps(tables: Tables) -> DataFrame:
    """One row for each request that names a session which the proxy saw being given, with FRAMES' columns and SESSION.

    ``made_us``, ``made_on``: when and on which connection the session was given. ``clear``: see above. ``gone``: the
    session had ended before. ``expected``: the epoch that it expected.
    """
    made = (
        created(tables)
        .groupBy(*SESSION)
        .agg(
            F.min_by("made_us", "made_seq").alias("made_us"),
            F.min_by("made_on", "made_seq").alias("made_on"),
            F.min("made_seq").alias("made_seq"),
        )
    )
    asked = fetches(tables).where("session_id != 0").withColumn("session", F.col("session_id"))
    in_order = Window.partitionBy(*SESSION).orderBy("seq")
    earlier = before(in_order)
    settled = F.coalesce(F.max(F.expr(f"if({_IS_TOLD}, answered_seq, {_NEVER})")).over(earlier), F.lit(0))
    next_seq = F.coalesce(F.lead("seq").over(in_order), F.lit(_NEVER))
    accepted = F.expr("if(answered_seq >= 0 and error = 0 and session_epoch > 0, session_epoch, null)")
    last = F.last(accepted, ignorenulls=True).over(earlier)
    return (
        asked.join(made, [*SESSION], "inner")
        .where("made_seq < seq")
        .withColumns(
            {
                "clear": F.expr("answered_seq >= 0") & (settled < F.col("seq")) & (next_seq > F.col("answered_seq")),
                "gone": F.coalesce(F.max(F.expr(ENDS)).over(earlier), F.lit(False)),
                "expected": F.when(last.isNull() | (last == LARGEST_EPOCH), 1).otherwise(last + 1),
            }
        )
    )


def answers(tables: Tables) -> DataFrame:
    """The answers by which a session's partitions are known: SESSION, ``seq``, ``answered_seq``, ``until_us``,
    ``client_id``, ``incremental`` and ``judged``. The first of a session is the answer that gave it.

    Of all others only those to clear requests are judged. An answer that asks its client to wait (KIP-219) may leave
    out everything, so it is not judged either. Whether an epoch is accepted shows in its answer, and accepted epochs
    stand in their order. So what was accepted beside another request is known once all is answered.
    """
    first = created(tables).where("session_id != session and session_epoch = 0")
    first = first.select(
        *SESSION,
        "seq",
        F.col("made_seq").alias("answered_seq"),
        F.col("made_us").alias("until_us"),
        "client_id",
        F.lit(False).alias("incremental"),
        F.lit(True).alias("judged"),
    )
    then = tables.once(steps).where("answered_seq >= 0 and not gone and session_epoch > 0 and error = 0")
    then = then.where("answered_session_id = session").join(first.select(*SESSION).distinct(), [*SESSION], "left_semi")
    then = then.select(
        *SESSION,
        "seq",
        "answered_seq",
        "until_us",
        "client_id",
        F.lit(True).alias("incremental"),
        F.expr("clear and throttle_ms = 0").alias("judged"),
    )
    return first.unionByName(then)


def lines(tables: Tables) -> DataFrame:
    """One row for each partition in a request or an answer of ``answers``: its columns, ``topic``, ``partition``,
    ``named``, ``forgotten``, and ``told`` (null, or what the answer said).

    ``held``: the partition was in the session before. ``told_before`` is what the session's answers said of it last,
    since it came into the session; null if nothing.
    """
    said = tables.frame_lines.drop("node", "offset")
    of_answers = said.join(tables.once(answers), ["run", "seq"])
    told = F.struct("seq", "answered_seq", "high_watermark", "log_start_offset", "error", "record_bytes", "points_on")
    of_request = ("seq", "answered_seq", "until_us", "client_id", "incremental", "judged")
    by_request = of_answers.groupBy(*LINE, *of_request).agg(
        F.bool_or(F.expr("kind = 'named'")).alias("named"),
        F.bool_or(F.expr("kind = 'forgotten'")).alias("forgotten"),
        F.first(F.when(F.expr("kind = 'told'"), told), ignorenulls=True).alias("told"),
    )
    in_order = Window.partitionBy(*LINE).orderBy("seq")
    last_in = F.last(F.when(F.col("named"), F.col("seq")), ignorenulls=True).over(before(in_order))
    last_out = F.last(F.when(F.col("forgotten"), F.col("seq")), ignorenulls=True).over(before(in_order))
    last_told = F.last("told", ignorenulls=True).over(before(in_order))
    return by_request.withColumns({"last_in": last_in, "last_out": last_out, "last_told": last_told}).select(
        *by_request.columns,
        F.expr("last_in is not null and last_in > coalesce(last_out, -1)").alias("held"),
        F.expr("if(last_told.seq > coalesce(last_out, -1), last_told, null)").alias("told_before"),
    )
