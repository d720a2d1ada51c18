"""incremental-answer-exact, as far as the frames before a broker that is not ours tell (F-14).

It is a breach if an incremental answer
- tells a partition again that has no records, no error, no diverging epoch and no preferred replica, and the same high
  watermark and log start as it was told last in this session, which was no error;
- does not tell a partition that came into the session with this request;
- does not tell a partition although the node had told anybody a greater high watermark or log start of it, before the
  request was sent, than it told last in this session.

That data is due cannot be seen from outside: how much a limit leaves out, and what compaction has left, is known only
inside. Only clear requests are judged (``wire_sessions``).
"""

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.shared.anomaly import anomalies, sentence
from reports.jobs.shared.judging import Judging
from reports.jobs.shared.wire_sessions import LINE, SESSION, answers, fetches, lines
from reports.read_tables import Tables

_AGAIN = (
    "judged and incremental and told is not null and told.error = 0 and told.record_bytes = 0 and not told.points_on "
    "and told_before.error = 0 and not forgotten and told.high_watermark = told_before.high_watermark "
    "and told.log_start_offset = told_before.log_start_offset"
)
_NEW = "judged and incremental and named and not held and not forgotten and told is null"


def transform(tables: Tables) -> DataFrame:
    return reduce(DataFrame.unionByName, (_told_again(tables), _new_and_not_told(tables), _change_not_told(tables)))


def _told_again(tables: Tables) -> DataFrame:
    return _breaches(tables.once(lines).where(_AGAIN), "was told again, without records and as before")


def _new_and_not_told(tables: Tables) -> DataFrame:
    return _breaches(tables.once(lines).where(_NEW), "came into the session and was not told")


def _change_not_told(tables: Tables) -> DataFrame:
    """A told line holds until the next one, or until the partition is forgotten. What others were told meanwhile is a
    change that the next request in the session must be answered with."""
    in_order = Window.partitionBy(*LINE).orderBy("seq").rowsBetween(1, Window.unboundedFollowing)
    over = F.min(F.expr("if(told is not null or forgotten, seq, null)")).over(in_order)
    held = tables.once(lines).withColumn("over", F.coalesce(over, F.lit(2**63 - 1)))
    held = held.where("judged and told is not null and told.error = 0 and not forgotten")
    held = held.select(*LINE, "over", F.col("told").alias("last"), F.col("answered_seq").alias("since"))
    seen = tables.frame_lines.where("kind = 'told' and error = 0").drop("node")
    seen = seen.join(fetches(tables).select("run", "node", "seq", "answered_seq"), ["run", "seq"])
    seen = seen.select("run", "node", "topic", "partition", "answered_seq", "high_watermark", "log_start_offset")
    newer = (
        "seen.answered_seq > held.since and seen.answered_seq < held.over and "
        "(seen.high_watermark > held.last.high_watermark or seen.log_start_offset > held.last.log_start_offset)"
    )
    same = [F.col(f"held.{key}") == F.col(f"seen.{key}") for key in ("run", "node", "topic", "partition")]
    due = held.alias("held").join(seen.alias("seen"), [*same, F.expr(newer)])
    due = due.groupBy(*(f"held.{key}" for key in LINE), "held.over", "held.since").agg(
        F.min("seen.answered_seq").alias("due_seq")
    )
    asked = tables.once(answers).where("judged and incremental").alias("asked")
    lacks = [F.col(f"due.{key}") == F.col(f"asked.{key}") for key in SESSION]
    lacks.append(F.expr("asked.seq > due.due_seq and asked.seq < due.over"))
    found = due.alias("due").join(asked, lacks).groupBy(*(f"due.{key}" for key in LINE), "due.since")
    first = found.agg(
        F.min_by("asked.client_id", "asked.seq").alias("client_id"), F.min("asked.until_us").alias("until_us")
    )
    return _breaches(first, "has changed, as the node told others before, and was not told")


def _breaches(found: DataFrame, what: str) -> DataFrame:
    detail = sentence(
        f"Node %s answered %s in session %s: %s-%s {what}.", "node", "client_id", "session", "topic", "partition"
    )
    return anomalies(found, detail, process="client_id", at_us="until_us")


JUDGED = Judging(
    "incremental-answer-exact",
    needs=("frames", "frame_lines"),
    evidence="lines_told",
    unit="partitions in answers",
    find=transform,
)
