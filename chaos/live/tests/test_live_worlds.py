"""Each mutant was shown live, or is named with the reason why no live world shows it, or is said to be due."""

import pytest
from click.testing import CliRunner

from chaos.live.errors import SetupError
from chaos.live.runner import check_playable
from chaos.mutants import all_mutants
from chaos.mutants.registry import NOT_SEEN, SIMULATED_ONLY, live_standing
from crucible_kafka import cli
from reports.guarantees import GUARANTEES
from scenarios import ledger, loader
from scenarios.model import Scenario

NAMES = {mutant.name for mutant in all_mutants()}
KEPT = {search.mutant: search for search in ledger.searches_in(ledger.KEPT["live"])}


def is_playable(scenario: Scenario) -> bool:
    try:
        check_playable(scenario)
    except SetupError:
        return False
    return True


def test_mutant_that_no_live_scenario_has_is_named_with_its_reason() -> None:
    live = {mutant for each in loader.load_all() if is_playable(each) for mutant in each.mutants}
    assert set(SIMULATED_ONLY) >= NAMES - live
    assert not set(SIMULATED_ONLY) - NAMES


def test_mutant_that_live_plays_did_not_show_is_named_with_its_reason() -> None:
    assert {each.mutant for each in KEPT.values() if not each.guarantees} == set(NOT_SEEN)
    assert not set(SIMULATED_ONLY) & set(NOT_SEEN)


def test_mutant_killed_live_is_not_listed_as_simulated_only() -> None:
    assert not set(SIMULATED_ONLY) & set(KEPT)


@pytest.mark.thorough
def test_live_kill_names_scenario_and_commit_to_repeat_it() -> None:
    assert KEPT
    for each in KEPT.values():
        assert each.world == "live"
        assert each.mutant in loader.find(each.scenario).mutants
        assert each.commit
        assert set(each.guarantees) <= set(GUARANTEES)


@pytest.mark.thorough
def test_command_lists_live_result_of_each_mutant() -> None:
    shown = CliRunner().invoke(cli.main, ["mutants"]).output.splitlines()
    last = ledger.last()
    for name in NAMES:
        at = next(number for number, line in enumerate(shown) if line.startswith(f"{name} | "))
        word = live_standing(name, last.get((name, "live")))
        simulated = last.get((name, "sim"), "sim: not played yet")
        assert [shown[at + 1].removesuffix(" (stale)"), shown[at + 2]] == [f"        {simulated}", f"        {word}"]
    assert live_standing("no_rotation", None) == "live: not shown yet"
