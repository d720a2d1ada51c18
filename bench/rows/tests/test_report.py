"""Results and their page: ratios pair by pair, stored with machine and commit, every row and curve, misses marked."""

import json
import re
from pathlib import Path

import pytest

from bench.rows.report import growth, ratios, write
from bench.rows.results import Curve, Figure, ResultRow, Results, Series, better_higher, better_lower, table


def _results() -> Results:
    results = Results("kafka", settings={"node.id": "1"})
    results.beside("fast <work>", (Figure((1.0, 2.0), "s"), Figure((9.0, 8.0), "s")), True, at_least=2)
    results.beside("slow work", (Figure((5.0,), "x/s"), Figure((10.0,), "x/s")), False, at_least=1)
    results.rows.append(ResultRow("alone", Figure((3.0,), "MiB")))
    points = ((100.0, Figure((1.0, 2.0), "ms")), (10_000.0, Figure((3.0, 4.0), "ms")))
    results.curves.append(Curve("Growth", "partitions", "time", (Series("ours", points), Series("theirs", points))))
    return results


def test_ratios_follow_direction_of_metric() -> None:
    fast, slow, alone = _results().rows
    assert fast.ratio == Figure((9.0, 4.0), "x")
    assert (fast.reached, slow.reached, alone.reached) == (True, False, None)
    assert slow.ratio == Figure((0.5,), "x")


@pytest.mark.thorough
def test_page_holds_the_table_and_the_pictures(tmp_path: Path) -> None:
    page = write(_results(), tmp_path / "0001_now.json")
    text = page.read_text()
    assert page == tmp_path / "0001_now.html"
    assert "fast &lt;work&gt;" in text
    assert "<work>" not in text
    assert re.findall(r'<tr class="missed"><td>([^<]*)', text) == ["slow work"]
    assert text.count("<svg") == 2
    assert "node.id=1" in text


def test_missing_measurements_are_listed_first(tmp_path: Path) -> None:
    results = _results()
    results.missing["rest"] = "PeerError: no response"
    text = write(results, tmp_path / "0001_now.json").read_text()
    assert text.index("rest could not be measured") < text.index("<table>")


@pytest.mark.thorough
def test_same_results_give_the_same_pictures() -> None:
    assert ratios(_results().rows) == ratios(_results().rows)
    assert growth(_results().curves[0]) == growth(_results().curves[0])


def test_rows_without_ratios_give_no_picture_of_ratios() -> None:
    assert ratios([ResultRow("alone", Figure((3.0,), "MiB"))]) is None


def test_ratios_are_computed_pair_by_pair() -> None:
    reference, peer = Figure((1.0, 2.0, 4.0), "ms"), Figure((2.0, 6.0, 4.0), "ms")
    assert better_lower(reference, peer).values == (2.0, 3.0, 1.0)
    assert better_higher(reference, peer).values == (0.5, 2.0 / 6.0, 1.0)


def test_figure_shows_its_median_and_its_spread() -> None:
    assert str(Figure((3.0, 1.0, 2.0), "ms")) == "2 (1-3) ms"
    assert str(Figure((1234.5,), "records/s")) == "1,234 records/s"


def test_missed_goal_shows_in_the_table() -> None:
    rows = [ResultRow("start", Figure((0.7,), "s"), goal="within 0.6 s", reached=False)]
    assert table(rows) == [("start", "0.7 s", "", "", "within 0.6 s: missed")]


def test_stored_results_are_numbered_and_carry_machine_and_commit(tmp_path: Path) -> None:
    results = Results("kafka", [ResultRow("start", Figure((0.5,), "s"), Figure((2.0,), "s"), Figure((4.0,), "x"))])
    first, second = results.store(tmp_path), results.store(tmp_path)
    assert (first.name[:4], second.name[:4]) == ("0001", "0002")
    stored = json.loads(first.read_text())
    assert stored["rows"][0]["ratio"] == {"values": [4.0], "unit": "x"}
    assert stored["machine"]["cores"] > 0
    assert stored["commit"]
    assert stored["peer"] == "kafka"
