"""Tallies of decision points, and the command that lists them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.search.point_tally import FILE, Tally, newest_tally
from chaos.search.run_sim import run
from chaos.sim.decision_counts import watch
from crucible_kafka.commands.scenarios import points
from scenarios import loader
from scenarios.decision_points import declared_points

pytestmark = pytest.mark.simulated


def _tally() -> Tally:
    watch()
    tally = Tally()
    tally.take(run(next(each for each in loader.load_all() if each.name == "01-lost-response"), 1))
    return tally


def test_the_newest_night_with_counts_is_listed(tmp_path: Path) -> None:
    tally = _tally()
    for night in ("2026-01-01", "2026-01-02", "2026-01-03"):
        (tmp_path / night).mkdir()
    tally.append_to(tmp_path / "2026-01-01")
    tally.append_to(tmp_path / "2026-01-02")
    tally.append_to(tmp_path / "2026-01-02")
    with (tmp_path / "2026-01-02" / FILE).open("a") as file:
        file.write('{"seeds": {"torn')
    found, night = newest_tally(tmp_path)
    assert (night, found.seeds["01-lost-response"]) == ("2026-01-02", 2)
    assert all(found.by_scenario[each].total() == 2 * tally.by_scenario[each].total() for each in tally.by_scenario)
    result = CliRunner().invoke(points, ["--nights", str(tmp_path)])
    assert result.exit_code == 0
    assert "counts of the night 2026-01-02" in result.output
    assert f"of {len(declared_points())} points" in result.output


def test_only_what_was_never_reached_can_be_listed(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    tally = _tally()
    tally.append_to(tmp_path / "night")
    lines = CliRunner().invoke(points, ["--nights", str(tmp_path), "--never"]).output.splitlines()
    assert not [each for each in lines if "times:" in each]
    assert len(lines) == 2 + 2 * len(declared_points()) - len(tally.by_scenario)


def test_seeds_are_played_now(tmp_path: Path) -> None:
    result = CliRunner().invoke(points, ["--play", "1", "1", "--nights", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "01-lost-response" in result.output


def test_without_counts_the_command_says_how_to_get_them(tmp_path: Path) -> None:
    assert "--play N" in CliRunner().invoke(points, ["--nights", str(tmp_path)]).output
    assert CliRunner().invoke(points, ["1"]).exit_code == 2
