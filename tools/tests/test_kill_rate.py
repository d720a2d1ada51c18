"""The measurement of kill rates."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from chaos.mutants.registry import by_name
from chaos.search.guided import Corpus, Recipe
from chaos.sim.verdict import SimVerdict
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Scenario
from tools import kill_rate
from tools.kill_rate import chosen_mutants, guided_plays, lost_power, main, random_plays, report, tried

MUTANT = "no_epoch_comparison"
CONCERNED, OTHER, SWARM = (loader.find(each) for each in ("02-duplicated-request", "14", "swarm"))

ROW = {"mutant": "one", "file": "a.b", "killed": "lost-write", "seconds": 2.0, "called": 3}


def test_report_has_rate_and_surviving_mutants() -> None:
    slow = {**ROW, "mutant": "slow", "file": "a.c", "seconds": 9.0}
    rows = [ROW, {**ROW, "mutant": "two", "killed": ""}, {**ROW, "mutant": "three", "killed": "", "called": 0}]
    rows += [slow, {**slow, "mutant": "slower", "seconds": 30.0}]
    text = report(rows, 60)
    assert "a.b" in text
    assert "1 of 3" in text
    assert "lived: two, three (never called)" in text
    assert "a.c                                                2 of 2" in text
    assert "3 of 5 mutants killed within 60 s of processor time each (60 %), half of them within 9 s" in text


@pytest.mark.parametrize("arguments", [[], ["--random", "--corpus", "."], ["--random", "--mutants", "no_such"]])
def test_unmeasurable_request_is_rejected(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_played_mutants_are_not_repeated(tmp_path: Path) -> None:
    out = tmp_path / "kills.jsonl"
    out.write_text(json.dumps({**ROW, "mutant": "isr_of_response_applied_at_once"}) + "\n")
    arguments = ["--random", "--mutants", "isr_of_response_applied_at_once", "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "1 of 1 mutants killed" in result.output
    assert len(out.read_text().splitlines()) == 1


def test_result_of_a_changed_tree_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(["a", "a", "b"])
    monkeypatch.setattr(kill_rate, "commit", lambda: next(commits))
    rows = [{**ROW, "mutant": each} for each in ("no_epoch_comparison", "bumps_on_response")]
    monkeypatch.setattr(kill_rate, "in_children", lambda *_: rows)
    monkeypatch.setattr(kill_rate, "chosen_mutants", lambda *_: [by_name(MUTANT)])
    out = tmp_path / "kills.jsonl"
    ended = CliRunner().invoke(main, ["--random", "--out", str(out)])
    assert ended.exit_code == 1
    assert "the tree has changed from a to b" in ended.output
    assert [json.loads(line)["mutant"] for line in out.read_text().splitlines()] == ["no_epoch_comparison"]


def test_second_set_can_be_chosen_alone() -> None:
    """The first set was played when it was written, so its rate is another one."""
    both, second = chosen_mutants("", True, False), chosen_mutants("", False, True)
    assert set(second) < set(both)
    assert all(".unplanned.second." in each.replacement.__module__ for each in second)
    assert not any(".unplanned.second." in each.replacement.__module__ for each in set(both) - set(second))


def test_random_seeds_are_those_of_scenarios_of_the_clause_and_of_swarms_in_turn() -> None:
    plays = random_plays(by_name(MUTANT), [CONCERNED, OTHER, SWARM])
    assert [(play.scenario, play.seed) for play in islice(plays, 4)] == [
        ("02-duplicated-request", 1),
        ("swarm", 1),
        ("02-duplicated-request", 2),
        ("swarm", 2),
    ]


def test_recipes_near_mutated_file_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    near = [Recipe("swarm", 3, (1,)), Recipe("swarm", 4)]
    paths: list[str] = []

    def of_file(_: Corpus, path: str) -> list[Recipe]:
        paths.append(path)
        return near

    monkeypatch.setattr(kill_rate, "recipes_near", of_file)
    *first, third, fourth = islice(guided_plays(by_name(MUTANT), Corpus(), [SWARM]), 4)
    assert first == near
    assert paths == ["reference_broker/sessions/fetch_session_cache.py"]
    for change in (third, fourth):
        assert any((change.seed, change.changes[:-1]) == (each.seed, each.changes) and change.changes for each in near)


def verdicts_of(*outcomes: Outcome) -> Callable[[Scenario, int, str], SimpleNamespace]:
    left = iter(outcomes)

    def play_seed(scenario: Scenario, seed: int, mutant: str) -> SimpleNamespace:
        verdict = SimVerdict(scenario.name, seed, mutant, next(left), (), ("KeyError: 1",), (), 1, 1, 1, 1)
        return SimpleNamespace(verdict=replace(verdict, mutant_calls=seed - 1, typed=scenario.name))

    return play_seed


@pytest.mark.thorough
def test_mutant_is_played_until_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_rate, "play_seed", verdicts_of(Outcome.PASSED, Outcome.INVALID, Outcome.FAILED))
    row = tried(None, [CONCERNED], 60.0, MUTANT)
    assert (row["killed"], row["plays"], row["called"]) == ("FAILED", 3, 2)
    assert row["outcomes"] == {"PASSED": 1, "INVALID": 1, "FAILED": 1}
    assert row["command"].startswith("./crucible sim 02-duplicated-request --seed 3")


def test_mutant_is_not_played_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_rate, "play_seed", verdicts_of(*[Outcome.PASSED] * 9))
    times = iter([0.0, 0.0, 20.0, 61.0, 61.0])
    monkeypatch.setattr(kill_rate, "time", SimpleNamespace(process_time=lambda: next(times)))
    row = tried(None, [CONCERNED], 60.0, MUTANT)
    assert (row["killed"], row["plays"], row["seconds"]) == ("", 2, 61.0)


@pytest.mark.thorough
def test_power_losses_are_played_in_the_kinds_that_call_the_mutant() -> None:
    assert not [*lost_power(by_name(MUTANT))]
    kind, found = next(lost_power(by_name("synced_offset_survives_truncation")))
    assert kind == "log"
    assert found.violation is not None
    row = tried(None, [], 60.0, "synced_offset_survives_truncation")
    assert row["killed"] == "power-losses log"
    assert row["command"].endswith("--mutant synced_offset_survives_truncation")
