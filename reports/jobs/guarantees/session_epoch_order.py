"""session-epoch-order: a node accepts the epochs 1, 2, 3, ... of a session, each once; after 2^31-1 comes 1.

It is a breach to accept another epoch, and to refuse the expected one (INVALID_FETCH_SESSION_EPOCH). If the trace does
not tell the answer to a request, the epoch may or may not have advanced, and both continuations are allowed. A preset
(FAULTS, kind ``preset...``) names the epoch that each new session expects first, instead of 1. In the first revision
numbers only grow, and the last accepted one may come again as a retransmission.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import before
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.sessions import LARGEST_EPOCH, SESSION, answered_requests
from reports.read_tables import Tables


def transform(tables: Tables) -> DataFrame:
    in_order = before(Window.partitionBy(*SESSION).orderBy("seq"))
    accepted = F.expr("if(outcome = 'accepted', session_epoch, null)")
    moved = F.expr("if(outcome in ('accepted', 'untold'), struct(outcome, session_epoch), null)")
    preset = tables.faults.where("startswith(kind, 'preset') and session_epoch > 0")
    presets = preset.groupBy("run").agg(F.max("session_epoch").alias("preset"))
    steps = (
        tables.once(answered_requests)
        .withColumn("last_accepted", F.last(accepted, ignorenulls=True).over(in_order))
        .withColumn("last_moved", F.last(moved, ignorenulls=True).over(in_order))
        .join(F.broadcast(presets), "run", "left")
        .withColumn("expected", F.coalesce(_next("last_accepted"), "preset", F.lit(1)))
        .withColumn("untold", F.expr("coalesce(last_moved.outcome = 'untold', false)"))
    )
    epoch = F.col("session_epoch")
    after_untold = (epoch == F.col("last_moved.session_epoch")) | (epoch == _next("last_moved.session_epoch"))
    resent = F.expr("resends and session_epoch <=> last_accepted")
    wrong_accepted = F.expr("outcome = 'accepted' and session_epoch != expected")
    wrong_accepted = wrong_accepted & ~(F.col("untold") & after_untold) & ~resent
    right_refused = F.expr("outcome = 'wrong_epoch' and session_epoch = expected and not untold")
    detail = sentence(
        "Node %s %s epoch %s of session %s from %s while it expected %s.",
        "node",
        F.when(wrong_accepted, "accepted").otherwise("refused"),
        "session_epoch",
        "session",
        "client_id",
        "expected",
    )
    return anomalies(steps.where(wrong_accepted | right_refused), detail, process="client_id")


def _next(name: str) -> Column:
    return F.expr(f"if({name} = {LARGEST_EPOCH} and not resends, 1, {name} + 1)")


JUDGED = Judging(
    "session-epoch-order",
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    find=transform,
)
