"""The progress of a search."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from chaos.search import sim_command
from chaos.search.many_seeds import Search
from chaos.search.run_sim import run
from chaos.search.sim_command import Progress, report
from chaos.sim.decision_counts import Reached
from chaos.sim.verdict import SimVerdict
from reports.verdict import Outcome
from scenarios import loader


@pytest.mark.thorough
def test_a_search_shows_its_speed_and_the_first_red_seed_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_command, "PROGRESS_EVERY_S", 5.0)
    passed = run(next(each for each in loader.load_all() if each.name == "01-lost-response"), 1)
    red = replace(passed, outcome=Outcome.CRASHED, reasons=("KeyError: 1",), seed=7)
    times = iter([10.0, 20.0, 21.0, 30.0, 40.0, 50.0])
    monkeypatch.setattr(sim_command, "time", SimpleNamespace(monotonic=lambda: next(times)))
    progress = Progress("01-lost-response", 6, _started=0.0, _shown=0.0)
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


def test_a_report_has_the_speed_in_seeds_events_and_decision_points() -> None:
    verdict = SimVerdict("one", 1, "", Outcome.PASSED, (), (), (), 10, 10, 500, 60_000_000)
    counted = replace(verdict, seed=2, reached=Reached((3, 0, 97, 0)))
    speed = "2.0 seeds/s, 1000 events/s, 500 events a seed"
    assert report(Search("one", (verdict, verdict), 1.0)) == f"one: PASSED, 2 seeds, {speed}"
    assert report(Search("one", (verdict, counted), 1.0)) == f"one: PASSED, 2 seeds, {speed}, 100 points/s"
