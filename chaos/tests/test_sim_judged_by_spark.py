"""A simulated run that is written out gets from the Spark jobs the verdict that the simulator gave."""

from pathlib import Path

import pytest

from chaos.mutants import by_name
from chaos.search.run_sim import play, run
from chaos.sim.outcome import Outcome, Verdict
from chaos.sim.run_folder import write_out
from scenarios import loader

SEEDS = range(1, 30)


def played(name: str, mutant: str | None, folder: Path) -> Outcome:
    """Written to ``folder``: a seed that passes, or with a mutant one that the simulator sees it with."""
    scenario = loader.find(name)
    wanted = Verdict.FAILED if mutant else Verdict.PASSED
    seed = next(each for each in SEEDS if run(scenario, each, mutant).verdict is wanted)
    outcome, world = play(scenario, seed, mutant, keep_trace=True)
    write_out(outcome, world, folder)
    return outcome


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_spark_agrees_with_the_simulator(tmp_path: Path) -> None:
    from reports.judge import judge_many

    scenarios = loader.load_all()
    pairs = [(each.name, mutant) for each in scenarios for mutant in (None, *each.mutants) if each.mutants]
    folders = [tmp_path / f"{name}-{mutant or 'control'}" for name, mutant in pairs]
    outcomes = [played(name, mutant, folder) for (name, mutant), folder in zip(pairs, folders, strict=True)]
    verdicts = judge_many(folders)
    told = {folder.name: verdict.outcome.name for folder, verdict in zip(folders, verdicts, strict=True)}
    assert told == {folder.name: outcome.verdict.name for folder, outcome in zip(folders, outcomes, strict=True)}
    assert all(by_name(outcome.mutant) for outcome in outcomes if outcome.mutant)
