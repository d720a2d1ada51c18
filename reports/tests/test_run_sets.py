"""Two sets of runs compared: figures equal a plain computation, a planted shift is seen, alike sets show nothing."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest

from reports.manifest import Manifest, ManifestError, write_manifest
from reports.run_sets import (
    FigureCompared,
    RunCompared,
    SetsCompared,
    check_comparable,
    compare_sets,
    compared_units,
    find_runs,
)
from reports.tests.history import History, Shape, int_of
from reports.tests.played import generate

SLOWER = 1.3
RUNS = 4
SHAPE = Shape(seconds=8)
LONG = Shape(seconds=30, faults=())
FETCH_P50 = ("quiet", "fetch", "p50")


def _slower(history: History) -> History:
    for row in history.tables["latency"]:
        row["low_us"], row["high_us"] = (int(int_of(row, name) * SLOWER) for name in ("low_us", "high_us"))
    return history


def _by_name(comparison: SetsCompared) -> dict[tuple[str, str, str], FigureCompared]:
    return {(figure.phase, figure.operation, figure.figure): figure for figure in comparison.figures}


@pytest.fixture(scope="module")
def compared(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[SetsCompared, Path, list[History]]:
    root = tmp_path_factory.mktemp("sets")
    histories = [generate(seed, SHAPE) for seed in range(RUNS)]
    for number, history in enumerate(histories):
        history.write(root / "old" / f"run-{number}", world="live", commit="before", title="<b>")
        slower = _slower(generate(100 + number, SHAPE))
        slower.write(root / "new" / f"run-{number}", world="live", commit="after<")
    comparison, page = compare_sets(find_runs([root / "old"]), find_runs([root / "new"]), root / "out", spark)
    return comparison, page, histories


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_figures_of_runs_equal_a_plain_computation(compared: tuple[SetsCompared, Path, list[History]]) -> None:
    comparison, _, histories = compared
    assert (comparison.drawn, comparison.units) == ("runs", (RUNS, RUNS))
    for phase in ("quiet", "faulty"):
        figures = _by_name(comparison)
        medians = [_plain_quantile(_values(history, phase), 0.5) for history in histories]
        assert figures[phase, "fetch", "p50"].ratio.old == pytest.approx(geometric_mean(medians))
        rates = [_plain_rate(history, phase) for history in histories]
        assert figures[phase, "fetch", "per second"].ratio.old == pytest.approx(geometric_mean(rates))


def _seconds(history: History, phase: str) -> set[int]:
    """The seconds of the load, without its first and last one. One more second after a fault still counts to it."""
    load = [int_of(row, "second") for row in history.rows("latency", operation="fetch")]
    faulty = {
        second
        for fault in history.tables["faults"]
        if not str(fault["kind"]).startswith("preset")
        for second in range(int_of(fault, "at_us") // 10**6, int_of(fault, "until_us") // 10**6 + 2)
    }
    return {number for number in range(min(load) + 1, max(load)) if (number in faulty) == (phase == "faulty")}


def _values(history: History, phase: str) -> Counter[int]:
    found = Counter[int]()
    for row in history.rows("latency", operation="fetch", measure="response"):
        if int_of(row, "second") in _seconds(history, phase):
            found[int_of(row, "high_us") - 1] += int_of(row, "count")
    return found


def _plain_quantile(values: Counter[int], share: float) -> int:
    return sorted(values.elements())[ceil(values.total() * share) - 1]


def _plain_rate(history: History, phase: str) -> float:
    seconds = _seconds(history, phase)
    ended = [int_of(row, "complete_us") // 10**6 for row in history.rows("operations", f="fetch", type="ok")]
    return sum(each in seconds for each in ended) / len(seconds)


@pytest.mark.spark
def test_planted_shift_is_worse_in_latency_and_shows_nothing_in_the_rate(
    compared: tuple[SetsCompared, Path, list[History]],
) -> None:
    figures = _by_name(compared[0])
    slower = figures[FETCH_P50]
    assert slower.word == "worse"
    assert slower.ratio.low < SLOWER < slower.ratio.high
    assert figures["quiet", "fetch", "per second"].word == "no difference shown"
    assert "worse" in compared[0].summary


@pytest.mark.spark
def test_page_is_self_contained_and_lists_other_differences(
    compared: tuple[SetsCompared, Path, list[History]],
) -> None:
    comparison, page, _ = compared
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=[\"']https?:|url\(https?:|@import", text.replace("http://www.w3.org", ""))
    for shown in ("after&lt;", "no difference shown", comparison.summary, "The units are runs (4 and 4)", "least seen"):
        assert shown in text, shown
    assert "after<" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    numbers = json.loads((page.parent / "compared.json").read_text(encoding="utf-8"))
    assert len(numbers["figures"]) == len(comparison.figures)
    assert numbers["summary"] == comparison.summary


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_run_alone_is_cut_into_blocks(spark: Any, tmp_path: Path) -> None:
    folders = [generate(seed, LONG).write(tmp_path / f"run-{seed}", world="sim") for seed in (1, 2)]
    comparison, page = compare_sets(folders[:1], folders[1:], tmp_path / "out", spark)
    assert (comparison.drawn, comparison.units) == ("blocks", (9, 9))
    assert comparison.summary == f"No difference shown in {len(comparison.figures)} figures."
    assert FETCH_P50 in _by_name(comparison)
    text = page.read_text(encoding="utf-8")
    assert "Two runs of the same thing may differ by more." in text
    assert "virtual time" in text


MANIFEST = Manifest(scenario="s", seed=1, world="live", repeat_command="")
RUN = RunCompared(Path("run"), MANIFEST, {})


def _compared(old: Sequence[float], new: Sequence[float], operations: Sequence[int] = ()) -> SetsCompared:
    """Run with one operation and these latencies. ``operations`` counts how many ended in each run's 10 seconds."""
    values = [*old, *new]
    counts = operations or [1_000] * len(values)
    latencies = [
        {"run": run, "phase": "quiet", "block": 0, "operation": "fetch", "count": 1_000, "p50_us": value}
        | dict.fromkeys(("p90_us", "p99_us", "p999_us"), value)
        for run, value in enumerate(values)
    ]
    rates = [
        {"run": run, "phase": "quiet", "block": 0, "operation": "fetch", "operations": count, "seconds": 10}
        for run, count in enumerate(counts)
    ]
    return compared_units([RUN] * len(old), [RUN] * len(new), "runs", latencies, rates)


@pytest.mark.thorough
def test_alike_runs_show_nothing_but_at_the_stated_rate_and_a_tenth_is_seen_in_enough_runs() -> None:
    random = np.random.default_rng(3)
    false, seen, draws = 0, 0, 60
    for _ in range(draws):
        old, new = (1_000 * np.exp(random.normal(size=8) * 0.04) for _ in range(2))
        false += any(figure.word != "no difference shown" for figure in _compared(old.tolist(), new.tolist()).figures)
        seen += _by_name(_compared(old.tolist(), (new * 1.1).tolist()))[FETCH_P50].word == "worse"
    assert false <= 8, "5 % are 3 of 60; 9 or more come once in 400 times"
    assert seen > 0.85 * draws


def test_quantiles_with_few_values_beyond_are_omitted_and_reported() -> None:
    comparison = _compared([100] * 4, [100] * 4)
    assert [figure.figure for figure in comparison.figures] == ["p50", "p90", "p99", "per second"]
    assert comparison.left_out == ("fetch p99.9, because not every unit has 5 values beyond",)


def test_side_that_stalled_is_worse_in_its_rate_and_rare_operations_have_none() -> None:
    varying = [1_000, 1_010, 990, 1_005]
    stalled = _by_name(_compared([100] * 4, [100] * 4, [*varying, 0, 0, 1, 0]))
    assert stalled["quiet", "fetch", "per second"].word == "worse"
    rare = _by_name(_compared([100] * 4, [100] * 4, [5] * 8))
    assert ("quiet", "fetch", "per second") not in rare


def test_two_units_a_side_compare_nothing_and_say_so() -> None:
    comparison = _compared([100] * 2, [100] * 4)
    assert comparison.figures == ()
    assert comparison.summary == "Nothing could be compared."
    assert comparison.left_out == ("a side has fewer than 3 units: play longer, or more runs",)


def test_runs_are_found_one_level_below_and_a_folder_without_any_is_reported(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "manifest.json").write_text("{}", encoding="utf-8")
    assert find_runs([tmp_path / "set"]) == [tmp_path / "set" / "a", tmp_path / "set" / "b"]
    assert find_runs([tmp_path / "set" / "b"]) == [tmp_path / "set" / "b"]
    with pytest.raises(ManifestError, match="is neither a run nor a folder of runs"):
        find_runs([tmp_path])


def test_runs_of_different_scenarios_are_not_compared(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, Manifest(scenario=name, seed=1, world="live", repeat_command="x"))
        runs.append(tmp_path / name)
    check_comparable(runs, runs[:1])
    with pytest.raises(ManifestError, match="first runs are of a, the second of b: only runs of the same scenario"):
        check_comparable(runs[:1], runs[1:])
