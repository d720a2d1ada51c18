"""session-epoch-order: a node accepts the epochs 1, 2, 3, ... of a session, each once; after 2^31-1 comes 1.

It is a breach to accept another epoch, to refuse the expected one, and to refuse with another error than the clauses
name (F-9, F-10, G-10). If the trace does not tell the answer to a request, the epoch may or may not have advanced, and
both continuations are allowed. A preset (FAULTS, kind ``preset...``) names the epoch that each new session expects
first, instead of 1. In the first revision numbers only grow, and the last accepted one may come again as a
retransmission.

A request with the expected epoch may wait. It is refused then if a later one overtakes it in its session, or if the
session ends. A request that comes again is no later one.

A broker that is not ours leaves no trace. Its frames are judged then (``wire_sessions``): whether a clear request had
the expected epoch and was told that it is wrong, or had another one and was accepted; and whether one epoch was
accepted twice, in whatever order the node took the two.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import before
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.sessions import (
    INVALID_FETCH_SESSION,
    INVALID_SESSION_EPOCH,
    LARGEST_EPOCH,
    SESSION,
    SESSION_ID_NOT_FOUND,
    answered_requests,
    session_rows,
)
from reports.jobs.shared.wire_sessions import SESSION as WIRE_SESSION
from reports.jobs.shared.wire_sessions import steps
from reports.read_tables import Tables

_TOPIC_IDS_MIXED = 106
"""FETCH_SESSION_TOPIC_ID_ERROR: a request names topics by ID in a session of names, or the other way round."""
_DENIED = 10002
"""IncrementalFetchDenied, of the first revision."""
_NOT_IN_THE_SESSION = 42
"""INVALID_REQUEST of the first revision: a partition outside the session."""
_LIFE = [*SESSION, "life"]

_WRONG = (
    f"if(of_first, error in ({INVALID_FETCH_SESSION}, {_DENIED}), error = if(there, {INVALID_SESSION_EPOCH}, "
    f"{SESSION_ID_NOT_FOUND}))"
)
"""What a request may be answered that names no session of the node, or not its expected epoch."""
_RIGHT = (
    f"error = 0 or if(of_first, error in ({_NOT_IN_THE_SESSION}, {_DENIED}), error = {_TOPIC_IDS_MIXED}) "
    f"or overtaken and error = if(of_first, {INVALID_FETCH_SESSION}, {INVALID_SESSION_EPOCH}) "
    f"or ended and error = if(of_first, {INVALID_FETCH_SESSION}, {SESSION_ID_NOT_FOUND})"
)


def transform(tables: Tables) -> DataFrame:
    found = _in_the_trace(tables)
    return found.unionByName(_on_the_wire(tables)) if tables.runs_with("frames") else found


def _in_the_trace(tables: Tables) -> DataFrame:
    told = _with_state(tables).where("error is not null").withColumn("overtaken", F.lit(False))
    named = F.expr(f"alive = 1 and (of_first or session_epoch between 1 and {LARGEST_EPOCH})")
    told = told.withColumn("there", named)
    wrong = told.where(~_is_legal())
    # Few are refused, and to look for what overtook them costs a join.
    wrong = _with_overtaking(wrong.drop("overtaken"), tables).where(~_is_legal())
    return _breaches(wrong, "reply_us")


def _on_the_wire(tables: Tables) -> DataFrame:
    asked = tables.once(steps).where("clear and session_epoch > 0").withColumn("there", F.expr("not gone"))
    wrong = f"error = if(session_epoch = expected, {INVALID_SESSION_EPOCH}, 0)"
    found = asked.where(f"if(gone, error in (0, {INVALID_SESSION_EPOCH}), {wrong})")
    return _breaches(found, "until_us").unionByName(_accepted_twice(tables))


def _accepted_twice(tables: Tables) -> DataFrame:
    accepted = tables.once(steps).where("session_epoch > 0 and error = 0 and answered_seq >= 0")
    again = Window.partitionBy(*WIRE_SESSION, "session_epoch").orderBy("answered_seq")
    twice = accepted.withColumn("nth", F.row_number().over(again)).where("nth > 1 and not clear")
    detail = sentence(
        "Node %s accepted epoch %s of session %s twice, from %s.", "node", "session_epoch", "session", "client_id"
    )
    return anomalies(twice, detail, process="client_id", at_us="until_us")


def _breaches(wrong: DataFrame, at_us: str) -> DataFrame:
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
    return (may_be_right & F.expr(_RIGHT)) | (may_be_wrong & F.expr(_WRONG))


def _with_state(tables: Tables) -> DataFrame:
    """Adds what the session expected: ``expected``, ``is_next`` (the request names that), ``untold`` and ``may_follow``
    (the answer before is not known, and by that the request may be right). A retransmission moves nothing, whatever it
    is answered: its number was accepted before."""
    in_order = before(Window.partitionBy(*_LIFE).orderBy("seq"))
    accepted = F.expr("if(error = 0, session_epoch, null)")
    moved = F.expr(
        "if(error = 0 or error is null or not at_once, struct(coalesce(error, 1) != 0 as untold, session_epoch), null)"
    )
    preset = tables.faults.where("startswith(kind, 'preset') and session_epoch > 0")
    presets = preset.groupBy("run").agg(F.max("session_epoch").alias("preset"))
    steps = (
        tables.once(answered_requests)
        .withColumn("last_accepted", F.last(accepted, ignorenulls=True).over(in_order))
        .withColumn("last_moved", F.last(moved, ignorenulls=True).over(in_order))
        .join(F.broadcast(presets), "run", "left")
        .withColumn("expected", F.coalesce(_next("last_accepted"), "preset", F.lit(1)))
        .withColumn(
            "untold", F.expr("coalesce(last_moved.untold, false) and not last_moved.session_epoch <=> last_accepted")
        )
    )
    epoch = F.col("session_epoch")
    resent = F.expr("of_first and session_epoch = coalesce(last_accepted, preset - 1, 0)")
    after_untold = (epoch == F.col("last_moved.session_epoch")) | (epoch == _next("last_moved.session_epoch"))
    return steps.withColumns(
        {
            "is_next": (epoch == F.col("expected")) | resent,
            "may_follow": F.col("untold") & F.coalesce(after_untold, F.lit(False)),
        }
    )


def _with_overtaking(refused: DataFrame, tables: Tables) -> DataFrame:
    """Adds ``overtaken``: between the request and its answer the session took one with a later epoch, or a full one.

    An older epoch that was taken overtakes nothing: only a later one says that its client has done with this answer.
    """
    taken = tables.once(answered_requests).where("error = 0 or error is null or not at_once")
    full = tables.once(session_rows).where("what = 'request' and session_epoch = 0")
    later = taken.select(*SESSION, "seq", "session_epoch").unionByName(full.select(*SESSION, "seq", "session_epoch"))
    later = later.withColumnsRenamed({"seq": "later_seq", "session_epoch": "later_epoch"})
    wraps = f"not of_first and session_epoch = {LARGEST_EPOCH}"
    is_later = f"(later_epoch = 0 or later_epoch > session_epoch or {wraps})"
    between = F.expr(f"later_seq > seq and later_seq < reply_seq and later_epoch != session_epoch and {is_later}")
    counted = F.count_if(F.coalesce(between, F.lit(False))) > 0
    return refused.join(later, [*SESSION], "left").groupBy(*refused.columns).agg(counted.alias("overtaken"))


def _next(name: str) -> Column:
    return F.expr(f"if({name} = {LARGEST_EPOCH} and not of_first, 1, {name} + 1)")


JUDGED = Judging(
    "session-epoch-order",
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    find=transform,
    instead=("frames",),
)
