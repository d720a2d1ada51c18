"""The evidence in each run: one number for each fact, such as the number of reads."""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs.evidence import acknowledged
from reports.jobs.expressions import LEADER_ELECTED, LEADS, METADATA_COMMITTED, METADATA_IMAGE, PARTITION
from reports.jobs.session_requests import FETCH, RETURNED
from reports.jobs.snapshots import CHUNK
from reports.read_tables import Tables

_ACKED = "type = 'ok' and first_offset >= 0"
_REWIND = "reason in ('OFFSET_OUT_OF_RANGE', 'tombstones_missed') and to_offset between 0 and from_offset - 1"
_FACTS: Mapping[str, Mapping[str, str]] = {
    "operations": {
        "operations": "true",
        "ok_operations": "type = 'ok'",
        "unknown_operations": "type = 'info'",
        "fetches": "type = 'ok' and f = 'fetch'",
        "metadata_polls": "type = 'ok' and f = 'metadata_read'",
        "final_descriptions": "type = 'ok' and f = 'final_describe'",
    },
    "changes": {"changes": "true"},
    "notes": {
        "leader_elections": f"what = '{LEADER_ELECTED}'",
        "metadata_images": f"what = '{METADATA_IMAGE}'",
        "partition_leaderships": f"what = '{LEADS}'",
        "download_chunks": f"what = '{CHUNK}'",
        "metadata_markers": f"what = '{METADATA_COMMITTED}' "
        "and get_json_object(detail, '$.kind') in ('begin', 'end', 'abort')",
    },
    "reads": {
        "read_runs": "true",
        "records_read": "count",
        "idempotent_records_read": "if(producer_id >= 0, count, 0)",
    },
    "sends": {"records_acked": f"if({_ACKED}, count, 0)", "acked_sends": _ACKED},
    "positions": {
        "positions": "true",
        "stable_offsets": "last_stable_offset >= 0 and leader_epoch >= 0 and error is null",
    },
    "assignments": {"assignments": "true"},
    "trace": {
        "session_requests": f"what = 'request' and api_key = {FETCH} and session_id != 0 and session_epoch > 0",
        "sessions_created": "what = 'session_created'",
    },
    "frames": {"session_requests": f"api_key = {FETCH} and session_id != 0 and session_epoch > 0"},
    "frame_lines": {"lines_returned": RETURNED},
    "commits": {
        "offsets_committed": "kind = 'commit' and error is null",
        "epochs_learnt": "kind in ('fetched', 'loaded') and error is null and metadata_epoch >= 0",
    },
    "transactions": {
        "transactions": "true",
        "transactions_ok": "requested_end = 'commit' and outcome = 'ok'",
        "transactions_committed": "requested_end = 'commit'",
        "transactions_not_committed": "requested_end != 'commit' or outcome = 'failed'",
    },
    "described_transactions": {"partitions_described": "true"},
    "views": {"views": "key = ''"},
    "transforms": {"records_transformed": "count"},
    "memberships": {"partitions_given": "event = 'assigned'"},
    "metadata_epochs": {"metadata_epochs": "accepted", "metadata_dropped": "not accepted"},
    "target_runs": {"records_at_target": "count"},
    "resets": {"rewinds": _REWIND, "records_rewound": f"if({_REWIND}, from_offset - to_offset, 0)"},
}
"""The facts that each table holds: a condition whose rows are counted, or a number that is summed."""
_SELDOM = (
    "frames",
    "frame_lines",
    "commits",
    "transactions",
    "described_transactions",
    "views",
    "transforms",
    "memberships",
    "metadata_epochs",
    "target_runs",
    "resets",
)
"""Many runs lack these tables. Even a query over nothing costs its planning."""


def evidence_facts(tables: Tables) -> DataFrame:
    """Amount of evidence: one number for each fact of each run. A guarantee without evidence was not judged.

    Columns: run, fact, value.
    """
    present = {name for _, name in tables.present}
    parts = [_counts(tables, name) for name in _FACTS if name not in _SELDOM or name in present]
    if "metadata_epochs" in present:
        parts.append(_positions_with_epochs(tables))
    return reduce(DataFrame.unionByName, [*parts, _end(tables), _acked_without_end(tables)])


def _counts(tables: Tables, table: str) -> DataFrame:
    facts = _FACTS[table]
    frame: DataFrame = getattr(tables, table)
    summed = frame.groupBy("run").agg(
        *(F.sum(F.expr(expression).cast("long")).alias(fact) for fact, expression in facts.items())
    )
    pairs = F.explode(F.array(*(F.struct(F.lit(fact).alias("fact"), F.col(fact).alias("value")) for fact in facts)))
    return summed.select("run", pairs.alias("pair")).select("run", "pair.*")


def _end(tables: Tables) -> DataFrame:
    last = tables.operations.groupBy("run").agg(F.max("complete_us").alias("value"))
    return last.withColumn("fact", F.lit("last_us"))


def _positions_with_epochs(tables: Tables) -> DataFrame:
    """Responses to clients that keep metadata epochs."""
    keepers = tables.metadata_epochs.where("accepted and metadata_epoch >= 0").select("run", "process").distinct()
    responses = tables.positions.join(F.broadcast(keepers), ["run", "process"], "left_semi")
    return responses.groupBy("run").agg(F.count("*").alias("value")).withColumn("fact", F.lit("positions_with_epochs"))


def _acked_without_end(tables: Tables) -> DataFrame:
    """Partitions with acknowledged records that no reader read to their end."""
    partitions = acknowledged(tables).select(*PARTITION).distinct().join(tables.ends, PARTITION, "left_anti")
    counted = partitions.groupBy("run").agg(F.count("*").alias("value"))
    return counted.withColumn("fact", F.lit("unended_partitions"))
