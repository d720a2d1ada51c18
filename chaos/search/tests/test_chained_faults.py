"""Faults at decision points, and faults that follow another one."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.search.write_scenario import text_of
from chaos.sim.one_seed import play_seed
from chaos.sim.world import SimWorld
from scenarios import loader
from scenarios.decision_points import outcome_names
from scenarios.model import Fault, Match, Scenario

pytestmark = pytest.mark.simulated

SCENARIO = next(each for each in loader.load_all() if each.name == "swarm-replicated")
PLAIN = replace(SCENARIO, swarm=None, load=replace(SCENARIO.load, seconds=8.0, idle_appends_s=6.0))
KILLED = Fault("killed", "node_killed", on="decision", node="any", after_s=1.0, total=1, optional=True)
AGAIN = replace(KILLED, name="again", node="same", after="killed", after_s=0.0)
PAUSED = Fault(
    "paused", "node_paused", node="same", after="again", at_s=1.5, sim_at_s=1.5, sim_duration_s=0.5, optional=True
)


def _played(*faults: Fault) -> SimWorld:
    return play_seed(replace(PLAIN, faults=faults), 4).world


def test_node_is_killed_where_it_decides() -> None:
    (row,) = [fault for fault in _played(KILLED).faults if fault.name == "killed"]
    assert row.detail.split(" ", 1)[1] in outcome_names()


def test_fault_follows_another_one_at_the_node_that_was_hit() -> None:
    rows = {fault.name: fault for fault in _played(KILLED, AGAIN, PAUSED).faults}
    assert rows["again"].target == rows["paused"].target == rows["killed"].target
    assert rows["again"].at_us >= rows["killed"].until_us, "it is hit again only after its return"
    assert rows["paused"].at_us - rows["again"].at_us >= 1_000_000


def test_fault_does_not_fire_without_the_one_that_it_follows() -> None:
    never = replace(KILLED, match=Match(decision=f"{outcome_names()[0]}-never"))
    assert not _played(never, AGAIN, PAUSED).faults


def test_written_scenario_has_the_same_chain(tmp_path: Path) -> None:
    scenario = replace(PLAIN, faults=(KILLED, AGAIN, PAUSED), needs=("interceptor", "signals", "drafts"))
    path = tmp_path / "chained.toml"
    path.write_text(text_of(scenario))
    assert loader.load(path).faults == scenario.faults


def test_only_an_earlier_fault_can_be_followed(tmp_path: Path) -> None:
    scenario: Scenario = replace(PLAIN, faults=(AGAIN, KILLED), needs=("interceptor", "signals", "drafts"))
    path = tmp_path / "chained.toml"
    path.write_text(text_of(scenario))
    with pytest.raises(loader.ScenarioError, match="'killed' is no earlier fault"):
        loader.load(path)
