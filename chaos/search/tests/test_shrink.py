"""Shrinking keeps what a failure needs and drops the rest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.search.shrink import describe_faults, keep_as_regression, shrink
from chaos.search.write_scenario import write_scenario
from chaos.sim.one_seed import PlayedSeed, play_seed
from reports.verdict import Outcome
from scenarios import loader

pytestmark = pytest.mark.simulated


def test_one_lost_response_a_client_is_enough() -> None:
    scenario, mutant = loader.find("1"), "epoch_not_advanced_when_response_lost"
    failing = play_seed(scenario, 1, mutant).verdict
    small = shrink(scenario, failing)
    again = play_seed(small, 1, mutant).verdict
    assert [(fault.every, fault.times) for fault in small.faults] == [(0, 1)]
    assert dict(again.faults)["response_lost"] < dict(failing.faults)["response_lost"]
    assert failing.broken[0] in again.broken
    assert describe_faults(small).startswith("these faults are enough for it: response_lost")


def test_failure_that_needs_no_fault_is_reported_so() -> None:
    scenario = loader.find("6")
    small = shrink(scenario, play_seed(scenario, 1, "epoch_wraps_to_zero").verdict)
    assert small.faults == ()
    assert describe_faults(small) == "no fault is needed for it"


def test_shrink_skips_scenario_refused_by_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A load that is over before a fault begins would fail as well here."""
    scenario = loader.find("37")
    failing = replace(play_seed(loader.find("1"), 1).verdict, outcome=Outcome.FAILED)
    world: Any = None
    monkeypatch.setattr("chaos.search.shrink.play_seed", lambda *_: PlayedSeed(failing, world))
    monkeypatch.setattr("chaos.search.shrink._fewer_faults", lambda _: ())
    monkeypatch.setattr("chaos.search.shrink._halves_of_faults", lambda _: ())
    small = shrink(scenario, failing)
    assert small.load.in_simulator.seconds < scenario.load.in_simulator.seconds
    assert loader.load(write_scenario(small, tmp_path / "x.toml")).load == small.load


def test_regression_file_of_a_revision_is_found_by_name(tmp_path: Path) -> None:
    scenario, mutant = loader.find("6@first"), "epoch_wraps_to_zero"
    scenario = replace(scenario, points=("session-epoch=another@final",))
    failing = replace(play_seed(scenario, 1).verdict, mutant=mutant)
    path, command = keep_as_regression(scenario, failing, tmp_path)
    assert path.name == "06-epoch-wrap-first-passed-1.toml"
    assert command == f"./crucible sim {path} --seed 1 --mutant {mutant}"
    assert loader.find(str(path)).revisions == ("first",)
    assert loader.find(str(path)).points == (), "less of it may reach less"
