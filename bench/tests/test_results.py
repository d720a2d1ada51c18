"""Results: ratios taken pair by pair, stored with machine and commit, numbered."""

import json
from pathlib import Path

from bench.results import Figure, ResultRow, Results, better_higher, better_lower, table


def test_ratios_are_taken_pair_by_pair() -> None:
    reference, peer = Figure((1.0, 2.0, 4.0), "ms"), Figure((2.0, 6.0, 4.0), "ms")
    assert better_lower(reference, peer).values == (2.0, 3.0, 1.0)
    assert better_higher(reference, peer).values == (0.5, 2.0 / 6.0, 1.0)


def test_a_figure_shows_its_median_and_its_spread() -> None:
    assert str(Figure((3.0, 1.0, 2.0), "ms")) == "2 (1-3) ms"
    assert str(Figure((1234.5,), "records/s")) == "1,234 records/s"


def test_a_missed_goal_shows_in_the_table() -> None:
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
