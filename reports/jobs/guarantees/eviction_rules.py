"""eviction-rules: a session was evicted without one of KIP-227's three reasons, or there were more sessions than slots.

The reasons are: (a) a follower's session replaces a consumer's; (b) the session was idle longer than the minimum;
(c) it was older than the minimum and smaller than the newcomer. The node names a reason and the values behind it, and
the reason must be true of those values. The minimum is a constant for sessions of the final revision, and the run's
setting for those of the first.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.expressions import so_far
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.notes import number, text
from reports.jobs.shared.sessions import SESSION, session_notes
from reports.read_tables import Tables

_HELD = ("idle_ms", "age_ms", "partitions", "by_partitions")


def transform(tables: Tables) -> DataFrame:
    notes = session_notes(tables)
    return _without_reason(notes, tables).unionByName(_too_many(notes, tables))


def _without_reason(notes: DataFrame, tables: Tables) -> DataFrame:
    """The revision is the one that the note on the session's creation named."""
    life = so_far(Window.partitionBy(*SESSION).orderBy("seq"))
    named = F.when(F.col("what") == "session_created", text("revision"))
    minimum = F.when(F.col("revision") == "first", tables.config.per_run("first_min_eviction_ms")).otherwise(
        tables.config.min_eviction_ms
    )
    evicted = (
        notes.withColumn("revision", F.last(named, ignorenulls=True).over(life))
        .where("what = 'session_evicted'")
        .withColumn("minimum_ms", minimum)
        .withColumns({name: text(name) for name in ("rule", "privileged", "by_privileged")})
        .withColumns({name: number(name) for name in _HELD})
    )
    allowed = F.expr(
        "case rule when 'a' then by_privileged in ('1', 'true') and coalesce(privileged not in ('1', 'true'), true) "
        "when 'b' then idle_ms > minimum_ms "
        "when 'c' then age_ms > minimum_ms and by_partitions > partitions end"
    )
    detail = sentence(
        "Node %s evicted session %s by rule (%s), but it was idle for %s ms, %s ms old, with %s partitions "
        "against %s of the newcomer.",
        "node",
        "session",
        F.coalesce("rule", F.lit("none")),
        *(F.coalesce(F.col(name).cast("string"), F.lit("?")) for name in _HELD),
    )
    return anomalies(evicted.where(~F.coalesce(allowed, F.lit(False))), detail, process="client_id")


def _too_many(notes: DataFrame, tables: Tables) -> DataFrame:
    in_order = Window.partitionBy("run", "node", "incarnation").orderBy("seq")
    change = F.when(F.col("what") == "session_created", 1).otherwise(-1)
    slots = tables.config.per_run("cache_slots")
    counted = notes.withColumn("sessions", F.sum(change).over(so_far(in_order))).withColumn("slots", slots)
    over = counted.where("slots > 0 and sessions > slots and what = 'session_created'")
    detail = sentence("Node %s held %s fetch sessions in %s slots.", "node", "sessions", "slots")
    return anomalies(over, detail, process="client_id")


JUDGED = Judging(
    "eviction-rules",
    needs=("trace",),
    evidence="sessions_created",
    unit="sessions created",
    find=transform,
)
