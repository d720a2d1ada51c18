"""Runs the Spark jobs and collects what the verdict and the page need: aggregates and examples, never raw facts."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from reports.jobs import (
    availability,
    broker_internals,
    controller_failover,
    coordinators,
    facts,
    fault_log,
    fetch_costs,
    generator,
    groups,
    latency_distribution,
    latency_heatmap,
    latency_over_time,
    latency_percentiles,
    leadership,
    mirror,
    offered_load,
    recovery,
    snapshot_transfers,
    throughput,
)
from reports.jobs.anomaly import with_active_fault
from reports.jobs.config import JobConfig
from reports.jobs.judging import Judging, all_judgings
from reports.read_tables import Tables
from reports.verdict import Anomaly

Row: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[str], None]

MOST_EXAMPLES = 100
"""The page lists at most so many anomalies of one guarantee. Their count is always that of all."""

JOBS_AT_ONCE = 4
"""Small jobs spend their time in planning, so a few at once use the processor that one leaves idle."""

_EXAMPLE = (
    "run long, guarantee string, topic string, partition long, offset long, process string, index long, at_us long, "
    "detail string, total long, n long"
)
_EXAMPLE_COLUMNS = tuple(part.split()[0] for part in _EXAMPLE.split(", "))

_SERIES: Mapping[str, Callable[[Tables, JobConfig], DataFrame]] = {
    "facts": facts.transform,
    "faults": fault_log.transform,
    "fault_hits": fault_log.hits,
    "percentiles": latency_percentiles.transform,
    "distribution": latency_distribution.transform,
    "latency": latency_over_time.transform,
    "heatmap": latency_heatmap.transform,
    "throughput": throughput.transform,
    "load": offered_load.transform,
    "gaps": availability.transform,
    "first_ok": availability.first_ok_after_faults,
    "broker": broker_internals.transform,
    "transfers": lambda tables, cfg: tables.once("transfers", lambda each: snapshot_transfers.transform(each, cfg)),
    "failovers": controller_failover.transform,
    "generator": generator.transform,
    "leadership": leadership.transform,
    "leaderships": leadership.by_second,
    "costs": fetch_costs.transform,
    "costs_by_size": fetch_costs.by_partitions_sent,
    "recoveries": recovery.transform,
    "sent_again": recovery.sent_again,
    "groups": groups.transform,
    "rebalances": groups.rebalances,
    "ownerless": groups.ownerless,
    "coordinators": coordinators.transform,
    "mirrors": mirror.transform,
    "mirrored": mirror.positions,
    "mirror_rewinds": mirror.rewinds,
    "mirror_source": mirror.source_ends,
    "mirror_targets": mirror.targets,
}

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "generator": ("load",),
    "leadership": ("trace",),
    "leaderships": ("trace",),
    "costs": ("fetch_costs",),
    "costs_by_size": ("fetch_costs",),
    "groups": ("memberships",),
    "rebalances": ("memberships",),
    "ownerless": ("memberships",),
    "coordinators": ("commits",),
    "mirrors": ("copies",),
    "mirrored": ("copies",),
    "mirror_rewinds": ("copies",),
    "mirror_source": ("copies",),
    "mirror_targets": ("target_runs",),
}
"""The tables without which a series has nothing to measure."""


@dataclass(frozen=True, slots=True)
class Found:
    """Breaches of one guarantee in one run."""

    total: int
    examples: tuple[Anomaly, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the jobs found in one run.

    The lists hold rows with the columns that the jobs' docstrings name, without ``run``, in a fixed order.
    """

    facts: Mapping[str, int]
    found: Mapping[str, Found]
    present: frozenset[str]
    faults: Sequence[Row]
    fault_hits: Sequence[Row]
    percentiles: Sequence[Row]
    distribution: Sequence[Row]
    latency: Sequence[Row]
    heatmap: Sequence[Row]
    throughput: Sequence[Row]
    load: Sequence[Row]
    gaps: Sequence[Row]
    first_ok: Sequence[Row]
    broker: Sequence[Row]
    transfers: Sequence[Row]
    failovers: Sequence[Row]
    generator: Sequence[Row] = ()
    leadership: Sequence[Row] = ()
    leaderships: Sequence[Row] = ()
    costs: Sequence[Row] = ()
    costs_by_size: Sequence[Row] = ()
    recoveries: Sequence[Row] = ()
    sent_again: Sequence[Row] = ()
    groups: Sequence[Row] = ()
    rebalances: Sequence[Row] = ()
    ownerless: Sequence[Row] = ()
    coordinators: Sequence[Row] = ()
    mirrors: Sequence[Row] = ()
    mirrored: Sequence[Row] = ()
    mirror_rewinds: Sequence[Row] = ()
    mirror_source: Sequence[Row] = ()
    mirror_targets: Sequence[Row] = ()


def collect(
    tables: Tables, cfg: JobConfig, runs: int, progress: Progress, jobs_at_once: int = JOBS_AT_ONCE
) -> list[Findings]:
    """``jobs_at_once`` is 1 for a large history, because each of its jobs fills the cores and the memory on its own."""
    with ThreadPoolExecutor(jobs_at_once) as pool:
        judged = [one for one in all_judgings() if _can_be_judged(one, tables, runs)]
        breaches = [pool.submit(_breaches, one, tables, cfg, progress) for one in judged]
        measured = {name: job for name, job in _SERIES.items() if _can_be_measured(name, tables, runs)}
        series = {name: pool.submit(_rows, name, job, tables, cfg, progress) for name, job in measured.items()}
        examples = _with_faults([row for one in breaches for row in one.result()], tables)
        found = {one.name: [row for row in examples if row["guarantee"] == one.name] for one in all_judgings()}
        rows = {name: future.result() for name, future in series.items()}
    return [_of_run(run, tables, found, rows) for run in range(runs)]


def _can_be_judged(one: Judging, tables: Tables, runs: int) -> bool:
    """False if no run has the tables, since even a query over nothing costs its planning."""
    needs = (*one.needs, one.found_in) if one.found_in else one.needs
    return any(tables.has(run, *needs) for run in range(runs))


def _can_be_measured(name: str, tables: Tables, runs: int) -> bool:
    return name not in _NEEDS or any(tables.has(run, *_NEEDS[name]) for run in range(runs))


def _breaches(one: Judging, tables: Tables, cfg: JobConfig, progress: Progress) -> list[Row]:
    found = one.find(tables, cfg)
    each = Window.partitionBy("run")
    ordered = each.orderBy("at_us", "topic", "partition", "offset", "process", "index")
    counted = found.withColumn("total", F.count(F.lit(1)).over(each)).withColumn("n", F.row_number().over(ordered))
    rows = [row.asDict() for row in counted.where(F.col("n") <= MOST_EXAMPLES).collect()]
    progress(f"judged {one.name}")
    return rows


def _with_faults(rows: Sequence[Row], tables: Tables) -> list[Row]:
    """Names the fault of each example, all in one query. A clean run has no examples and pays nothing."""
    if not rows:
        return []
    session = tables.faults.sparkSession
    examples = session.createDataFrame([tuple(row[name] for name in _EXAMPLE_COLUMNS) for row in rows], _EXAMPLE)
    named = [row.asDict() for row in with_active_fault(examples, tables.faults).collect()]
    return sorted(named, key=lambda row: (row["run"], row["guarantee"], row["n"]))


def _rows(
    name: str, job: Callable[[Tables, JobConfig], DataFrame], tables: Tables, cfg: JobConfig, progress: Progress
) -> list[Row]:
    rows = [row.asDict() for row in job(tables, cfg).collect()]
    rows.sort(key=lambda row: tuple((value is None, value) for value in row.values()))
    progress(f"measured {name.replace('_', ' ')}")
    return rows


def _of_run(
    run: int, tables: Tables, found: Mapping[str, Sequence[Row]], rows: Mapping[str, Sequence[Row]]
) -> Findings:
    mine = {name: [_without_run(row) for row in some if row["run"] == run] for name, some in rows.items()}
    numbers = _derived({str(row["fact"]): int(row["value"] or 0) for row in mine.pop("facts")})
    breaches = {name: _found([row for row in some if row["run"] == run]) for name, some in found.items()}
    present = frozenset(name for number, name in tables.present if number == run)
    return Findings(facts=numbers, found=breaches, present=present, **mine)


def _derived(facts: dict[str, int]) -> dict[str, int]:
    """Adds facts that follow from others. Changes count as looked at only if somebody described the outcome."""
    looks = facts.get("metadata_polls", 0) + facts.get("final_descriptions", 0) + facts.get("metadata_images", 0)
    described = facts.get("changes", 0) if facts.get("final_descriptions", 0) else 0
    return facts | {"metadata_looks": looks, "described_changes": described}


def _without_run(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "run"}


def _found(rows: Sequence[Row]) -> Found:
    fields = Anomaly.__dataclass_fields__
    return Found(
        total=int(rows[0]["total"]) if rows else 0,
        examples=tuple(Anomaly(**{key: row[key] for key in fields}) for row in rows),
    )
