"""The last stable offset: hanging-transaction, hanging-found, lso-regression, and its lag.

The measurements show how long it lagged behind the high watermark, by the responses to readers. A *stall* is one value
of it in one partition. It begins with the first response that shows this value below the high watermark, and ends with
the first response that shows a greater one. Responses of all nodes count together, so a value that is shown only after
a greater one is no stall. Runs without transactions have none.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.expressions import (
    LEADS,
    OPERATION,
    PARTITION,
    before,
    first_rows,
    notes,
    number,
    text,
    with_operation,
    without_match,
)
from reports.jobs.guarantee_job import THE_END, GuaranteeJob, anomalies, sentence
from reports.jobs.latency import quantiles
from reports.jobs.transactions import ABOUT, transactions
from reports.read_tables import Tables

CLEANUP_US = 10_000_000


@GuaranteeJob(
    needs=("operations", "transactions", "ends"),
    evidence="transactions",
    unit="transactions",
    about=ABOUT,
    excused_by=THE_END,
)
def hanging_transaction(tables: Tables) -> DataFrame:
    """hanging-transaction: the last stable offset is below the high watermark once all is quiet.

    A transaction may cause that as long as its coordinator need not have aborted it: within its timeout and the
    interval in which coordinators look for old transactions
    (``transaction.abort.timed.out.transaction.cleanup.interval.ms``, 10 s by default). Only transactions in the history
    whose end no client was sent may still be open.
    """
    held = tables.ends.where("last_stable_offset >= 0 and last_stable_offset < high_watermark")
    untold = tables.once(transactions).where("outcome != 'ok'")
    may_be_open = f"other.at_us + other.timeout_us + {CLEANUP_US} >= this.end_us"
    hanging = without_match(held, untold, ["run"], may_be_open)
    detail = sentence(
        "The last stable offset is at %s, and the high watermark at %s. No transaction may still be open.",
        "last_stable_offset",
        "high_watermark",
    )
    return anomalies(hanging, detail, offset=F.col("last_stable_offset"), at_us=F.col("end_us"))


LOOK: Final = [*OPERATION, "topic", "partition"]
OPEN: Final = [*PARTITION, "producer_id", "start_offset"]


@GuaranteeJob(
    needs=("operations", "runs", "transactions", "described_transactions"),
    evidence="partitions_described",
    unit="looks at partitions",
    about=("X-12",),
    found_in="described_transactions",
    excused_by="another admin's abort that is under way",
)
def hanging_found(tables: Tables) -> DataFrame:
    """hanging-found (X-12): an admin's tools find each hanging transaction and no other, and end what they abort
    (KIP-664).

    There are three violations:

    - A description of a partition lacks a transaction that hangs there: its write was acknowledged before, it was never
      added at a coordinator (``error`` not_added), and no admin has requested its abort.
    - A transaction was found hanging and aborted, although its producer had it open, within its timeout.
    - A later description lists a transaction as open that was aborted successfully.

    Leaders that are cut off or paused may respond with old state. Scenarios with such faults must not promise it.
    """
    described = tables.described_transactions
    written = _acknowledged_writes(tables)
    kinds = [_missed_strays(described, written), _wrongly_aborted(described, written), _left_open(described)]
    return kinds[0].unionByName(kinds[1]).unionByName(kinds[2])


def _acknowledged_writes(tables: Tables) -> DataFrame:
    """The acknowledged writes of transactions. Columns: OPEN, and those of the transaction."""
    runs = tables.sends.where("first_offset >= 0").select(
        *OPERATION, "topic", "partition", F.col("first_offset").alias("start_offset")
    )
    return runs.join(tables.transactions, OPERATION).select(
        *OPEN,
        "transactional_id",
        "producer_epoch",
        "error",
        "from_us",
        F.col("at_us").alias("left_us"),
        F.least("at_us", F.col("from_us") + F.col("timeout_us")).alias("surely_until_us"),
    )


def _missed_strays(described: DataFrame, written: DataFrame) -> DataFrame:
    looks = described.groupBy(*LOOK).agg(
        F.min("queried_us").alias("queried_us"), F.max("received_us").alias("received_us")
    )
    aborts = described.where("abort != ''").groupBy(*OPEN).agg(F.min("abort_us").alias("ended_us"))
    strays = written.where("error = 'not_added'").join(aborts, OPEN, "left")
    due = looks.join(strays, PARTITION).where("queried_us >= left_us and (ended_us is null or received_us < ended_us)")
    missed = due.join(
        described.select(*LOOK, "producer_id", "start_offset"), [*LOOK, "producer_id", "start_offset"], "left_anti"
    )
    detail = sentence("The description lacks the open transaction of %s.", "transactional_id")
    return anomalies(missed, detail, offset="start_offset", at_us="received_us")


def _wrongly_aborted(described: DataFrame, written: DataFrame) -> DataFrame:
    known = written.where("coalesce(error, '') != 'not_added'").select(
        *OPEN, "producer_epoch", "from_us", "surely_until_us", F.col("transactional_id").alias("owner")
    )
    wrong = (
        described.where("abort != ''")
        .join(known, [*OPEN, "producer_epoch"])
        .where("from_us <= queried_us and received_us < surely_until_us")
    )
    detail = sentence("The transaction of %s was aborted as a hanging one, while its producer had it open.", "owner")
    return anomalies(wrong, detail, offset="start_offset", at_us="received_us")


def _left_open(described: DataFrame) -> DataFrame:
    aborted = described.where("abort = 'ok'").groupBy(*OPEN).agg(F.min("abort_end_us").alias("ended_us"))
    left = described.join(aborted, OPEN).where("queried_us >= ended_us")
    detail = sentence("The transaction of producer %s was aborted before, and is listed as open.", "producer_id")
    return anomalies(left, detail, offset="start_offset", at_us="received_us")


_LEADER = [*PARTITION, "node", "leader_epoch"]


@GuaranteeJob(
    needs=("operations", "positions"),
    evidence="stable_offsets",
    unit="last stable offsets sent",
    about=ABOUT,
)
def lso_regression(tables: Tables) -> DataFrame:
    """lso-regression: a node sends a smaller last stable offset than it had sent before as the same leader (X-4).

    Only responses to fetches that named the leader epoch count, because a leader of another epoch refuses such a fetch.
    Two responses have an order if one had come before the other was requested. A new leader may show less, so each node
    and epoch is judged by itself. A follower, which serves the consumers of its rack (KIP-392), may send a smaller one
    after a restart, when it knows only the high watermark of its checkpoint. So nodes are excluded if the trace names
    another leader of that epoch.
    """
    stable = tables.positions.where("last_stable_offset >= 0 and leader_epoch >= 0 and error is null")
    responses = with_operation(stable, tables, "node", "invoke_us", "complete_us").where("node >= 0")
    led = notes(tables, LEADS).select("run", text("partition").alias("place"), number("leader_epoch"), "node")
    leaders = led.groupBy("run", "place", "leader_epoch").agg(F.collect_set("node").alias("leaders"))
    named = responses.withColumn("place", F.concat_ws("-", "topic", "partition"))
    known = named.join(F.broadcast(leaders), ["run", "place", "leader_epoch"], "left")
    responses = known.where("leaders is null or array_contains(leaders, node)").drop("leaders", "place")
    ends = responses.select(
        *_LEADER,
        F.col("complete_us").alias("point_us"),
        F.lit(1).alias("is_end"),
        F.col("last_stable_offset").alias("shown"),
    )
    starts = responses.withColumn("point_us", F.col("invoke_us")).withColumn("is_end", F.lit(0))
    # A response in the very microsecond of the request comes after it.
    in_time = Window.partitionBy(*_LEADER).orderBy("point_us", "is_end")
    both = starts.unionByName(ends, allowMissingColumns=True)
    shown = both.withColumn("known", F.max("shown").over(before(in_time)))
    back = shown.where("is_end = 0 and last_stable_offset < known")
    detail = sentence(
        "Node %s, the leader in epoch %s, sent the last stable offset %s after it had sent %s.",
        "node",
        "leader_epoch",
        "last_stable_offset",
        "known",
    )
    return anomalies(back, detail, offset=F.col("last_stable_offset"))


MAX_STALLS = 2_000
"""Limits the stalls of one run on the page, to the longest ones."""


def stall_durations(tables: Tables) -> DataFrame:
    """Columns: run, topic, count (stalls), min_us, p50_us, p99_us, max_us (how long they lasted)."""
    lasted = (F.col("until_us") - F.col("from_us")).alias("low_us")
    durations = tables.once(all_stalls).select("run", "topic", lasted)
    durations = durations.withColumns({"high_us": F.col("low_us") + 1, "count": F.lit(1)})
    return quantiles(durations, ("run", "topic"), ("p50_us", "p99_us"))


def longest_stalls(tables: Tables) -> DataFrame:
    """The rows of ``all_stalls`` that lasted longest."""
    lasted = Window.partitionBy("run").orderBy(F.desc(F.col("until_us") - F.col("from_us")), *PARTITION, "offset")
    return first_rows(tables.once(all_stalls), MAX_STALLS, lasted).drop("n")


def all_stalls(tables: Tables) -> DataFrame:
    """Columns: run, topic, partition, offset (the last stable offset), from_us, until_us, behind (the most offsets that
    it was behind), moved (false: it was there when it was last seen, at until_us)."""
    columns = [*PARTITION, "last_stable_offset", "high_watermark"]
    fetched = with_operation(tables.positions.where("error is null"), tables, "complete_us")
    seen = fetched.select(*columns, F.col("complete_us").alias("at_us"))
    seen = seen.unionByName(tables.ends.select(*columns, F.col("end_us").alias("at_us")))
    transactional = tables.transactions.select("run").distinct()
    known = seen.where("last_stable_offset >= 0 and high_watermark >= 0")
    behind = F.col("high_watermark") - F.col("last_stable_offset")
    values = (
        known.join(F.broadcast(transactional), "run", "left_semi")
        .groupBy(*PARTITION, F.col("last_stable_offset").alias("offset"))
        .agg(
            F.min("at_us").alias("first_us"),
            F.max("at_us").alias("last_us"),
            F.min(F.when(behind > 0, F.col("at_us"))).alias("from_us"),
            F.max(behind).alias("behind"),
        )
    )
    greater = Window.partitionBy(*PARTITION).orderBy("offset").rowsBetween(1, Window.unboundedFollowing)
    moves = values.withColumn("moved_us", F.min("first_us").over(greater))
    ended = moves.withColumn("until_us", F.coalesce("moved_us", "last_us")).where("from_us < until_us")
    moved = F.col("moved_us").isNotNull().alias("moved")
    return ended.select(*PARTITION, "offset", "from_us", "until_us", "behind", moved)
