"""How much evidence there is: one number for each fact of each run. A guarantee without evidence was not judged."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.config import JobConfig
from reports.jobs.notes import ISR_CHANGED, LEADER_ELECTED, LEADS, METADATA_COMMITTED, METADATA_IMAGE
from reports.jobs.sessions import FETCH
from reports.jobs.snapshot_transfers import CHUNK
from reports.read_tables import Tables


def transform(tables: Tables, cfg: JobConfig) -> DataFrame:  # noqa: ARG001
    """Columns: run, fact, value."""
    ok = F.col("type") == "ok"
    placed = ok & (F.col("first_offset") >= 0)
    incremental = (F.col("api_key") == FETCH) & (F.col("session_id") != 0) & (F.col("session_epoch") > 0)
    parts = [
        _counts(
            tables.operations,
            [
                ("operations", F.lit(1)),
                ("ok_operations", ok.cast("int")),
                ("failed_operations", (F.col("type") == "fail").cast("int")),
                ("unknown_operations", (F.col("type") == "info").cast("int")),
                ("fetches", (ok & (F.col("f") == "fetch")).cast("int")),
                ("final_reads", (ok & (F.col("f") == "final_read")).cast("int")),
                ("metadata_polls", (ok & (F.col("f") == "metadata_read")).cast("int")),
                ("final_descriptions", (ok & (F.col("f") == "final_describe")).cast("int")),
            ],
        ),
        _counts(
            tables.changes,
            [
                ("changes", F.lit(1)),
                ("acked_changes", ok.cast("int")),
            ],
        ),
        _counts(
            tables.notes,
            [
                ("leader_elections", (F.col("what") == LEADER_ELECTED).cast("int")),
                ("metadata_images", (F.col("what") == METADATA_IMAGE).cast("int")),
                ("partition_leaderships", (F.col("what") == LEADS).cast("int")),
                ("isr_changes", (F.col("what") == ISR_CHANGED).cast("int")),
                ("download_chunks", (F.col("what") == CHUNK).cast("int")),
                ("metadata_markers", ((F.col("what") == METADATA_COMMITTED) & _is_marker()).cast("int")),
            ],
        ),
        _counts(
            tables.reads,
            [
                ("read_runs", F.lit(1)),
                ("records_read", F.col("count")),
                ("idempotent_records_read", F.when(F.col("producer_id") >= 0, F.col("count")).otherwise(0)),
            ],
        ),
        _counts(
            tables.sends,
            [
                ("records_sent", F.col("count")),
                ("records_acked", F.when(placed, F.col("count")).otherwise(0)),
                ("acked_sends", placed.cast("int")),
            ],
        ),
        _counts(tables.positions, [("positions", F.lit(1))]),
        _counts(tables.assignments, [("assignments", F.lit(1))]),
        _counts(tables.ends, [("ended_partitions", F.lit(1))]),
        _counts(tables.faults, [("fault_hits", F.lit(1))]),
        _counts(
            tables.trace,
            [
                ("session_requests", (incremental & (F.col("what") == "request")).cast("int")),
                ("sessions_created", (F.col("what") == "session_created").cast("int")),
                ("evictions", (F.col("what") == "session_evicted").cast("int")),
            ],
        ),
        *_of_groups(tables),
        _end(tables),
        _acked_without_end(tables),
    ]
    result = parts[0]
    for part in parts[1:]:
        result = result.unionByName(part)
    return result


def _counts(frame: DataFrame, facts: Sequence[tuple[str, Column]]) -> DataFrame:
    summed = frame.groupBy("run").agg(*(F.sum(value).cast("long").alias(name) for name, value in facts))
    pairs = [F.struct(F.lit(name).alias("fact"), F.col(name).alias("value")) for name, _ in facts]
    return summed.select("run", F.explode(F.array(*pairs)).alias("pair")).select("run", "pair.fact", "pair.value")


def _of_groups(tables: Tables) -> list[DataFrame]:
    """Facts of groups. They are left out where the tables are absent, because even an empty query costs its
    planning."""
    names = {name for _, name in tables.present}
    written = (F.col("kind") == "commit") & F.col("error").isNull()
    parts = {
        "commits": [
            ("offsets_committed", written.cast("int")),
            (
                "epochs_learnt",
                (
                    F.col("kind").isin("fetched", "loaded") & F.col("error").isNull() & (F.col("metadata_epoch") >= 0)
                ).cast("int"),
            ),
            ("offsets_fetched", ((F.col("kind") == "fetched") & F.col("error").isNull()).cast("int")),
        ],
        "memberships": [("partitions_given", (F.col("event") == "assigned").cast("int"))],
        "metadata_epochs": [
            ("metadata_epochs", F.col("accepted").cast("int")),
            ("metadata_dropped", (~F.col("accepted")).cast("int")),
        ],
        "copies": [("records_copied", F.col("count"))],
        "target_runs": [("records_at_target", F.col("count"))],
    }
    return [_counts(getattr(tables, name), counted) for name, counted in parts.items() if name in names]


def _is_marker() -> Column:
    return F.get_json_object("detail", "$.kind").isin("begin", "end", "abort")


def _end(tables: Tables) -> DataFrame:
    last = tables.operations.groupBy("run").agg(F.max("complete_us").alias("value"))
    return last.select("run", F.lit("last_us").alias("fact"), "value")


def _acked_without_end(tables: Tables) -> DataFrame:
    """Partitions with acknowledged records that nobody read to their end."""
    acked = tables.sends.where((F.col("type") == "ok") & (F.col("first_offset") >= 0))
    partitions = acked.select("run", "topic", "partition").distinct()
    open_ones = partitions.join(tables.ends, ["run", "topic", "partition"], "left_anti").groupBy("run")
    return open_ones.agg(F.count(F.lit(1)).alias("value")).select(
        "run", F.lit("unended_partitions").alias("fact"), "value"
    )
