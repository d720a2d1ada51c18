"""eviction-rules: a session was evicted without one of KIP-227's three reasons, or there were more sessions than slots.

The reasons are: (a) a follower's session replaces a consumer's; (b) the session was idle longer than the minimum;
(c) it was older than the minimum and smaller than the newcomer. The node names a reason and the values behind it, and
the reason must be true of those values. The minimum is that of the
evicted session's revision: a constant in the final one, the run's setting in the first.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import sentence
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging
from reports.jobs.session_epoch_order import session_anomalies
from reports.jobs.sessions import SESSION, noted
from reports.read_tables import Tables

NAME = "eviction-rules"
_NOTES = ("session_created", "session_closed", "session_evicted")


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:
    return _without_reason(tables, cfg).unionByName(_too_many(tables, cfg))


def _without_reason(tables: Tables, cfg: JobConfig) -> DataFrame:
    rule = F.get_json_object("detail", "$.rule")
    minimum = F.when(F.col("revision") == "first", cfg.per_run("first_min_eviction_ms")).otherwise(cfg.min_eviction_ms)
    old_enough = noted("age_ms") > minimum
    allowed = (
        F.when(rule == "a", _flag("by_privileged") & ~_flag("privileged"))
        .when(rule == "b", noted("idle_ms") > minimum)
        .when(rule == "c", old_enough & (noted("by_partitions") > noted("partitions")))
        .otherwise(F.lit(False))
    )
    evicted = _with_revision(tables).where(F.col("what") == "session_evicted")
    wrong = evicted.where(~F.coalesce(allowed, F.lit(False)))
    detail = sentence(
        "Node %s evicted session %s by rule (%s), but it was idle for %s ms, %s ms old, with %s partitions "
        "against %s of the newcomer.",
        "node",
        noted("session_id"),
        F.coalesce(rule, F.lit("none")),
        _shown("idle_ms"),
        _shown("age_ms"),
        _shown("partitions"),
        _shown("by_partitions"),
    )
    return session_anomalies(wrong, NAME, detail)


def _with_revision(tables: Tables) -> DataFrame:
    """Notes on sessions, each with the revision that the note on the session's creation named."""
    life = Window.partitionBy(*SESSION).orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
    named = F.when(F.col("what") == "session_created", F.get_json_object("detail", "$.revision"))
    notes = tables.trace.where(F.col("what").isin(*_NOTES)).withColumn("session", noted("session_id"))
    return notes.withColumn("revision", F.last(named, ignorenulls=True).over(life))


def _too_many(tables: Tables, cfg: JobConfig) -> DataFrame:
    change = F.when(F.col("what") == "session_created", 1).otherwise(-1)
    notes = tables.trace.where(F.col("what").isin(*_NOTES))
    in_order = Window.partitionBy("run", "node", "incarnation").orderBy("seq")
    counted = notes.withColumn("sessions", F.sum(change).over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
    slots = cfg.per_run("cache_slots")
    over = counted.where((slots > 0) & (F.col("sessions") > slots) & (F.col("what") == "session_created"))
    detail = sentence("Node %s held %s fetch sessions in %s slots.", "node", "sessions", slots)
    return session_anomalies(over, NAME, detail)


def _flag(field: str) -> Column:
    return F.coalesce(F.get_json_object("detail", f"$.{field}").isin("1", "true"), F.lit(False))


def _shown(field: str) -> Column:
    return F.coalesce(F.get_json_object("detail", f"$.{field}"), F.lit("?"))


JUDGED = Judging(
    NAME,
    needs=("trace",),
    evidence="sessions_created",
    unit="sessions created",
    find=transform,
)
