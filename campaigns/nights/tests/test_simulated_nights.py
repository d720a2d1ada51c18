"""Whole nights in the simulator: green, red, with a canary that lives, and stopped in their midst."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from campaigns.nights import night as nights
from campaigns.nights.choosing import MAX_RED_SEEDS, Standings
from campaigns.nights.night import kept_nights, plays_of
from campaigns.nights.stages import search
from campaigns.nights.tests.small_nights import search_for, the_night
from chaos.mutants.mutant import applied
from chaos.mutants.registry import by_name
from chaos.search.many_seeds import verdicts
from chaos.search.point_tally import newest_tally
from chaos.sim.one_seed import play_seed
from chaos.sim.verdict import SimVerdict
from reports.night import Canary, FailureRow, PlayRow
from scenarios import loader
from scenarios.decision_points import reasons_unreached
from scenarios.model import Scenario

pytestmark = pytest.mark.simulated

ENDS_WITHIN_S = 20.0
DEFECT, SMALL = "no_epoch_comparison", "02-duplicated-request"
LONG_ENOUGH_S = 90.0
"""These nights end long before by themselves: once a scenario was red often enough, or after a few turns."""


def planted(mutant: str, scenario: str = SMALL) -> Callable[..., Canary]:
    return lambda *_: Canary(mutant=mutant, scenario=scenario)


@pytest.fixture
def few_turns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the search choose only this many more times."""

    def only(count: int) -> None:
        choose = Standings.choose
        left = iter(range(count))

        def chosen(self: Standings, busy: Mapping[str, int], left_s: float) -> tuple[str, str] | None:
            return None if next(left, None) is None else choose(self, busy, left_s)

        monkeypatch.setattr(Standings, "choose", chosen)

    return only


def failures_of(folder: Path) -> list[FailureRow]:
    return [FailureRow(**each) for each in pq.read_table(folder / "failures.parquet").to_pylist()]


def test_night_finds_its_canary_with_seeds_of_its_own_and_is_green(
    tmp_path: Path,
    few_scenarios: Callable[..., None],
    few_turns: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_scenarios(SMALL)
    few_turns(4)
    monkeypatch.setattr(search, "planted", planted(DEFECT))
    assert search_for(tmp_path, LONG_ENOUGH_S, seed=70_000) == 0
    folder, night = the_night(tmp_path)
    assert night.finished
    assert night.canary is not None
    assert (night.canary.found, night.canary.guarantee) == (True, "session-epoch-order")
    plays = plays_of(folder)
    hunted = [play.wall_us for play in plays if play.mutant]
    assert night.canary.spent_us == sum(hunted[: night.canary.seeds_tried])
    tally, _ = newest_tally(tmp_path)
    assert night.points is not None
    assert night.points.reached == len(tally.by_scenario) > 0
    assert night.points.reached + len(night.points.never) + len(reasons_unreached()) >= night.points.outcomes
    assert not set(night.points.never) & set(tally.by_scenario)
    controls = [play for play in plays if not play.mutant]
    assert {control.outcome for control in controls} == {"PASSED"}
    assert {control.scenario for control in controls} <= {SMALL, f"{SMALL}@first"}
    seeds = [control.seed for control in controls if control.scenario == SMALL]
    assert min(seeds) == 1, "each night begins with the seeds that earlier nights saw pass"
    assert min(seed for seed in seeds if seed > 1_000) == 70_000
    assert len({(play.scenario, play.mutant, play.seed) for play in plays}) == len(plays)
    assert sorted(each.suffix for each in folder.iterdir()) == [".json", ".jsonl", *[".parquet"] * 4]


def test_defect_in_a_control_makes_the_night_red_and_is_kept_smaller(
    tmp_path: Path, few_scenarios: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_scenarios(f"{SMALL}@final")
    monkeypatch.setattr(search, "planted", planted("session_id_of_client_id"))
    lines: list[str] = []
    with applied(by_name(DEFECT)):
        assert search_for(tmp_path, LONG_ENOUGH_S, lines.append) == 1
        folder, _ = the_night(tmp_path)
        (failure,) = failures_of(folder)
        assert (failure.scenario, failure.guarantee) == (SMALL, "session-epoch-order")
        small = loader.load(folder / failure.regression)
        before = loader.find(SMALL)
        assert play_seed(small, failure.seed).verdict.broken[0] == failure.guarantee
    assert small.load.in_simulator.seconds < before.load.in_simulator.seconds
    assert len(failure.faults.splitlines()) == len(small.faults)
    assert str(folder / failure.regression) in failure.command
    assert "not played live: there is no Java here" in failure.detail
    assert "no finished night before this one" in failure.detail
    assert failure.first_bad_commit == ""
    assert any("control plays FAILED" in line for line in lines)
    assert lines[-1] == "the night is red"


def test_seed_of_an_open_failure_is_played_again_each_night_until_it_passes(
    tmp_path: Path,
    few_scenarios: Callable[..., None],
    few_turns: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_scenarios(f"{SMALL}@final")
    monkeypatch.setattr(search, "planted", planted("session_id_of_client_id"))
    with applied(by_name(DEFECT)):
        search_for(tmp_path, LONG_ENOUGH_S, seed=70_000)
        (seed,) = {failure.seed for failure in failures_of(the_night(tmp_path)[0])}
        few_turns(0)
        time.sleep(1.0)  # A night is named after its second.
        search_for(tmp_path, LONG_ENOUGH_S, seed=80_000)
    monkeypatch.setattr(search, "planted", planted(DEFECT))  # The other one takes hundreds of seeds on a sound broker.
    for _ in range(2):
        time.sleep(1.0)
        search_for(tmp_path, LONG_ENOUGH_S, seed=90_000)
    first, *later = sorted(each for each in tmp_path.iterdir() if each.is_dir())
    assert seed in {play.seed for play in plays_of(first)}
    controls = [[play for play in plays_of(night) if not play.mutant] for night in later]
    plays = [[(each.seed, each.outcome, each.is_replay) for each in some] for some in controls]
    assert plays == [[(seed, "FAILED", True)], [(seed, "PASSED", True)], []]
    assert not any(play.is_replay for play in plays_of(first))
    nights = kept_nights(tmp_path)
    assert len(nights) == 4
    assert not any(each.is_control for night in nights[1:] for each in night.sums)
    assert not any(failures_of(night) for night in later), "it was looked into in the first night"


def test_night_whose_canary_lives_is_red(
    tmp_path: Path, few_scenarios: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_scenarios(SMALL)
    monkeypatch.setattr(search, "planted", planted("expiry_resets_on_failover"))  # No producer expires there.
    lines: list[str] = []
    assert search_for(tmp_path, 4.0, lines.append) == 1
    night = the_night(tmp_path)[1]
    assert any("the canary lives" in line for line in lines)
    assert night.finished
    assert 4.0 <= night.stages[0].spent_s < 4.0 + ENDS_WITHIN_S


def test_stopped_night_resumes_with_remaining_work(
    tmp_path: Path,
    few_scenarios: Callable[..., None],
    few_turns: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_scenarios(SMALL)
    monkeypatch.setattr(search, "planted", planted(DEFECT))

    def stop(line: str) -> None:
        if "the canary" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_for(tmp_path, LONG_ENOUGH_S, stop)
    folder, stopped = the_night(tmp_path)
    before = plays_of(folder)
    assert not stopped.finished
    assert 0 < stopped.stages[0].spent_s < LONG_ENOUGH_S
    assert before
    assert nights.is_left(folder)
    few_turns(2)
    lines: list[str] = []
    assert search_for(tmp_path, LONG_ENOUGH_S, lines.append) == 0  # The same command.
    assert f"{(LONG_ENOUGH_S - stopped.stages[0].spent_s) / 60:.1f} min are left" in lines[0]
    same, night = the_night(tmp_path)
    after = plays_of(same)
    assert same == folder
    assert night.finished
    assert night.stages[0].spent_s > stopped.stages[0].spent_s
    assert night.canary == stopped.canary
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert len({(play.scenario, play.mutant, play.seed) for play in after}) == len(after)


def test_child_that_dies_is_a_crash_of_the_seed_that_it_played(
    tmp_path: Path, few_scenarios: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_scenarios(f"{SMALL}@final")
    monkeypatch.setattr(search, "planted", planted(DEFECT))
    monkeypatch.setattr(search, "verdicts", _die_without_mutant())
    assert search_for(tmp_path, LONG_ENOUGH_S, seed=70_000) == 4
    plays: list[PlayRow] = plays_of(the_night(tmp_path)[0])
    crashed = [play for play in plays if play.outcome == "CRASHED"]
    assert crashed[0].seed == 1
    assert len(crashed) >= MAX_RED_SEEDS
    assert crashed[0].detail == "its process ended with exit code 3"


def _die_without_mutant() -> Callable[..., Iterator[SimVerdict]]:
    def played(scenario: Scenario, seeds: Sequence[int], processes: int, mutant: str | None) -> Iterator[SimVerdict]:
        return verdicts(scenario, seeds, processes, mutant) if mutant else os._exit(3)

    return played
