"""The manifest of a live run: the scenario and its parameters, and the results of checks outside the history."""

import sys
from pathlib import Path
from typing import Any

from chaos.live import identity
from chaos.live.client_mutant import reached
from chaos.live.external.target import REFERENCE
from chaos.live.run_target import RunPlan, RunTarget
from reports.manifest import CheckResult, Expectations, Manifest
from reports.schema import stored_files
from scenarios.loader import typed, typed_options
from scenarios.model import Scenario
from scenarios.revisions import revision_of


def manifest_of(
    plan: RunPlan,
    brokers: RunTarget,
    checks: tuple[CheckResult, ...],
    duration_us: int,
    command: str,
    variant: str,
    crash: str,
    broker_mutant_reached: bool,
) -> Manifest:
    """Return the manifest of a run that has ended. ``crash`` is empty if the suite itself did not fail."""
    scenario = brokers.scenario
    is_reached = reached(plan.folder) if plan.client_mutant else broker_mutant_reached
    return Manifest(
        **of_live_run(scenario, plan.folder.path, plan.seed, plan.start_wall_us),
        title=scenario.title,
        repeat_command=_repeat_command(plan, scenario, variant),
        target=plan.target,
        variant=variant,
        mutant=plan.mutant,
        mutant_calls=int(is_reached) if plan.mutant else -1,
        command=command or " ".join(sys.argv),
        duration_us=duration_us,
        clauses=scenario.clauses,
        crash=crash,
        config=brokers.config,
        checks=checks,
        history_files=stored_files(plan.folder.path),
        load=_load_words(scenario),
        notes=brokers.notes(),
        expectations=Expectations(
            faults=scenario.expected_faults,
            min_fetches=scenario.min_fetches,
            min_acked=scenario.min_acked,
            min_rewinds=scenario.min_rewinds,
            max_schedule_slip_ms=scenario.max_schedule_slip_ms,
            guarantees=brokers.guarantees,
        ),
    )


def _repeat_command(plan: RunPlan, scenario: Scenario, variant: str) -> str:
    options = f" --mutant {plan.mutant}" if plan.mutant else ""
    options += f" --target {plan.target}" if plan.target != REFERENCE else ""
    options += "" if variant else typed_options(scenario)
    return f"./crucible {'compare' if variant else 'run'} {typed(scenario)} --seed {plan.seed}{options}"


def of_live_run(scenario: Scenario, folder: Path, seed: int, start_wall_us: int) -> dict[str, Any]:
    """Return the manifest's fields that every live run has."""
    return {
        **identity.of_code_and_machine(),
        "scenario": scenario.name,
        "seed": seed,
        "world": "live",
        "number": scenario.number or 0,
        "run_id": folder.name,
        "revision": revision_of(scenario),
        "start_wall_us": start_wall_us,
    }


def _load_words(scenario: Scenario) -> dict[str, str]:
    """Return the description of each part of the load, by name."""
    words = {
        fetcher.name: f"{fetcher.count} {fetcher.behaviour} fetchers of {fetcher.partitions} partitions of "
        f"{fetcher.topic}"
        for fetcher in scenario.load.fetchers
    }
    for group in scenario.load.groups:
        load = words.get(group.name)
        members = f"{group.count} {group.protocol} members{'' if group.metadata_epoch else ' without metadata epochs'}"
        words[group.name] = f"{load}, {members}" if load else members
    if scenario.load.mirror is not None:
        guard = "with" if scenario.load.mirror.metadata_epoch else "without"
        words["mirror"] = f"{scenario.load.mirror.count} members that mirror the topic, {guard} metadata epochs"
    for writers in scenario.load.transactional:
        words[writers.name] = f"{writers.count} writers of transactions in {writers.topic}"
    for workers in scenario.load.workers:
        words[workers.name] = f"{workers.count} workers from {workers.source} to {workers.target}, in transactions"
    for strays in scenario.load.strays:
        words[strays.name] = f"{strays.count} producers that leave hanging transactions in {strays.topic}"
    for janitors in scenario.load.janitors:
        words[janitors.name] = f"{janitors.count} admins that abort hanging transactions in {janitors.topic}"
    for producer in scenario.load.producers:
        words[producer.name] = f"{producer.count} producers to {producer.topic}, {producer.rate_per_s:g} records/s each"
    return words
