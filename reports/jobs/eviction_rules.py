"""eviction-rules: a session was evicted without one of KIP-227's three reasons, or more sessions stood than slots.

(a) a follower's takes a consumer's; (b) idle longer than the minimum; (c) older than the minimum and smaller than
the newcomer. The reason that the node names must be true of the values that it names.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.anomaly import sentence
from reports.jobs.config import JobConfig
from reports.jobs.session_epoch_order import session_anomalies
from reports.jobs.sessions import noted
from reports.read_tables import Tables

NAME = "eviction-rules"


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:
    return _without_reason(tables, cfg).unionByName(_too_many(tables, cfg))


def _without_reason(tables: Tables, cfg: JobConfig) -> DataFrame:
    rule = F.get_json_object("detail", "$.rule")
    old_enough = noted("age_ms") > cfg.min_eviction_ms
    allowed = (
        F.when(rule == "a", _flag("by_privileged") & ~_flag("privileged"))
        .when(rule == "b", noted("idle_ms") > cfg.min_eviction_ms)
        .when(rule == "c", old_enough & (noted("by_partitions") > noted("partitions")))
        .otherwise(F.lit(False))
    )
    evicted = tables.trace.where(F.col("what") == "session_evicted")
    wrong = evicted.where(~F.coalesce(allowed, F.lit(False)))
    detail = sentence(
        "Node %s evicted session %s by rule (%s), but it was idle for %s ms, %s ms old, with %s partitions "
        "against %s of the newcomer.",
        "node", noted("session_id"), F.coalesce(rule, F.lit("none")), _shown("idle_ms"), _shown("age_ms"),
        _shown("partitions"), _shown("by_partitions"),
    )  # fmt: skip
    return session_anomalies(wrong, NAME, detail)


def _too_many(tables: Tables, cfg: JobConfig) -> DataFrame:
    change = F.when(F.col("what") == "session_created", 1).otherwise(-1)
    notes = tables.trace.where(F.col("what").isin("session_created", "session_closed", "session_evicted"))
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
