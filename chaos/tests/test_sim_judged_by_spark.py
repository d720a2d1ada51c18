"""A simulated run that is written out gets from the Spark jobs the verdict that the simulator gave."""

from pathlib import Path

import pytest

from chaos.mutants import by_name, mutants_of
from chaos.search.run_sim import play
from chaos.sim.run_folder import write_out
from chaos.sim.verdict import SimVerdict
from reports.verdict import Outcome
from scenarios import loader
from scenarios.loader import Scenario
from scenarios.revisions import each_revision

SEEDS = range(1, 30)
ONLY_IN_THE_SIMULATOR = {
    "session_for_who_wants_none",
    "draft_errors_outside_drafts",
    "retransmission_refuses_the_waiting",
}
"""Spark's jobs do not see what these break: they judge no full fetch, take any error for a refusal, and take a doubled
request on another connection for one that nobody was told of."""


def played(name: str, mutant: str | None, folder: Path) -> SimVerdict:
    """Written to ``folder``: a seed that passes, or with a mutant one that the simulator sees it with."""
    scenario = loader.find(name)
    wanted = Outcome.FAILED if mutant else Outcome.PASSED
    plays = (play(scenario, seed, mutant, keep_trace=True) for seed in SEEDS)
    verdict, world = next((verdict, world) for verdict, world in plays if verdict.outcome is wanted)
    write_out(verdict, world, folder)
    return verdict


def mutants_where_they_live(scenario: Scenario) -> list[tuple[str, str]]:
    """Each mutant with the scenario's first revision that has it."""
    living: dict[str, str] = {}
    for each in each_revision(scenario):
        for mutant in mutants_of(each):
            if mutant not in ONLY_IN_THE_SIMULATOR:
                living.setdefault(mutant, each.name)
    return [(name, mutant) for mutant, name in living.items()]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_agrees_with_the_simulator(tmp_path: Path) -> None:
    from reports.judge import verdicts_of

    scenarios = loader.load_all()
    pairs: list[tuple[str, str | None]] = [(each_revision(each)[0].name, None) for each in scenarios if each.mutants]
    pairs += [pair for each in scenarios for pair in mutants_where_they_live(each)]
    folders = [tmp_path / f"{name}-{mutant or 'control'}" for name, mutant in pairs]
    simulated = [played(name, mutant, folder) for (name, mutant), folder in zip(pairs, folders, strict=True)]
    verdicts = verdicts_of(folders)
    told = {folder.name: verdict.outcome.name for folder, verdict in zip(folders, verdicts, strict=True)}
    assert told == {folder.name: one.outcome.name for folder, one in zip(folders, simulated, strict=True)}
    assert all(by_name(one.mutant) for one in simulated if one.mutant)
