"""A run goes on when a measurement fails, and says so."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import compare
from bench.options import Options
from bench.peers.cluster import System
from bench.peers.errors import PeerError
from bench.results import Figure, Results, Row
from bench.rows.context import Progress


def _measures(results: Results, systems: Sequence[System], folder: Path, _: Options, progress: Progress) -> None:
    progress("measured")
    results.rows.append(Row(f"{len(systems)} in {folder.exists()}", Figure((1.0,), "s")))


def _fails(*_: object) -> None:
    raise PeerError("it hung")


def _has_a_bug(*_: object) -> None:
    raise AssertionError("ours")


def test_other_rows_are_measured_when_one_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MEASURES", {"ladder": _measures, "start": _fails, "memory": _measures})
    lines: list[str] = []
    results = compare.run(lines.append, Options("kafka", ("ladder", "start", "memory")))
    assert [row.work for row in results.rows] == ["2 in True"] * 2
    assert results.missing == {"start": "PeerError: it hung"}
    assert any("start could not be measured" in line for line in lines)


def test_a_bug_of_ours_is_not_taken_for_a_broker_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MEASURES", {"ladder": _has_a_bug})
    with pytest.raises(AssertionError, match="ours"):
        compare.run(lambda _: None, Options(None, ("ladder",)))
