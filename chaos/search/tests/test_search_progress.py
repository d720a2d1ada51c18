"""The progress of a search."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import pytest

from chaos.search import sim_command
from chaos.search.many_seeds import SeedSearch
from chaos.search.sim_command import SearchProgress, SimOptions, report, search_for_seconds, simulate
from chaos.sim.decision_counts import Reached
from chaos.sim.one_seed import PlayedSeed, play_seed
from chaos.sim.verdict import SimVerdict
from reports.ci_results import PlayResult
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Scenario

NO_WORLD: Any = None
"""The world of a play that is judged by its verdict alone."""


@dataclass
class StubTime:
    """A module of clocks, each of which shows the next of its times."""

    monotonic_s: Iterator[float]
    process_s: Iterator[float] = field(default_factory=lambda: repeat(0.0))

    def monotonic(self) -> float:
        return next(self.monotonic_s)

    def process_time(self) -> float:
        return next(self.process_s)


@pytest.mark.thorough
def test_search_shows_its_speed_and_the_first_red_seed_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_command, "PROGRESS_EVERY_S", 5.0)
    passed = play_seed(next(each for each in loader.load_all() if each.name == "01-lost-response"), 1).verdict
    red = replace(passed, outcome=Outcome.CRASHED, reasons=("KeyError: 1",), seed=7)
    monkeypatch.setattr(sim_command, "time", StubTime(monotonic_s=iter([10.0, 20.0, 21.0, 30.0, 40.0, 50.0])))
    progress = SearchProgress("01-lost-response", 6, _started=0.0, _shown=0.0)
    for verdict in (passed, red, red, passed, passed):
        progress.take(verdict)
    assert capsys.readouterr().err.splitlines() == [
        "01-lost-response: 1 of 6 seeds, 0.1/s, no red, 50 s left",
        "first red: KeyError: 1: ./crucible sim 01-lost-response --seed 7",
        "01-lost-response: 2 of 6 seeds, 0.1/s, 1 red, 40 s left",
        "01-lost-response: 4 of 6 seeds, 0.1/s, 2 red, 15 s left",
        "01-lost-response: 5 of 6 seeds, 0.1/s, 2 red, 8 s left",
    ], "a line only after some seconds"
    progress.take(passed)
    assert not capsys.readouterr().err, "the end has a report of its own"


@pytest.mark.thorough
def test_passed_scenario_says_that_it_does_not_list_the_mutant(capsys: pytest.CaptureFixture[str]) -> None:
    one = [each for each in loader.load_all() if each.name == "01-lost-response"]
    assert simulate(one, SimOptions(seed=1, mutant="no_abort")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "01-lost-response does not list the mutant no_abort, so it need not turn red: it is listed by "
    )
    assert "14-controller-killed-in-transaction" in last


def test_interrupted_search_says_what_is_red_so_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [each for each in loader.load_all() if each.name == "01-lost-response"]
    red = replace(SimVerdict("one", 3, "no_abort", Outcome.FAILED, (), (), (), 1, 1, 1, 1), seed=3)

    def interrupted(*arguments: Any) -> SeedSearch:
        arguments[4](red)
        raise KeyboardInterrupt

    monkeypatch.setattr(sim_command, "search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(one, SimOptions(mutant="no_abort"))
    assert f"ended after 1 of 100 seeds, 1 red, first: {red.repeat_command}" in capsys.readouterr().err


def test_report_has_the_speed_in_seeds_events_and_decision_points() -> None:
    verdict = SimVerdict("one", 1, "", Outcome.PASSED, (), (), (), 10, 10, 500, 60_000_000)
    counted = replace(verdict, seed=2, reached=Reached((3, 0, 97, 0)))
    speed = "2.0 seeds/s, 1000 events/s, 500 events a seed"
    assert report(SeedSearch("one", (verdict, verdict), 1.0)) == f"one: PASSED, 2 seeds, {speed}"
    assert report(SeedSearch("one", (verdict, counted), 1.0)) == f"one: PASSED, 2 seeds, {speed}, 100 points/s"


@pytest.mark.thorough
def test_scenarios_are_played_in_turn_until_one_is_red(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios = [each for each in loader.load_all() if each.name in ("01-lost-response", "02-duplicated-request")]
    passed = play_seed(scenarios[0], 1).verdict
    red = replace(passed, outcome=Outcome.CRASHED, reasons=("KeyError: 1",), seed=8)
    played: list[tuple[str, int]] = []

    def noted(scenario: Scenario, seed: int, _: str | None) -> PlayedSeed:
        played.append((scenario.name[:2], seed))
        return PlayedSeed(red if len(played) == 4 else passed, NO_WORLD)

    monkeypatch.setattr(sim_command, "play_seed", noted)
    results: list[PlayResult] = []
    assert search_for_seconds(scenarios, SimOptions(seconds=60.0, seed=7), results.append) == Outcome.CRASHED.value
    assert [(result.name, result.problem) for result in results] == [
        ("01-lost-response", ""),
        ("02-duplicated-request", "CRASHED with seed 8: KeyError: 1"),
    ]
    assert played == [("01", 7), ("02", 7), ("01", 8), ("02", 8)]
    out = capsys.readouterr().out
    assert out.startswith("CRASHED: 4 seeds of 2 scenarios in ")
    assert "repeat with: ./crucible sim 01-lost-response --seed 8" in out


@pytest.mark.thorough
def test_search_ends_with_its_processor_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = next(each for each in loader.load_all() if each.name == "01-lost-response")
    thin = replace(play_seed(scenario, 1).verdict, outcome=Outcome.INVALID, reasons=("no fault fired",))
    clock = StubTime(repeat(0.0), process_s=iter([0.0, 1.0, 6.0, 11.0, 11.0]))
    monkeypatch.setattr(sim_command, "time", clock)
    monkeypatch.setattr(sim_command, "play_seed", lambda *_: PlayedSeed(thin, NO_WORLD))
    results: list[PlayResult] = []
    assert search_for_seconds([scenario], SimOptions(seconds=10.0), results.append) == Outcome.PASSED.value
    assert results == [PlayResult("01-lost-response")]
    assert capsys.readouterr().out.splitlines()[1] == (
        "  2 seeds showed too little to judge, most often: no fault fired (2)"
    )
