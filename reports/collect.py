"""Run the jobs, and collect aggregates and examples."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.job_rows import Row, Rows
from reports.jobs.availability import first_ok_after_faults, longest_gaps
from reports.jobs.expressions import first_rows
from reports.jobs.facts import evidence_facts
from reports.jobs.faults import fault_log, spread_hits
from reports.jobs.fetch_costs import (
    broker_metrics,
    fetch_costs,
    fetch_recoveries,
    partitions_sent_again,
    service_time_by_partitions_sent,
)
from reports.jobs.groups import coordinator_moves, group_rebalances, group_totals, ownerless_partitions
from reports.jobs.guarantee_job import GuaranteeJob, guarantee_jobs, with_active_fault
from reports.jobs.last_stable_offset import longest_stalls, stall_durations
from reports.jobs.latency import latency_distribution, latency_heatmap, latency_over_time, latency_percentiles
from reports.jobs.leadership import controller_failovers, leader_changes_by_second, most_changed_partitions
from reports.jobs.load import completed_operations, offered_load, worker_effort
from reports.jobs.lost_records import lost_record_counts
from reports.jobs.mirror import (
    first_copies_after_rewinds,
    mirror_positions,
    mirror_source_ends,
    mirror_target_totals,
    mirror_totals,
)
from reports.jobs.snapshots import snapshot_transfers
from reports.jobs.transactions import times_to_decide, transaction_totals, transactions_by_fault
from reports.read_tables import Tables, lies_in_one_place
from reports.verdict import Anomaly

Job: TypeAlias = Callable[[Tables], DataFrame]
Progress: TypeAlias = Callable[[str], None]

MAX_EXAMPLES = 100
"""Limits the examples that the page lists of one guarantee. The count always includes all violations."""

JOBS_AT_ONCE = 4
"""Number of small jobs that run concurrently. They spend their time in planning, and a single one leaves a processor
idle."""

_ORDER = ("at_us", "topic", "partition", "offset", "process", "index")
"""The columns by which violations are sorted."""
_EXAMPLE = (
    "run long, guarantee string, topic string, partition long, offset long, process string, index long, at_us long, "
    "detail string, total long, n long"
)


@dataclass(frozen=True, slots=True)
class Violations:
    """The violations of one guarantee in one run."""

    total: int
    examples: tuple[Anomaly, ...]


def _rows_of(job: Job, *needs: str) -> Any:
    """Declare a field with the rows of a job. If no run has the tables ``needs``, the job is not run."""
    return field(default=(), metadata={"job": job, "needs": needs})


@dataclass(frozen=True, slots=True)
class Findings:
    """The rows of the jobs for one run.

    The rows of each sequence have the columns that the job's docstring names, without ``run``, in a fixed order.
    """

    facts: Mapping[str, int]
    found: Mapping[str, Violations]
    present: frozenset[str]
    faults: Sequence[Row] = _rows_of(fault_log)
    fault_hits: Sequence[Row] = _rows_of(spread_hits)
    percentiles: Sequence[Row] = _rows_of(latency_percentiles)
    distribution: Sequence[Row] = _rows_of(latency_distribution)
    latency: Sequence[Row] = _rows_of(latency_over_time)
    heatmap: Sequence[Row] = _rows_of(latency_heatmap)
    throughput: Sequence[Row] = _rows_of(completed_operations)
    load: Sequence[Row] = _rows_of(lambda tables: tables.once(offered_load))
    gaps: Sequence[Row] = _rows_of(longest_gaps)
    losses: Sequence[Row] = _rows_of(lost_record_counts, "runs")
    first_ok: Sequence[Row] = _rows_of(first_ok_after_faults)
    broker: Sequence[Row] = _rows_of(broker_metrics)
    transfers: Sequence[Row] = _rows_of(snapshot_transfers)
    failovers: Sequence[Row] = _rows_of(controller_failovers)
    generator: Sequence[Row] = _rows_of(worker_effort, "load")
    leadership: Sequence[Row] = _rows_of(most_changed_partitions, "trace")
    leaderships: Sequence[Row] = _rows_of(leader_changes_by_second, "trace")
    costs: Sequence[Row] = _rows_of(fetch_costs, "fetch_costs")
    costs_by_size: Sequence[Row] = _rows_of(service_time_by_partitions_sent, "fetch_costs")
    recoveries: Sequence[Row] = _rows_of(fetch_recoveries)
    sent_again: Sequence[Row] = _rows_of(partitions_sent_again)
    groups: Sequence[Row] = _rows_of(group_totals, "memberships")
    rebalances: Sequence[Row] = _rows_of(group_rebalances, "memberships")
    ownerless: Sequence[Row] = _rows_of(ownerless_partitions, "memberships")
    coordinators: Sequence[Row] = _rows_of(coordinator_moves, "commits")
    transactions: Sequence[Row] = _rows_of(transaction_totals, "transactions")
    decided: Sequence[Row] = _rows_of(times_to_decide, "transactions")
    transactions_around_faults: Sequence[Row] = _rows_of(transactions_by_fault, "transactions", "faults")
    stable_offsets: Sequence[Row] = _rows_of(stall_durations, "transactions", "positions")
    stalls: Sequence[Row] = _rows_of(longest_stalls, "transactions", "positions")
    mirrors: Sequence[Row] = _rows_of(mirror_totals, "copies")
    mirrored: Sequence[Row] = _rows_of(mirror_positions, "copies")
    mirror_rewinds: Sequence[Row] = _rows_of(first_copies_after_rewinds, "copies")
    mirror_source: Sequence[Row] = _rows_of(mirror_source_ends, "copies")
    mirror_targets: Sequence[Row] = _rows_of(mirror_target_totals, "target_runs")


@dataclass(frozen=True, slots=True)
class Query:
    """One Spark action: it finds violations of a guarantee, or computes a measurement."""

    name: str
    """The name of the guarantee or the measurement."""
    judges: bool
    job: Job

    def first_rows(self, frame: DataFrame) -> DataFrame:
        """Return the part of the job's frame that is collected first. Most guarantees hold, and unless the history is
        large, a plan for few violations is cheaper than one for many."""
        return frame.limit(MAX_EXAMPLES + 1) if self.judges and lies_in_one_place(frame) else frame

    def rows(self, frame: DataFrame, first: DataFrame) -> list[Row]:
        """Collect the rows. Violations have their number in the run from 1 (``n``), and the ``total`` of the run."""
        return _violations(self.name, frame, first) if self.judges else _sorted(first)


RunQuery: TypeAlias = Callable[[Query], list[Row]]


def queries(tables: Tables, runs: int) -> list[Query]:
    """Return the queries that these tables allow."""

    def some_run_has(*names: str) -> bool:
        """Return whether any run has the tables. Even an empty query costs planning time."""
        return any(tables.has(run, *names) for run in range(runs))

    judged = [job for job in guarantee_jobs() if any(some_run_has(*names) for names in _starting_points(job))]
    declared = {field.name: field.metadata for field in fields(Findings) if field.metadata}
    measured = {name: metadata["job"] for name, metadata in declared.items() if some_run_has(*metadata["needs"])}
    judging = [Query(job.name, True, job.find) for job in judged]
    measuring = [Query(name, False, measure) for name, measure in {"facts": evidence_facts, **measured}.items()]
    # Neighbours of one kind start from the same frames, and would wait for each other.
    mixed = chain.from_iterable(zip_longest(judging, measuring))
    return [query for query in mixed if query is not None]


def collect(
    tables: Tables, runs: int, progress: Progress, jobs_at_once: int = JOBS_AT_ONCE, run: RunQuery | None = None
) -> list[Findings]:
    """Run the queries, and return the findings of each run. ``run`` runs one query; without it each is planned here.

    ``jobs_at_once`` is 1 for a large history, because each of its jobs fills the cores and the memory on its own.
    """

    def planned_here(query: Query) -> list[Row]:
        frame = query.job(tables)
        return query.rows(frame, query.first_rows(frame))

    def reported(query: Query) -> list[Row]:
        rows = (run or planned_here)(query)
        progress(f"judged {query.name}" if query.judges else f"measured {query.name.replace('_', ' ')}")
        return rows

    every = queries(tables, runs)
    with ThreadPoolExecutor(jobs_at_once) as pool:
        results = list(pool.map(reported, every))
    return _findings(tables, runs, list(zip(every, results, strict=True)))


def _findings(tables: Tables, runs: int, results: Sequence[tuple[Query, list[Row]]]) -> list[Findings]:
    examples = _with_faults([row for query, rows in results if query.judges for row in rows], tables)
    by_guarantee = {job.name: [row for row in examples if row["guarantee"] == job.name] for job in guarantee_jobs()}
    measured = {query.name: rows for query, rows in results if not query.judges}
    return [_of_run(run, tables, by_guarantee, measured) for run in range(runs)]


def _starting_points(job: GuaranteeJob) -> list[Sequence[str]]:
    """Return sets of tables. Without all tables of one set there is nothing to compute."""
    found_in = [job.found_in] if job.found_in else []
    return [[*job.needs, *found_in], *([job.instead] if job.instead else [])]


def _violations(guarantee: str, frame: DataFrame, first: DataFrame) -> list[Row]:
    """Collect the first MAX_EXAMPLES violations of each run. ``first`` has all violations, or more than the page may
    show."""
    if lies_in_one_place(frame):
        few = [row.asDict() for row in first.collect()]
        if len(few) <= MAX_EXAMPLES:
            return _numbered(guarantee, few)
    of_run = Window.partitionBy("run")
    counted = frame.withColumn("total", F.count("*").over(of_run))
    rows = first_rows(counted, MAX_EXAMPLES, of_run.orderBy(*_ORDER)).collect()
    return [{"guarantee": guarantee, **row.asDict()} for row in rows]


def _numbered(guarantee: str, violations: Rows) -> list[Row]:
    """Number and count the violations in Spark's order, with nulls first."""
    of_run: dict[int, list[Row]] = defaultdict(list)
    for row in sorted(violations, key=lambda row: [(row[name] is not None, row[name]) for name in _ORDER]):
        of_run[row["run"]].append({"guarantee": guarantee, **row, "n": len(of_run[row["run"]]) + 1})
    return [{**row, "total": len(of_one_run)} for of_one_run in of_run.values() for row in of_one_run]


def _with_faults(rows: Rows, tables: Tables) -> list[Row]:
    """Add the fault of each example, all in one query. A clean run has no examples and costs nothing."""
    if not rows:
        return []
    examples = tables.faults.sparkSession.createDataFrame(rows, _EXAMPLE)
    named = [row.asDict() for row in with_active_fault(examples, tables.faults).collect()]
    return sorted(named, key=lambda row: (row["run"], row["guarantee"], row["n"]))


def _sorted(frame: DataFrame) -> list[Row]:
    rows = [row.asDict() for row in frame.collect()]
    return sorted(rows, key=lambda row: tuple((value is None, value) for value in row.values()))


def _of_run(run: int, tables: Tables, by_guarantee: Mapping[str, Rows], rows: Mapping[str, Rows]) -> Findings:
    mine = {name: [_without_run(row) for row in of_all_runs if row["run"] == run] for name, of_all_runs in rows.items()}
    numbers = _derived({str(row["fact"]): int(row["value"] or 0) for row in mine.pop("facts")})
    violations = {
        name: _found([row for row in of_all_runs if row["run"] == run]) for name, of_all_runs in by_guarantee.items()
    }
    present = frozenset(name for number, name in tables.present if number == run)
    return Findings(facts=numbers, found=violations, present=present, **mine)


def _derived(facts: dict[str, int]) -> dict[str, int]:
    """Add the facts that follow from others. Changes count as evidence only if a client described the outcome."""
    looks = facts.get("metadata_polls", 0) + facts.get("final_descriptions", 0) + facts.get("metadata_images", 0)
    described = facts.get("changes", 0) if facts.get("final_descriptions", 0) else 0
    return facts | {"metadata_looks": looks, "described_changes": described}


def _without_run(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "run"}


def _found(rows: Rows) -> Violations:
    fields = Anomaly.__dataclass_fields__
    return Violations(
        total=int(rows[0]["total"]) if rows else 0,
        examples=tuple(Anomaly(**{key: row[key] for key in fields}) for row in rows),
    )
