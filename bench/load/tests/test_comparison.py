"""Repeated runs of several targets: order, medians, ratios with their intervals, and the page."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bench.load import command
from bench.load.command import BenchOptions, exit_code, play, remarks, store, table_of
from bench.load.comparison import COMPARED, FIGURES, Column, Entry, Estimate, compared, curves_of, sentences, series_of
from bench.load.ledger import Findings
from bench.load.options import LoadError, LoadOptions
from bench.load.page import has_curve, write
from bench.load.results import LoadResult
from bench.load.search import sustained_rate
from bench.load.target import LoadTarget
from bench.load.tests.planted import result
from reports.statistics.confidence import median_interval


def runs(target: str, *latencies_ms: float, rate: float = 1_000, workload: str = "w") -> list[Entry]:
    return [Entry(result(rate, latency_us=int(each * 1000), target=target, workload=workload)) for each in latencies_ms]


def columns(*every: Sequence[Entry]) -> dict[str, Column]:
    return {each.series.name: each for each in compared(series_of([entry for entries in every for entry in entries]))}


def estimate(column: Column, name: str) -> Estimate:
    return next(each for each in column.estimates if each.figure.name == name)


def limits(*rates: float) -> list[Entry]:
    """Searches on brokers that sustain these rates."""
    found = []
    for limit in rates:
        search = sustained_rate(partial(_limited, limit), 1_000)
        found.append(Entry(search.steps[-1].result, search))
    return found


def _limited(limit: float, rate: float) -> LoadResult:
    return result(rate, acknowledged=min(rate, limit))


def test_targets_take_turns_in_alternating_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextmanager
    def started(text: str, *_: object) -> Iterator[LoadTarget]:
        order.append(text)
        yield LoadTarget(text, [], None)

    monkeypatch.setattr(command, "started", started)
    monkeypatch.setattr(command, "check_call", lambda *_: None)
    monkeypatch.setattr(command, "run", lambda _, target, *__: result(target=target.name))
    workload = tmp_path / "w.yaml"
    workload.write_text("{messageSize: 200, producerRate: 500}")
    options = BenchOptions([workload], ["a", "b", "c"], LoadOptions(), repeat=3, out=tmp_path)
    entries = play(options, lambda _: None)
    assert order == [*"abc", *"cba", *"abc"]
    assert [each.name for each in series_of(entries)] == ["a", "b", "c"]
    assert {len(each.entries) for each in series_of(entries)} == {3}


def test_what_was_measured_stays_when_a_later_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    @contextmanager
    def started(text: str, *_: object) -> Iterator[LoadTarget]:
        yield LoadTarget(text, [], None)

    def run(_: object, target: LoadTarget, load: LoadOptions, *__: object) -> LoadResult:
        calls.append(load.records_per_s or 0.0)
        if len(calls) in (1, 4):
            raise LoadError("a node ended")
        return result(load.records_per_s or 0.0, target=target.name)

    monkeypatch.setattr(command, "started", started)
    monkeypatch.setattr(command, "check_call", lambda *_: None)
    monkeypatch.setattr(command, "run", run)
    workload = tmp_path / "w.yaml"
    workload.write_text("{messageSize: 200, producerRate: 500}")
    options = BenchOptions([workload], ["a"], LoadOptions(), rates=(1_000, 2_000), repeat=3, out=tmp_path)
    failures: list[str] = []
    with pytest.raises(LoadError, match="a node ended"):  # Nothing was measured before.
        play(options, lambda _: None, failures.append)
    entries = play(options, lambda _: None, failures.append)
    assert calls[1:] == [1_000, 2_000, 1_000, 1_000, 2_000]
    assert [entry.result.wanted_records_per_s for entry in entries] == [1_000, 2_000, 1_000, 2_000]
    assert failures == ["a node ended"]


def test_figure_has_its_median_and_with_five_runs_an_interval() -> None:
    (few,) = columns(runs("a", 5, 6, 7, 8)).values()
    (many,) = columns(runs("a", 5, 6, 7, 8, 100)).values()
    assert estimate(few, "publish latency p99").text == "6.5 (4 runs: 5.0–8.0)"
    interval = estimate(many, "publish latency p99").interval
    assert interval is not None
    assert (interval.middle, interval.low, interval.high) == pytest.approx((7, 5, 100), rel=0.01)
    assert estimate(many, "publish latency p99").text == "7.0 (5.0–100.1)"


@pytest.mark.thorough
def test_confidence_interval_of_median_has_its_coverage() -> None:
    import numpy as np

    random = np.random.default_rng(3)
    hits = 0
    for seed in range(400):
        interval = median_interval(random.lognormal(0, 1, 9).tolist(), seed)
        hits += interval.low <= 1 <= interval.high
    assert 0.90 <= hits / 400 <= 0.99


def test_difference_is_shown_only_where_the_interval_excludes_one() -> None:
    ours, theirs, same = (
        runs("a", 5, 5.1, 5.2, 5, 5.1),
        runs("b", 10, 10.2, 9.9, 10, 10.1),
        runs("c", 5.1, 5, 5.2, 5, 5.1),
    )
    rows = columns(ours, theirs, same)
    assert not any(each.ratio for each in rows["a"].estimates)
    assert (rows["b"].base, rows["c"].base) == ("a", "a")
    assert estimate(rows["b"], "publish latency p99").comparison.endswith(": worse")
    assert estimate(rows["b"], "acknowledged").comparison.endswith(": no difference shown")
    assert estimate(rows["c"], "publish latency p99").comparison.endswith(": no difference shown")
    ratio = estimate(rows["b"], "publish latency p99").ratio
    assert ratio is not None
    assert ratio.low < 10 / 5.1 < ratio.high
    first, second = sentences(list(rows.values()))
    assert first.startswith("b beside a: worse: end-to-end p50, end-to-end p99")
    assert second == "c beside a: no difference shown."


@pytest.mark.thorough
def test_few_noisy_runs_have_the_range_of_single_runs_instead_of_an_interval(tmp_path: Path) -> None:
    entries = [*runs("a", 5, 9, 20), *runs("b", 6, 11, 30)]
    latency = estimate(columns(entries)["b"], "publish latency p99")
    assert latency.ratio is not None
    assert latency.ratio.high / latency.ratio.low > 20  # An interval that says nothing.
    assert latency.text == "11.0 (3 runs: 6.0–30.0)"
    # 6 / 20 to 30 / 5, and latencies are recorded to within 1 %.
    assert latency.comparison == "1.30 × (single runs 0.30–5.99; 3 and 3 runs): too noisy to compare"
    (sentence,) = sentences(list(columns(entries).values()))
    assert "no difference shown: acknowledged" in sentence
    assert "too noisy to compare: end-to-end p50" in sentence
    page = write(entries, tmp_path / "p.html", "./c", "m").read_text()
    _, rows = table_of(entries, [])
    for text in (latency.text, latency.comparison):
        assert text in page
        assert any(text in row for row in rows)


def test_difference_that_noise_does_not_hide_keeps_its_interval() -> None:
    latency = estimate(columns(runs("a", 1, 1.1, 1.2), runs("b", 300, 500, 400))["b"], "publish latency p99")
    assert latency.ratio is not None
    assert latency.ratio.least > 2
    assert latency.comparison.endswith(f"{latency.ratio.low:.2f}–{latency.ratio.high:.2f}): worse")


def test_offered_load_is_not_compared() -> None:
    assert {figure.name for figure in FIGURES} - {each.name for each in COMPARED} == {
        *("offered", "sent", "aborted by the plan", "backlog: records", "backlog: building"),
        *("delay p50", "delay p99", "delay p99.9", "delay p99.99"),
    }


def test_two_runs_are_not_compared() -> None:
    rows = columns(runs("a", 5, 5), runs("b", 50, 50))
    assert list(sentences(list(rows.values()))) == [
        "b beside a: no comparison, which needs 3 valid runs of each (--repeat 5)."
    ]


def test_only_runs_of_the_same_workload_and_rate_are_compared() -> None:
    rows = columns(runs("a", 5, 5, 5), runs("b", 5, 5, 5, rate=2_000), runs("b", 5, 5, 5, workload="v"))
    assert [row.base for row in rows.values()] == ["", "", ""]
    assert list(rows) == ["a, w", "b, w", "b, v"]


def test_rates_are_named_where_one_target_has_several() -> None:
    entries = [*runs("a", 5), *runs("b", 5), *runs("a", 5, rate=2_000), *runs("b", 5, rate=2_000)]
    assert [each.name for each in series_of(entries)] == ["a, 1,000/s", "b, 1,000/s", "a, 2,000/s", "b, 2,000/s"]
    assert [has_curve(curve) for curve in curves_of(entries)] == [True, True]
    other = [*runs("a", 5), *runs("a", 5, rate=2_000, workload="v")]
    assert [(curve.name, has_curve(curve)) for curve in curves_of(other)] == [("a, w", False), ("a, v", False)]


def test_clients_are_compared_on_one_target() -> None:
    other = [Entry(msgspec.structs.replace(run.result, client="librdkafka")) for run in runs("a", 5, 5, 5)]
    rows = columns(runs("a", 5, 5, 5), other)
    assert {name: row.base for name, row in rows.items()} == {"a, native": "", "a, librdkafka": "a, native"}


def test_invalid_run_is_excluded_and_counted(tmp_path: Path) -> None:
    bad = Entry(result(latency_us=10**6, wanted_permille=1_000, lag_us=200_000, target="a"))
    entries = [*runs("a", 5, 5, 5), bad]
    (column,) = columns(entries).values()
    assert estimate(column, "publish latency p99").text == "5.0"
    assert column.series.outcome == "PASSED"
    assert (exit_code(entries), exit_code([bad])) == (0, 3)
    alone = columns([bad])["a"]
    assert alone.series.outcome == "INVALID"
    assert estimate(alone, "acknowledged").text == "1,000"  # It is shown, with its outcome.
    assert not any(each.ratio for each in columns(runs("b", 5, 5, 5), [bad] * 3)["a"].estimates)
    text = write(entries, tmp_path / "p.html", "./c", "m").read_text()
    assert "3 of 4 (others INVALID)" in text
    assert "The load generator was the limit" in text


def test_figure_that_a_run_lacks_is_not_shown() -> None:
    (column,) = columns([Entry(result(records_in_a_batch=1_000))]).values()
    assert estimate(column, "publish latency p50").interval is None
    assert estimate(column, "acknowledged").text == "1,000"


def test_searches_have_an_interval_over_their_repetitions() -> None:
    entries = limits(50_000, 52_000, 55_000, 51_000, 53_000)
    (column,) = columns(entries).values()
    interval = estimate(column, "maximum sustained").interval
    assert interval is not None
    assert interval.is_known
    assert interval.low < interval.middle < interval.high


def test_search_result_is_between_sustained_and_failed_rates() -> None:
    notes = remarks(limits(50_000))
    assert "records/s are sustained, and" in notes[0]
    assert (
        notes[1]
        == "reference: Its uncertainty is the step between both rates; repetitions give an interval (--repeat 5)."
    )


def test_search_without_an_upper_end_is_at_least_that_and_has_no_ratio() -> None:
    def limited(rate: float) -> LoadResult:
        return result(rate, wanted_permille=1_000, lag_us=150_000 if rate > 30_000 else 0, target="b")

    search = sustained_rate(limited, 1_000)
    ended = [Entry(next(step.result for step in search.steps if step.rate == search.rate), search)] * 3
    rows = columns(limits(50_000, 50_000, 50_000), ended)
    assert estimate(rows["b"], "maximum sustained").text == "at least 30,000"
    assert estimate(rows["b"], "maximum sustained").ratio is None


@pytest.mark.thorough
def test_page_has_verdicts_figures_pictures_and_how_to_repeat_it(tmp_path: Path) -> None:
    lost = Entry(result(target="other<1>", findings=Findings(100, 99, 1, 0, 0, 0, 0)))
    page = write([*runs("a", 5), lost], tmp_path / "p.html", "./crucible bench w.yaml", "a machine")
    text = page.read_text()
    assert text.count("<svg") == 5
    assert "other&lt;1&gt;" in text
    assert "other<1>" not in text
    assert "Of 100 acknowledged records: 1 lost" in text
    assert "./crucible bench w.yaml" in text
    assert "a machine" in text
    assert exit_code([lost]) == 1
    nothing = [Entry(result(rate, acknowledged=0, target="a")) for rate in (4_000, 8_000)]
    curve = write([*runs("a", 5), *runs("a", 6, rate=2_000), *nothing], tmp_path / "c.html", "./c", "m").read_text()
    assert curve.count("<svg") == 6
    assert "Response latency against the rate" in curve


@pytest.mark.thorough
def test_each_run_is_stored_and_the_table_has_a_column_for_each_target(tmp_path: Path) -> None:
    entries = [*runs("a", 5, 5, 5), *runs("b", 9, 9, 9)]
    options = BenchOptions([], ["a", "b"], LoadOptions(), out=tmp_path)
    store(entries, [], options)
    assert store(entries, [], options).name == "0002-page.html"
    assert len(list(tmp_path.glob("0001-*-a.json"))) == 3
    headings, rows = table_of(entries, [])
    assert headings == ("", "a", "b")
    assert ("outcome", "PASSED", "PASSED") in rows
    assert any(row[2].endswith(": worse") for row in rows)
