"""session-epoch-order: a node accepts the epochs 1, 2, 3, ... of a session, each once; after 2^31-1 comes 1.

It is a breach to accept another epoch, and to refuse the expected one (INVALID_FETCH_SESSION_EPOCH). If the trace does
not tell the answer to a request, the epoch may or may not have advanced, and both continuations are allowed. A preset
(FAULTS, kind ``preset...``) names the epoch that each new session expects first, instead of 1. In the first revision
numbers only grow, and the last accepted one may come again as a retransmission.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import anomalies, sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.jobs.sessions import LARGEST_EPOCH, SESSION, answered_requests
from reports.read_tables import Tables

NAME = "session-epoch-order"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    before = Window.partitionBy(*SESSION).orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    accepted = F.when(F.col("outcome") == "accepted", F.col("session_epoch"))
    moved = F.when(F.col("outcome").isin("accepted", "untold"), F.struct("outcome", "session_epoch"))
    preset = tables.faults.where(F.startswith("kind", F.lit("preset")) & (F.col("session_epoch") > 0))
    presets = preset.groupBy("run").agg(F.max("session_epoch").alias("preset"))
    first = F.coalesce("preset", F.lit(1))
    steps = (
        tables.once("answered_requests", answered_requests)
        .withColumn("last_accepted", F.last(accepted, ignorenulls=True).over(before))
        .withColumn("last_moved", F.last(moved, ignorenulls=True).over(before))
        .join(F.broadcast(presets), "run", "left")
        .withColumn("expected", F.when(F.col("last_accepted").isNull(), first).otherwise(_next("last_accepted")))
    )
    epoch = F.col("session_epoch")
    untold = F.coalesce(F.col("last_moved.outcome") == "untold", F.lit(False))
    after_untold = untold & (
        (epoch == F.col("last_moved.session_epoch")) | (epoch == _next("last_moved.session_epoch"))
    )
    resent = F.col("resends") & F.coalesce(epoch == F.col("last_accepted"), F.lit(False))
    wrong_accepted = (F.col("outcome") == "accepted") & (epoch != F.col("expected")) & ~after_untold & ~resent
    right_refused = (F.col("outcome") == "wrong_epoch") & (epoch == F.col("expected")) & ~untold
    told = F.when(wrong_accepted, "accepted").otherwise("refused")
    detail = sentence(
        "Node %s %s epoch %s of session %s from %s while it expected %s.",
        "node",
        told,
        "session_epoch",
        "session",
        "client_id",
        "expected",
    )
    return session_anomalies(steps.where(wrong_accepted | right_refused), NAME, detail)


def session_anomalies(found: DataFrame, name: str, detail: Column) -> DataFrame:
    """Anomalies of sessions have no partition and no operation. Their process is the client's name."""
    nothing = F.lit(-1)
    return anomalies(
        found,
        name,
        detail,
        at_us="at_us",
        topic=F.lit(""),
        partition=nothing,
        offset=nothing,
        process=F.col("client_id"),
        index=nothing,
    )


def _next(name: str) -> Column:
    wraps = (F.col(name) == LARGEST_EPOCH) & ~F.col("resends")
    return F.when(wraps, F.lit(1)).otherwise(F.col(name) + 1)


JUDGED = Judging(
    NAME,
    needs=("trace",),
    evidence="session_requests",
    unit="incremental fetches",
    find=transform,
)
