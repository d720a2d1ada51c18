"""Figures in pytest-benchmark's JSON: what it lists, its statistics, and all figures in their own units."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark import cli, stats

from bench.load.benchmark_json import _stats, document
from bench.load.command import BenchOptions, store
from bench.load.comparison import Entry, series_of
from bench.load.options import LoadOptions
from bench.load.tests.planted import result


def entries() -> list[Entry]:
    invalid = Entry(result(latency_us=900_000, wanted_permille=1_000, lag_us=200_000, target="kafka"))
    ours = [Entry(result(latency_us=each)) for each in (5_000, 6_000, 7_000)]
    return [*ours, *(Entry(result(latency_us=each, target="kafka")) for each in (2_000, 3_000)), invalid]


@pytest.mark.parametrize("seconds", [[1.0], [1.0, 2.0], [5.0, 1.0, 2.0, 2.5], [1.0, 1.1, 1.2, 1.3, 9.0]])
def test_statistics_are_those_of_pytest_benchmark(seconds: list[float]) -> None:
    theirs: Any = stats.Stats()  # type: ignore[no-untyped-call]
    for second in seconds:
        theirs.update(second)
    ours = _stats(seconds)
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "iqr", "q1", "q3", "ops", "total", "outliers"):
        assert ours[name] == pytest.approx(getattr(theirs, name)), name


def test_times_are_seconds_and_rates_the_seconds_of_a_record() -> None:
    series = {benchmark["name"]: benchmark for benchmark in document(series_of(entries()))["benchmarks"]}
    latency = series["publish latency p99[reference]"]["stats"]
    assert (latency["rounds"], latency["median"]) == (3, pytest.approx(0.006, rel=0.01))
    assert series["acknowledged[reference]"]["stats"]["median"] == pytest.approx(1e-3)
    assert "brokers: memory[reference]" not in series
    assert series["publish latency p99[kafka]"]["stats"]["rounds"] == 2, "the third run is INVALID"


def test_all_figures_are_there_in_their_own_units() -> None:
    ours, theirs = document(series_of(entries()))["crucible"]
    assert (ours["target"], ours["outcome"], ours["reasons"]) == ("reference", "PASSED", [])
    assert "The load generator was the limit" in theirs["reasons"][0]
    figures = {figure["name"]: figure for figure in ours["figures"]}
    assert figures["brokers: memory"] == {
        "name": "brokers: memory",
        "unit": "MiB",
        "less_is_better": True,
        "values": [50.0] * 3,
    }


@pytest.mark.live  # It looks for Mercurial.
def test_pytest_benchmark_lists_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store(entries(), [], BenchOptions([], [], LoadOptions(), out=tmp_path))
    path = tmp_path / "0001-benchmarks.json"
    assert json.loads(path.read_text())["machine_info"]["cpu"]["count"] > 0
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # Plugins are rewritten only before they are imported.
    monkeypatch.setattr(sys, "argv", ["pytest-benchmark", "compare", str(path)])
    cli.main()  # type: ignore[no-untyped-call]
    assert "publish latency p99[kafka]" in capsys.readouterr().out
