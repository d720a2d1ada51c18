"""Tallies of decision points, and the command that lists them."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.search import point_tally
from chaos.search.point_tally import FILE, Tally, listing, newest_tally, open_outcomes
from chaos.sim.decision_counts import watch
from chaos.sim.one_seed import play_seed
from crucible_kafka.commands.scenarios import points
from scenarios import loader
from scenarios.decision_points import declared_points, outcome_names

FIRST, SECOND, *_, LAST = outcome_names()


def tally_of(reached: dict[str, dict[str, int]]) -> Tally:
    tally = Tally(seeds=Counter({"01-a": 2, "02-b": 1}))
    for outcome, counts in reached.items():
        tally.by_scenario[outcome].update(counts)
    return tally


def test_newest_night_with_counts_is_listed(tmp_path: Path) -> None:
    tally = tally_of({FIRST: {"01-a": 3, "02-b": 1}})
    for night in ("2026-01-01", "2026-01-02", "2026-01-03"):
        (tmp_path / night).mkdir()
    tally.append_to(tmp_path / "2026-01-01")
    tally.append_to(tmp_path / "2026-01-02")
    tally.append_to(tmp_path / "2026-01-02")
    with (tmp_path / "2026-01-02" / FILE).open("a") as file:
        file.write('{"seeds": {"torn')
    found, night = newest_tally(tmp_path)
    assert night == "2026-01-02"
    assert found.seeds == {"01-a": 4, "02-b": 2}
    assert found.by_scenario == {FIRST: {"01-a": 6, "02-b": 2}}
    result = CliRunner().invoke(points, ["--nights", str(tmp_path)])
    assert result.exit_code == 0
    assert "counts of the night 2026-01-02" in result.output
    assert f"{FIRST} | 8 times: 01-a, 02-b |" in result.output
    assert f"of {len(declared_points())} points, {len(outcome_names()) - 1} never reached" in result.output
    assert "in 6 seeds of 2 scenarios" in result.output


def test_unreached_outcomes_are_listed_with_excused_ones_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_tally, "reasons_unreached", lambda: {FIRST: "no disk does it", LAST: "in no scenario"})
    tally = tally_of({SECOND: {"01-a": 1}, LAST: {"01-a": 1}})
    *never, excused, summary = listing(tally, only_never=True)
    assert len(never) == len(outcome_names()) - 3
    assert all(" | never | " in line for line in never)
    assert f"{FIRST} | never: no disk does it |" in excused
    assert f"{len(never) + 1} never reached, 1 of these with a reason" in summary
    assert f"{LAST} | 1 times: 01-a, although listed as unreached |" in list(listing(tally, only_never=False))[-2]
    assert open_outcomes(tally) == [name for name in outcome_names() if name not in (FIRST, SECOND, LAST)]


def test_only_the_points_of_a_clause_can_be_listed() -> None:
    named = [point for point in declared_points() if "F-18" in point.clauses]
    *lines, summary = listing(Tally(), only_never=False, clause="F-18")
    assert len(lines) == 2 * len(named)
    assert all("F-18" in line for line in lines)
    assert summary.startswith(f"{2 * len(named)} outcomes of {len(named)} points, ")


def test_line_names_the_scenarios_that_reached_most() -> None:
    tally = tally_of({FIRST: {"01-a": 1, "02-b": 4, "03-c": 3, "04-d": 2}})
    assert "10 times: 02-b, 03-c, 04-d and 1 more |" in next(listing(tally, only_never=False))


def test_outcomes_of_points_are_counted() -> None:
    name = declared_points()[0].name
    tally = tally_of({FIRST: {"01-a": 1}, SECOND: {"01-a": 1}, LAST: {"01-a": 1}})
    assert tally.outcomes_of([name]) == 2
    assert tally.outcomes_of([]) == 0


@pytest.mark.simulated
def test_tally_adds_reached_outcomes_of_run() -> None:
    watch()
    verdict = play_seed(loader.find("1"), 1).verdict
    tally = Tally()
    tally.take(verdict)
    tally.take(verdict)
    reached = verdict.reached.by_outcome()
    assert tally.seeds == {"01-lost-response": 2}
    assert {outcome: counts.total() for outcome, counts in tally.by_scenario.items()} == {
        outcome: 2 * times for outcome, times in reached.items() if times
    }


@pytest.mark.simulated
def test_seeds_are_played_now(tmp_path: Path) -> None:
    result = CliRunner().invoke(points, ["--play", "1", "1", "--nights", str(tmp_path), "--clause", "F-10"])
    assert result.exit_code == 0, result.output
    assert "times: 01-lost-response" in result.output
    assert "in 2 seeds of 2 scenarios" in result.output, "one in each revision"


def test_command_without_counts_explains_how_to_get_them(tmp_path: Path) -> None:
    assert "--play N" in CliRunner().invoke(points, ["--nights", str(tmp_path)]).output
    assert CliRunner().invoke(points, ["1"]).exit_code == 2
