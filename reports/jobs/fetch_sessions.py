"""Fetch sessions: session-epoch-order, session-lost and incremental-response-exact.

The reference broker is judged by its trace. Other brokers have no trace, and are judged by the frames at the proxy in
front of them.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import before, so_far
from reports.jobs.guarantee_job import GuaranteeJob, anomalies, sentence
from reports.jobs.session_requests import (
    ENDS_WIRE_SESSION,
    FIRST_REVISIONS,
    INCREMENTAL,
    INVALID_FETCH_SESSION,
    INVALID_SESSION_EPOCH,
    LARGEST_EPOCH,
    RETURNED,
    SESSION,
    SESSION_ID_NOT_FOUND,
    WIRE_LINE,
    WIRE_SESSION,
    full_responses,
    requests_with_replies,
    session_notes,
    session_rows,
    wire_creations,
    wire_fetches,
    wire_lines,
    wire_requests,
    wire_responses,
)
from reports.read_tables import Tables

_TOPIC_IDS_MIXED = 106
"""FETCH_SESSION_TOPIC_ID_ERROR: a request names topics by ID in a session of names, or the other way round."""
_DENIED = 10002
"""IncrementalFetchDenied, of the first revision."""
_NOT_IN_THE_SESSION = 42
"""INVALID_REQUEST of the first revision: a partition outside the session."""
_LIFE = [*SESSION, "life"]

_WRONG_RESPONSE = (
    f"if(of_first, error in ({INVALID_FETCH_SESSION}, {_DENIED}), error = if(there, {INVALID_SESSION_EPOCH}, "
    f"{SESSION_ID_NOT_FOUND}))"
)
"""The error of a request that names no session of the node, or not its expected epoch."""
_RIGHT_RESPONSE = (
    f"error = 0 or if(of_first, error in ({_NOT_IN_THE_SESSION}, {_DENIED}), error = {_TOPIC_IDS_MIXED}) "
    f"or overtaken and error = if(of_first, {INVALID_FETCH_SESSION}, {INVALID_SESSION_EPOCH}) "
    f"or ended and error = if(of_first, {INVALID_FETCH_SESSION}, {SESSION_ID_NOT_FOUND})"
)


@GuaranteeJob(
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    instead=("frames",),
    excused_by="the row of a preset epoch, which is written with the faults at the end",
)
def session_epoch_order(tables: Tables) -> DataFrame:
    """session-epoch-order: a node accepts the epochs 1, 2, 3, ... of a session, each once; after 2^31-1 comes 1.

    It is a violation to accept another epoch, to refuse the expected one, or to refuse with another error than the
    clauses name (F-9, F-10, G-10). If the trace lacks the reply to a request, the epoch may or may not have advanced,
    and both continuations are allowed. A preset (FAULTS, kind ``preset...``) names the epoch that each new session
    expects first, instead of 1. In the first revision numbers only grow, and the last accepted one may come again as a
    retransmission.

    A request with the expected epoch may be parked. It is refused then if a later one overtakes it in its session, or
    if the session ends. A retransmitted request is no later one. In the first revision a full request keeps the
    session. One that arrived before the parked request also overtakes it if it gets its own response only after that:
    the two were under way on two connections at once, and a node may handle these in either order. Each overtakes at
    most one.

    Another broker than ours has no trace, so its frames are judged (``wire_requests``): whether a clear request had the
    expected epoch and was refused for its epoch, or had another one and was accepted; and whether one epoch was
    accepted twice, in whatever order the node handled the two.
    """
    violations = _order_in_the_trace(tables)
    return violations.unionByName(_order_on_the_wire(tables)) if tables.runs_with("frames") else violations


def _order_in_the_trace(tables: Tables) -> DataFrame:
    handled = _with_state(tables).where("error is not null").withColumn("overtaken", F.lit(False))
    named = F.expr(f"alive = 1 and (of_first or session_epoch between 1 and {LARGEST_EPOCH})")
    handled = handled.withColumn("there", named)
    wrong = handled.where(~_is_legal())
    # Few are refused, and to look for what overtook them costs a join.
    wrong = _with_overtaking(wrong.drop("overtaken"), tables).where(~_is_legal())
    return _wrong_epochs(wrong, "reply_us")


def _order_on_the_wire(tables: Tables) -> DataFrame:
    requests = tables.once(wire_requests).where("clear and session_epoch > 0").withColumn("there", F.expr("not gone"))
    wrong = f"error = if(session_epoch = expected, {INVALID_SESSION_EPOCH}, 0)"
    wrongly_accepted = requests.where(f"if(gone, error in (0, {INVALID_SESSION_EPOCH}), {wrong})")
    return _wrong_epochs(wrongly_accepted, "until_us").unionByName(_accepted_twice(tables))


def _accepted_twice(tables: Tables) -> DataFrame:
    accepted = tables.once(wire_requests).where("session_epoch > 0 and error = 0 and response_seq >= 0")
    again = Window.partitionBy(*WIRE_SESSION, "session_epoch").orderBy("response_seq")
    twice = accepted.withColumn("nth", F.row_number().over(again)).where("nth > 1 and not clear")
    detail = sentence(
        "Node %s accepted epoch %s of session %s twice, from %s.", "node", "session_epoch", "session", "client_id"
    )
    return anomalies(twice, detail, process="client_id", at_us="until_us")


def _wrong_epochs(wrong: DataFrame, at_us: str) -> DataFrame:
    detail = sentence(
        "Node %s %s epoch %s of session %s from %s while it expected %s.",
        "node",
        F.when(F.col("error") == 0, "accepted").otherwise(sentence("refused (error %s)", "error")),
        "session_epoch",
        "session",
        "client_id",
        F.when(F.col("there"), F.col("expected").cast("string")).otherwise("none"),
    )
    return anomalies(wrong, detail, process="client_id", at_us=at_us)


def _is_legal() -> Column:
    may_be_right, may_be_wrong = (
        F.expr("there and (is_next or may_follow)"),
        F.expr("not there or not is_next or untold"),
    )
    return (may_be_right & F.expr(_RIGHT_RESPONSE)) | (may_be_wrong & F.expr(_WRONG_RESPONSE))


def _with_state(tables: Tables) -> DataFrame:
    """Add what the session expected: ``expected``, ``is_next`` (the request names that), ``untold`` and ``may_follow``
    (the previous response is not known, and by that the request may be right). A retransmission changes nothing,
    whatever its response: its number was accepted before."""
    in_order = before(Window.partitionBy(*_LIFE).orderBy("seq"))
    accepted = F.expr("if(error = 0, session_epoch, null)")
    moved = F.expr(
        "if(error = 0 or error is null or not at_once, struct(coalesce(error, 1) != 0 as untold, session_epoch), null)"
    )
    preset = tables.faults.where("startswith(kind, 'preset') and session_epoch > 0")
    presets = preset.groupBy("run").agg(F.max("session_epoch").alias("preset"))
    steps = (
        tables.once(requests_with_replies)
        .withColumn("last_accepted", F.last(accepted, ignorenulls=True).over(in_order))
        .withColumn("last_moved", F.last(moved, ignorenulls=True).over(in_order))
        .join(F.broadcast(presets), "run", "left")
        .withColumn("expected", F.coalesce(_next_epoch("last_accepted"), "preset", F.lit(1)))
        .withColumn(
            "untold", F.expr("coalesce(last_moved.untold, false) and not last_moved.session_epoch <=> last_accepted")
        )
    )
    epoch = F.col("session_epoch")
    resent = F.expr("of_first and session_epoch = coalesce(last_accepted, preset - 1, 0)")
    after_untold = (epoch == F.col("last_moved.session_epoch")) | (epoch == _next_epoch("last_moved.session_epoch"))
    return steps.withColumns(
        {
            "is_next": (epoch == F.col("expected")) | resent,
            "may_follow": F.col("untold") & F.coalesce(after_untold, F.lit(False)),
        }
    )


def _with_overtaking(refused: DataFrame, tables: Tables) -> DataFrame:
    """Add ``overtaken``: between the request and its reply the session accepted one with a later epoch, or a full one.
    In the first revision a full one also counts if it arrived before the request and was under way until after the
    reply. So many requests of a session can be overtaken by such ones as there are.

    An older epoch that was accepted overtakes nothing: only a later one shows that its client no longer waits for this
    reply.
    """
    taken = tables.once(requests_with_replies).where("error = 0 or error is null or not at_once")
    in_turn = Window.partitionBy(*SESSION, "connection").orderBy("seq")
    full = tables.once(session_rows).where("what in ('request', 'reply') and session_epoch = 0")
    full = full.withColumn("following", F.lead(F.struct("what", "seq")).over(in_turn)).where("what = 'request'")
    full = full.withColumn("until_seq", F.expr("if(following.what = 'reply', following.seq, null)"))
    no_time = F.lit(None).cast("long").alias("until_seq")
    later = taken.select(*SESSION, "seq", "session_epoch", no_time).unionByName(
        full.select(*SESSION, "seq", "session_epoch", "until_seq")
    )
    later = later.withColumnsRenamed({"seq": "later_seq", "session_epoch": "later_epoch"})
    wraps = f"not of_first and session_epoch = {LARGEST_EPOCH}"
    is_later = f"(later_epoch = 0 or later_epoch > session_epoch or {wraps})"
    is_between = F.expr(f"later_seq > seq and later_seq < reply_seq and later_epoch != session_epoch and {is_later}")
    was_under_way = F.expr("of_first and later_seq < seq and until_seq > reply_seq")
    by_refused = refused.join(later, [*SESSION], "left").groupBy(*refused.columns)
    joined = by_refused.agg(
        (F.count_if(F.coalesce(is_between, F.lit(False))) > 0).alias("overtaken"),
        F.collect_set(F.when(was_under_way, F.col("later_seq"))).alias("earlier"),
    )
    until_now = so_far(Window.partitionBy(*SESSION).orderBy("reply_seq"))
    by_earlier = F.expr(f"not overtaken and error = {INVALID_FETCH_SESSION} and size(earlier) > 0")
    known = F.array_distinct(F.flatten(F.collect_list(F.when(by_earlier, F.col("earlier"))).over(until_now)))
    is_first_of_it = by_earlier & (F.count_if(by_earlier).over(until_now) <= F.size(known))
    return joined.withColumn("overtaken", F.col("overtaken") | is_first_of_it).drop("earlier")


def _next_epoch(name: str) -> Column:
    return F.expr(f"if({name} = {LARGEST_EPOCH} and not of_first, 1, {name} + 1)")


_WRONG_REPLIES = (
    (
        f"final and error = {SESSION_ID_NOT_FOUND} and alive = 1 and session_epoch between 1 and {LARGEST_EPOCH}",
        "it did not know the session, which it had neither closed nor evicted",
    ),
    ("final and error = 0 and response_session_id not in (0, session)", "the response carries another session's ID"),
    (
        "final and error = 0 and response_session_id = 0 and alive = 1",
        "the response carries no ID of the living session",
    ),
    ("not final and error = 0 and response_session_id = session and alive = 0", "there is no such session"),
)
"""Conditions of a reply, and what is wrong then. ``final`` says that it is of the final revision."""


_MAY_BE_EVICTED_AFTER_US = 120_000_000
"""The minimum time before eviction of F-17."""

_REPEATS_BY_CHANCE = 1
"""IDs are random numbers of 31 bits (F-2). Of n two are equal with a probability of about n^2/2^32, and two pairs are
with about half the square of that."""


@GuaranteeJob(
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    instead=("frames",),
)
def session_lost(tables: Tables) -> DataFrame:
    """session-lost: a session that a node created is known until it is closed or evicted, and responses carry its ID.

    It is a violation if

    - its ID is refused as unknown while the session exists (F-9);
    - a request with a wrong epoch closes it (F-10, G-3): the trace has the note of the closing between that request and
      its refusal;
    - the response to an accepted request has the ID of another session, or lacks its ID while the session exists (F-7),
      or a request is served though there is no such session (G-4);
    - its ID is created again while the session exists, or IDs of sessions that have ended are created again more often
      than chance allows (F-2);
    - the response to a full fetch has a session that is not new, or has one though the request wants none (F-4, F-5,
      F-6, F-8).

    Another broker than ours has no trace. Its frames show (``wire_requests``) the ID of another session in a response,
    a session that is not new, and one for a request that wants none. That it lost a session is certain only where F-18
    allows no eviction: in the first 120 s of the session, in a cluster of one node, which has no followers. The
    connection must still be the one on which the session was given, since a restarted node knows no session.
    """
    violations = [_wrong_replies(tables), _closed_for_an_epoch(tables), _created_twice(tables), _wrongly_given(tables)]
    if tables.runs_with("frames"):
        violations += [_wrong_replies_on_the_wire(tables), _wrongly_given_on_the_wire(tables)]
    return reduce(DataFrame.unionByName, violations)


def _wrong_replies(tables: Tables) -> DataFrame:
    replies = tables.once(session_rows).where("what = 'reply'").where(INCREMENTAL)
    replies = replies.withColumn("final", ~F.col("api_version").isin(*FIRST_REVISIONS))
    wrong = F.coalesce(*(F.when(F.expr(condition), text) for condition, text in _WRONG_REPLIES))
    detail = sentence(
        "Node %s responded to %s in session %s (epoch %s): %s.",
        "node",
        "client_id",
        "session",
        "session_epoch",
        "wrong",
    )
    return anomalies(replies.withColumn("wrong", wrong).where("wrong is not null"), detail, process="client_id")


def _closed_for_an_epoch(tables: Tables) -> DataFrame:
    """The note follows directly the request that is refused then."""
    order = Window.partitionBy(*SESSION).orderBy("seq")
    previous = F.lag(F.struct("what", "seq")).over(order)
    closed = tables.once(session_rows).withColumn("cause", previous)
    closed = closed.where("what = 'session_closed' and cause.what = 'request'")
    refused = tables.once(requests_with_replies).where(
        f"error = if(of_first, {INVALID_FETCH_SESSION}, {INVALID_SESSION_EPOCH})"
    )
    closed_after_refusal = refused.join(
        closed.select(*SESSION, F.col("cause.seq").alias("seq")), [*SESSION, "seq"], "left_semi"
    )
    detail = sentence(
        "Node %s closed session %s of %s because of a request with the wrong epoch %s.",
        "node",
        "session",
        "client_id",
        "session_epoch",
    )
    return anomalies(closed_after_refusal, detail, process="client_id", at_us="reply_us")


def _created_twice(tables: Tables) -> DataFrame:
    before = F.lag("what").over(Window.partitionBy(*SESSION).orderBy("seq"))
    made = session_notes(tables).withColumn("before", before).where("what = 'session_created' and before is not null")
    in_order = so_far(Window.partitionBy("run").orderBy("at_us", *SESSION, "seq"))
    repeats = F.count_if(F.expr("before != 'session_created'")).over(in_order)
    wrong = F.when(F.expr("before = 'session_created'"), "the first one was still there")
    wrong = wrong.when(repeats > _REPEATS_BY_CHANCE, "more IDs came again than by chance")
    again = made.withColumn("wrong", wrong).where("wrong is not null")
    return anomalies(again, sentence("Node %s made session %s twice: %s.", "node", "session", "wrong"))


def _wrongly_given(tables: Tables) -> DataFrame:
    wrong = full_responses(tables).where("session_epoch = -1 or requested = session or alive = 0")
    detail = sentence(
        "Node %s responded to a full fetch of %s (epoch %s) with session %s, which %s.",
        "node",
        "client_id",
        "session_epoch",
        "session",
        F.when(F.col("session_epoch") == -1, "it does not want").otherwise("is not new"),
    )
    return anomalies(wrong, detail, process="client_id")


def _wrong_replies_on_the_wire(tables: Tables) -> DataFrame:
    requests = tables.once(wire_requests).where("session_epoch > 0 and response_seq >= 0")
    is_lost = (
        f"clear and not gone and error = {SESSION_ID_NOT_FOUND} and nodes = 1 and connection = made_on "
        f"and until_us - made_us < {_MAY_BE_EVICTED_AFTER_US}"
    )
    wrong = F.when(F.expr(is_lost), "it did not know the session, which nobody had closed and nothing could evict")
    wrong = wrong.when(
        F.expr("error = 0 and response_session_id not in (0, session)"), "the response carries another session's ID"
    )
    detail = sentence(
        "Node %s responded to %s in session %s (epoch %s): %s.",
        "node",
        "client_id",
        "session",
        "session_epoch",
        "wrong",
    )
    wrong_replies = requests.withColumn("wrong", wrong).where("wrong is not null")
    return anomalies(wrong_replies, detail, process="client_id", at_us="until_us")


def _wrongly_given_on_the_wire(tables: Tables) -> DataFrame:
    """A session that was given before, on this very connection and thus by the same process of the node, must have
    ended since."""
    created = wire_creations(tables)
    ends = (
        tables.once(wire_requests)
        .where(ENDS_WIRE_SESSION)
        .select(*WIRE_SESSION, F.col("response_seq").alias("made_seq"))
    )
    ended = ends.withColumns({"made_on": F.lit(None).cast("long"), "ends": F.lit(True)})
    made = created.withColumn("ends", F.lit(False)).unionByName(ended, allowMissingColumns=True)
    last = F.lag(F.struct("ends", "made_on")).over(Window.partitionBy(*WIRE_SESSION).orderBy("made_seq"))
    is_old = "session_id = session or not last.ends and last.made_on = made_on"
    wrong = made.withColumn("last", last).where(f"not ends and (session_epoch = -1 or {is_old})")
    detail = sentence(
        "Node %s responded to a full fetch of %s (epoch %s) with session %s, which %s.",
        "node",
        "client_id",
        "session_epoch",
        "session",
        F.when(F.col("session_epoch") == -1, "it does not want").otherwise("is not new"),
    )
    return anomalies(wrong, detail, process="client_id", at_us="made_us")


_AGAIN = (
    "judged and incremental and line is not null and line.error = 0 and line.record_bytes = 0 and not line.points_on "
    "and line_before.error = 0 and not forgotten and line.high_watermark = line_before.high_watermark "
    "and line.log_start_offset = line_before.log_start_offset"
)
_NEW = "judged and incremental and named and not held and not forgotten and line is null"


@GuaranteeJob(
    needs=("frames", "frame_lines"),
    evidence="lines_returned",
    unit="partitions in responses",
    excused_by="the frames, which are written at the end",
)
def incremental_response_exact(tables: Tables) -> DataFrame:
    """incremental-response-exact, as far as the frames before another broker show it (F-14).

    It is a violation if an incremental response

    - contains a partition again that has no records, no error, no diverging epoch and no preferred replica, and the
      same high watermark and log start as the session last sent of it, which was no error;
    - lacks a partition that this request added to the session;
    - lacks a partition although the node had sent to any client a greater high watermark or log start of it, before the
      request was sent, than it last sent in this session.

    That data is due cannot be seen from outside: how much a limit omits, and what compaction has removed, is known only
    inside. Only clear requests are judged (``wire_requests``).
    """
    return reduce(DataFrame.unionByName, (_sent_again(tables), _new_and_not_sent(tables), _change_not_sent(tables)))


def _sent_again(tables: Tables) -> DataFrame:
    return _wrong_lines(tables.once(wire_lines).where(_AGAIN), "was included again, without records and as before")


def _new_and_not_sent(tables: Tables) -> DataFrame:
    return _wrong_lines(tables.once(wire_lines).where(_NEW), "came into the session and was not included")


def _change_not_sent(tables: Tables) -> DataFrame:
    """Find changes that a session was not sent. A line is valid until the next one, or until the partition is
    forgotten. What was sent to others meanwhile is a change that the response to the session's next request must
    contain.
    """
    in_order = Window.partitionBy(*WIRE_LINE).orderBy("seq").rowsBetween(1, Window.unboundedFollowing)
    over = F.min(F.expr("if(line is not null or forgotten, seq, null)")).over(in_order)
    held = tables.once(wire_lines).withColumn("over", F.coalesce(over, F.lit(2**63 - 1)))
    held = held.where("judged and line is not null and line.error = 0 and not forgotten")
    held = held.select(*WIRE_LINE, "over", F.col("line").alias("last"), F.col("response_seq").alias("since"))
    seen = tables.frame_lines.where(f"{RETURNED} and error = 0").drop("node")
    seen = seen.join(wire_fetches(tables).select("run", "node", "seq", "response_seq"), ["run", "seq"])
    seen = seen.select("run", "node", "topic", "partition", "response_seq", "high_watermark", "log_start_offset")
    newer = (
        "seen.response_seq > held.since and seen.response_seq < held.over and "
        "(seen.high_watermark > held.last.high_watermark or seen.log_start_offset > held.last.log_start_offset)"
    )
    same = [F.col(f"held.{key}") == F.col(f"seen.{key}") for key in ("run", "node", "topic", "partition")]
    due = held.alias("held").join(seen.alias("seen"), [*same, F.expr(newer)])
    due = due.groupBy(*(f"held.{key}" for key in WIRE_LINE), "held.over", "held.since").agg(
        F.min("seen.response_seq").alias("due_seq")
    )
    later = tables.once(wire_responses).where("judged and incremental").alias("later")
    lacks = [F.col(f"due.{key}") == F.col(f"later.{key}") for key in WIRE_SESSION]
    lacks.append(F.expr("later.seq > due.due_seq and later.seq < due.over"))
    unsent = due.alias("due").join(later, lacks).groupBy(*(f"due.{key}" for key in WIRE_LINE), "due.since")
    first = unsent.agg(
        F.min_by("later.client_id", "later.seq").alias("client_id"), F.min("later.until_us").alias("until_us")
    )
    return _wrong_lines(first, "has changed, as earlier responses show, and was not included")


def _wrong_lines(lines: DataFrame, what: str) -> DataFrame:
    detail = sentence(
        f"Node %s responded to %s in session %s: %s-%s {what}.", "node", "client_id", "session", "topic", "partition"
    )
    return anomalies(lines, detail, process="client_id", at_us="until_us")
