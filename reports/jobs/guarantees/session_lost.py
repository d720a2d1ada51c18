"""session-lost: a session that a node made stays known until it is closed or evicted, and answers carry its ID.

It is a breach if
- its ID is refused as unknown while it is there (F-9);
- a request with a wrong epoch closes it (F-10, G-3): in the trace the note of the closing stands between that request
  and its refusal;
- an accepted request is answered with the ID of another session, or without its ID while it is there (F-7), or is
  served though there is no such session (G-4);
- its ID is made again while it is there, or IDs of sessions that have ended are made again more often than chance
  allows (F-2);
- a full fetch is answered with a session that is not new, or with one though it wants none (F-4, F-5, F-6, F-8).

A broker that is not ours leaves no trace. Its frames show (``wire_sessions``) another session's ID in an answer, a
session that is not new, and one for who wants none. That it forgot a session is known only where F-18 allows no
eviction: in the first 120 s of the session, in a cluster of one node, which has no followers. The connection must still
be that on which the session was given, since a node that was started again knows no session.
"""

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import so_far
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.sessions import (
    FIRST_REVISIONS,
    INCREMENTAL,
    INVALID_FETCH_SESSION,
    INVALID_SESSION_EPOCH,
    LARGEST_EPOCH,
    SESSION,
    SESSION_ID_NOT_FOUND,
    answered_requests,
    full_answers,
    session_notes,
    session_rows,
)
from reports.jobs.shared.wire_sessions import ENDS, created, steps
from reports.jobs.shared.wire_sessions import SESSION as WIRE_SESSION
from reports.read_tables import Tables

_WRONG_ANSWERS = (
    (
        f"final and error = {SESSION_ID_NOT_FOUND} and alive = 1 and session_epoch between 1 and {LARGEST_EPOCH}",
        "it did not know the session, which it had neither closed nor evicted",
    ),
    ("final and error = 0 and answered_session_id not in (0, session)", "the answer carries another session's ID"),
    ("final and error = 0 and answered_session_id = 0 and alive = 1", "the answer carries no ID of the living session"),
    ("not final and error = 0 and answered_session_id = session and alive = 0", "there is no such session"),
)
"""Conditions of a reply, and what is wrong then. ``final`` says that it is of the final revision."""


_MAY_BE_EVICTED_AFTER_US = 120_000_000
"""What F-17 calls the minimum time before eviction."""

_REPEATS_BY_CHANCE = 1
"""IDs are random numbers of 31 bits (F-2). Of n two are equal with a probability of about n^2/2^32, and two pairs are
with about half the square of that."""


def transform(tables: Tables) -> DataFrame:
    found = [_wrongly_answered(tables), _closed_for_an_epoch(tables), _made_twice(tables), _given(tables)]
    if tables.runs_with("frames"):
        found += [_wrongly_answered_on_the_wire(tables), _given_on_the_wire(tables)]
    return reduce(DataFrame.unionByName, found)


def _wrongly_answered(tables: Tables) -> DataFrame:
    replies = tables.once(session_rows).where("what = 'reply'").where(INCREMENTAL)
    replies = replies.withColumn("final", ~F.col("api_version").isin(*FIRST_REVISIONS))
    wrong = F.coalesce(*(F.when(F.expr(each), told) for each, told in _WRONG_ANSWERS))
    detail = sentence(
        "Node %s answered %s in session %s (epoch %s): %s.", "node", "client_id", "session", "session_epoch", "wrong"
    )
    return anomalies(replies.withColumn("wrong", wrong).where("wrong is not null"), detail, process="client_id")


def _closed_for_an_epoch(tables: Tables) -> DataFrame:
    """The note follows directly the request that is refused then."""
    order = Window.partitionBy(*SESSION).orderBy("seq")
    asked = F.lag(F.struct("what", "seq")).over(order)
    closed = tables.once(session_rows).withColumn("cause", asked)
    closed = closed.where("what = 'session_closed' and cause.what = 'request'")
    refused = tables.once(answered_requests).where(
        f"error = if(of_first, {INVALID_FETCH_SESSION}, {INVALID_SESSION_EPOCH})"
    )
    found = refused.join(closed.select(*SESSION, F.col("cause.seq").alias("seq")), [*SESSION, "seq"], "left_semi")
    detail = sentence(
        "Node %s closed session %s of %s because of a request with the wrong epoch %s.",
        "node",
        "session",
        "client_id",
        "session_epoch",
    )
    return anomalies(found, detail, process="client_id", at_us="reply_us")


def _made_twice(tables: Tables) -> DataFrame:
    before = F.lag("what").over(Window.partitionBy(*SESSION).orderBy("seq"))
    made = session_notes(tables).withColumn("before", before).where("what = 'session_created' and before is not null")
    in_order = so_far(Window.partitionBy("run").orderBy("at_us", *SESSION, "seq"))
    repeats = F.count_if(F.expr("before != 'session_created'")).over(in_order)
    wrong = F.when(F.expr("before = 'session_created'"), "the first one was still there")
    wrong = wrong.when(repeats > _REPEATS_BY_CHANCE, "more IDs came again than by chance")
    again = made.withColumn("wrong", wrong).where("wrong is not null")
    return anomalies(again, sentence("Node %s made session %s twice: %s.", "node", "session", "wrong"))


def _given(tables: Tables) -> DataFrame:
    wrong = full_answers(tables).where("session_epoch = -1 or asked = session or alive = 0")
    detail = sentence(
        "Node %s answered a full fetch of %s (epoch %s) with session %s, which %s.",
        "node",
        "client_id",
        "session_epoch",
        "session",
        F.when(F.col("session_epoch") == -1, "it does not want").otherwise("is not new"),
    )
    return anomalies(wrong, detail, process="client_id")


def _wrongly_answered_on_the_wire(tables: Tables) -> DataFrame:
    asked = tables.once(steps).where("session_epoch > 0 and answered_seq >= 0")
    is_lost = (
        f"clear and not gone and error = {SESSION_ID_NOT_FOUND} and nodes = 1 and connection = made_on "
        f"and until_us - made_us < {_MAY_BE_EVICTED_AFTER_US}"
    )
    wrong = F.when(F.expr(is_lost), "it did not know the session, which nobody had closed and nothing could evict")
    wrong = wrong.when(
        F.expr("error = 0 and answered_session_id not in (0, session)"), "the answer carries another session's ID"
    )
    detail = sentence(
        "Node %s answered %s in session %s (epoch %s): %s.", "node", "client_id", "session", "session_epoch", "wrong"
    )
    found = asked.withColumn("wrong", wrong).where("wrong is not null")
    return anomalies(found, detail, process="client_id", at_us="until_us")


def _given_on_the_wire(tables: Tables) -> DataFrame:
    """A session that was given before, on this very connection and thus by the same process of the node, must have
    ended since."""
    given = created(tables)
    ends = tables.once(steps).where(ENDS).select(*WIRE_SESSION, F.col("answered_seq").alias("made_seq"))
    ended = ends.withColumns({"made_on": F.lit(None).cast("long"), "ends": F.lit(True)})
    made = given.withColumn("ends", F.lit(False)).unionByName(ended, allowMissingColumns=True)
    last = F.lag(F.struct("ends", "made_on")).over(Window.partitionBy(*WIRE_SESSION).orderBy("made_seq"))
    is_old = "session_id = session or not last.ends and last.made_on = made_on"
    wrong = made.withColumn("last", last).where(f"not ends and (session_epoch = -1 or {is_old})")
    detail = sentence(
        "Node %s answered a full fetch of %s (epoch %s) with session %s, which %s.",
        "node",
        "client_id",
        "session_epoch",
        "session",
        F.when(F.col("session_epoch") == -1, "it does not want").otherwise("is not new"),
    )
    return anomalies(wrong, detail, process="client_id", at_us="made_us")


JUDGED = Judging(
    "session-lost",
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    find=transform,
    instead=("frames",),
)
