"""Writes a simulated run as a run folder: the folder that a live run leaves, so that the same Spark jobs judge it."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.recorder import Recorder
from chaos.checks.check import Check
from chaos.checks.guarantee_selection import is_judged
from chaos.checks.sessions.fetch_responses import FullResponseExact
from chaos.live import identity
from chaos.live.run_folder import write_table
from chaos.sim.agenda import START_WALL_MS
from chaos.sim.verdict import SimVerdict
from chaos.sim.world import SimWorld
from reference_broker.ports.node_ports import Now
from reports.columns import Table
from reports.guarantees import GUARANTEES, SeenFrom, names_seen_from
from reports.manifest import CheckResult, Expectations, Manifest, write_manifest
from reports.schema import FAULTS, TRACE, stored_files
from reports.verdict import Outcome
from scenarios.load import Load

WORKER = "sim"
JUDGED_HERE = names_seen_from(SeenFrom.INSIDE)
"""The guarantees that only the simulator's own checks can judge. Every scenario has those of them that
``guarantee_selection.is_judged`` does not except. All others are judged from the tables of the folder."""


def write_out(verdict: SimVerdict, world: SimWorld, folder: Path, command: str = "") -> Path:
    """Write everything that a judge needs, and return the folder. The world must have kept its trace."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(ParquetSink(folder, WORKER), WORKER)
    for rows in world.history.tables:
        recorder.record(rows)
    recorder.close(Now(world.agenda.now_us, world.agenda.wall_ms))
    _write(FAULTS, (row.values() for row in sorted(world.faults, key=lambda row: row.at_us)), folder / "faults.parquet")
    by_node: dict[tuple[int, int], list[tuple[str | int, ...]]] = {}
    for row in world.trace:
        by_node.setdefault((row.node, row.incarnation), []).append(row.values())
    for (node, incarnation), values in by_node.items():
        _write(TRACE, values, folder / "trace" / f"node-{node}-{incarnation}.parquet")
    write_manifest(folder, _manifest(verdict, world, folder, command))
    return folder


def _write(table: Table, rows: Iterable[Sequence[Any]], path: Path) -> None:
    write_table(table, (list(row) for row in rows), path)


def _manifest(verdict: SimVerdict, world: SimWorld, folder: Path, command: str) -> Manifest:
    scenario = world.scenario
    return Manifest(
        **identity.of_code_and_machine(),
        scenario=scenario.name,
        seed=verdict.seed,
        world="sim",
        history_files=stored_files(folder),
        repeat_command=verdict.repeat_command,
        number=scenario.number or 0,
        title=scenario.title,
        run_id=folder.name,
        mutant=verdict.mutant,
        mutant_calls=verdict.mutant_calls if verdict.mutant else -1,
        command=command or " ".join(sys.argv),
        start_wall_us=START_WALL_MS * 1000,
        duration_us=verdict.virtual_us,
        clock_tick_ms=scenario.cluster.sim_clock_tick_ms,
        trace_hash=verdict.trace_hash,
        clauses=scenario.clauses,
        crash=verdict.reasons[0] if verdict.outcome is Outcome.CRASHED else "",
        config=dict(scenario.cluster.config),
        load=_words(scenario.load.in_simulator),
        notes=("Played in virtual time: latencies are those of the simulated links, not of a machine.",),
        expectations=Expectations(
            faults=scenario.expected_faults,
            min_fetches=scenario.sim_min_fetches,
            min_acked=scenario.sim_min_acked,
            min_rewinds=scenario.min_rewinds,
            max_schedule_slip_ms=scenario.max_schedule_slip_ms,
            guarantees=_guarantees(world),
        ),
        checks=tuple(_judged(check, verdict.events) for check in world.checks if is_judged_here(check)),
    )


def _guarantees(world: SimWorld) -> tuple[str, ...]:
    """Return the guarantees of this run: those that the simulator judges. They depend on the faults that this seed has
    drawn. The result is empty if the scenario lists none; then all are judged."""
    listed = world.scenario.guarantees
    if not world.history.writes_guaranteed:
        listed = tuple(guarantee for guarantee in listed if not GUARANTEES[guarantee].keeps_writes)
    here = (guarantee for guarantee in JUDGED_HERE if is_judged(world.scenario, guarantee))
    return tuple(dict.fromkeys((*listed, *here))) if listed else ()


def is_judged_here(check: Check) -> bool:
    """Return whether the simulator judges this guarantee itself. It judges full responses because no table has
    their content."""
    return check.guarantee in JUDGED_HERE or isinstance(check, FullResponseExact)


def _judged(check: Check, events: int) -> CheckResult:
    """Return the manifest's entry of an invariant that was checked after each event."""
    first = check.violations[0] if check.violations else None
    return CheckResult(
        guarantee=check.guarantee,
        holds=first is None,
        evidence=events,
        at_us=first.at_us if first is not None else -1,
        detail=first.explanation if first is not None else "",
    )


def _words(load: Load) -> dict[str, str]:
    words = {
        fetchers.name: f"{fetchers.count} {fetchers.behaviour} fetchers of {fetchers.partitions} partitions"
        for fetchers in load.fetchers
    }
    for producers in load.producers:
        words[producers.name] = f"{producers.count} producers, {producers.rate_per_s:g} records/s each"
    return words
