"""``crucible sim --at EVENT --show NODE``: the state of a node after one event, the same each time."""

import pytest
from click.testing import CliRunner

from chaos.search.show_node import node_lines
from chaos.sim.one_seed import play_seed
from crucible_kafka.commands.sim import sim
from scenarios import loader

SCENARIO = "plain-load"


@pytest.mark.simulated
def test_run_ends_after_the_event_and_shows_logs_and_sessions() -> None:
    scenario = loader.find(SCENARIO)
    _, world = play_seed(scenario, 1, until_event=150)
    assert world.events == 150
    first, metadata, *rest = node_lines(world, 0)
    assert first.startswith("node 0 at ")
    assert first.endswith("after event 150: incarnation 0, ready")
    assert metadata.endswith("active controller")
    assert any(line.startswith("hot-0: leads in epoch 0, log 0 to ") for line in rest)
    assert any(line.startswith("session ") and "partitions" in line for line in rest)
    _, again = play_seed(scenario, 1, until_event=150)
    assert list(node_lines(again, 0)) == [first, metadata, *rest]


@pytest.mark.simulated
def test_event_beyond_the_end_and_a_missing_node() -> None:
    runner = CliRunner()
    result = runner.invoke(sim, [SCENARIO, "--seed", "1", "--at", "10000000", "--show", "0"])
    assert result.exit_code == 0
    assert result.output.startswith("the run ended after event ")
    result = runner.invoke(sim, [SCENARIO, "--seed", "1", "--at", "5", "--show", "7"])
    assert result.exit_code == 2
    assert "there is no node 7" in result.output


@pytest.mark.parametrize("words", [("--at", "5"), ("--show", "0", "--seed", "1"), ("--at", "5", "--show", "0")])
def test_dependent_options_are_checked_together(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(sim, [SCENARIO, *words]).exit_code == 2
