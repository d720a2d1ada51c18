"""The progress of a search."""

from dataclasses import replace

import pytest

from chaos.search import sim_command
from chaos.search.run_sim import run
from chaos.search.sim_command import Progress
from reports.verdict import Outcome
from scenarios import loader


@pytest.mark.thorough
def test_a_search_shows_its_speed_and_the_first_red_seed_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_command, "PROGRESS_EVERY_S", 0.0)
    passed = run(next(each for each in loader.load_all() if each.name == "01-lost-response"), 1)
    red = replace(passed, outcome=Outcome.CRASHED, reasons=("KeyError: 1",), seed=7)
    progress = Progress("01-lost-response", 4)
    for verdict in (passed, red, red, passed):
        progress.take(verdict)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("01-lost-response: 1 of 4 seeds, ")
    assert lines[0].endswith("no red, 0 s left")
    assert lines[1] == "first red: KeyError: 1: ./crucible sim 01-lost-response --seed 7"
    assert "2 of 4 seeds" in lines[2]
    assert "1 red" in lines[2]
    assert "2 red" in lines[3]
    assert len(lines) == 4, "the end has a report of its own"
