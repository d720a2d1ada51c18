"""The stage of a night that searches with guidance."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from campaigns.nights.stages import guided
from campaigns.nights.tests.small_nights import work_of
from chaos.checks.check import Violation
from chaos.search.guided import read_corpus
from chaos.search.point_tally import newest_tally
from chaos.sim.verdict import SimVerdict
from reports.night import read_night
from reports.verdict import Outcome
from scenarios import loader
from scenarios.model import Scenario

pytestmark = pytest.mark.simulated


@pytest.fixture(autouse=True)
def short_swarm(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    swarm = next(each for each in loader.load_all() if each.name == "swarm")
    short = replace(swarm, load=replace(swarm.load, seconds=2.0, sim_seconds=None), revisions=("final",))
    monkeypatch.setattr(loader, "load_all", lambda: (short,))
    return short


def test_corpus_is_handed_on_to_the_next_night(tmp_path: Path) -> None:
    first = work_of(tmp_path / "20260101-000000")
    assert guided.play(first, time.monotonic()) == (Outcome.PASSED, ""), "at least one schedule is played"
    kept, old = read_corpus(first.folder / guided.FOLDER)
    assert kept.entries
    assert not old
    tally, night = newest_tally(tmp_path)
    assert (night, tally.seeds["swarm"]) == (first.folder.name, 1)
    assert first.night.corpus is not None
    assert (first.night.corpus.entries_before, first.night.corpus.entries) == (0, len(kept.entries))
    second = work_of(tmp_path / "20260102-000000", seed=2_000)
    guided.play(second, time.monotonic())
    handed_on, _ = read_corpus(second.folder / guided.FOLDER)
    assert handed_on.entries[: len(kept.entries)] == kept.entries
    grown = read_night(second.folder).corpus
    assert grown is not None
    assert (grown.schedules, grown.entries_before, grown.entries) == (1, len(kept.entries), len(handed_on.entries))
    assert grown.outcomes_before == len(kept.reached)


def test_red_schedule_is_kept_as_a_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def red(scenario: Scenario, seed: int, mutant: str | None = None) -> SimpleNamespace:  # noqa: ARG001
        violation = (Violation("lost-write", 1, "a record is gone"),)
        verdict = SimVerdict(scenario.name, seed, "", Outcome.FAILED, violation, (), (), 1, 1, 1, 1, typed="swarm")
        return SimpleNamespace(verdict=verdict)

    monkeypatch.setattr("chaos.search.guided.play_seed", red)
    lines: list[str] = []
    work = work_of(tmp_path / "20260101-000000")
    work.tell = lines.append
    outcome, why = guided.play(work, time.monotonic() + 100)
    assert outcome is Outcome.FAILED
    assert why.count("./crucible sim swarm --seed ") == guided.MAX_RED_SEEDS
    written = sorted((work.folder / "red").iterdir())
    assert len(written) == guided.MAX_RED_SEEDS
    assert "a record is gone" in written[0].read_text()
    assert loader.load(written[0]).swarm is None, "all of its faults are explicit"
    assert sum("a record is gone" in line for line in lines) == guided.MAX_RED_SEEDS
