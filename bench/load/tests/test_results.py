"""Measures, verdicts and the search for a rate, on planted numbers."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bench.fleet.recorder import bucket_of
from bench.load.ledger import Findings, Sent
from bench.load.measures import Measures, max_us, mean_us, merged, quantile_us
from bench.load.page import sentence
from bench.load.results import LoadResult, WorkerResult, backlog_of, collect, has_percentile, result_path
from bench.load.search import complaint_of, sustained_rate
from bench.load.tests.planted import result
from bench.load.workload import workload_of


def test_quantiles_are_those_of_a_sorted_list() -> None:
    values = [100, 200, 200, 3_000, 50_000]
    histogram = Counter(bucket_of(value) for value in values)
    for share, expected in ((0.2, 100), (0.5, 200), (0.6, 200), (0.8, 3_000), (1.0, 50_000)):
        assert quantile_us(histogram, share) == pytest.approx(expected, rel=0.01)
    assert max_us(histogram) == pytest.approx(50_000, rel=0.01)
    assert mean_us(histogram) == pytest.approx(sum(values) / 5, rel=0.01)
    assert quantile_us(Counter(), 0.5) == 0.0
    assert mean_us(Counter()) == 0.0
    assert max_us(Counter()) == 0.0


def test_worker_that_is_only_busy_is_not_the_limit() -> None:
    assert not result(wanted_permille=1_000, lag_us=99_999).generator_was_the_limit
    assert not result(wanted_permille=899, lag_us=150_000).generator_was_the_limit
    assert result(wanted_permille=900, lag_us=100_000).generator_was_the_limit


def test_generator_limits_a_run_in_more_than_a_tenth_of_its_seconds() -> None:
    found = result(seconds=10)
    busy, late = 1_000, 150_000
    for number, at in enumerate(range(found.first, found.end)):
        found.measures.seconds[at].wanted_permille, found.measures.seconds[at].lag_us = busy, late
        assert found.generator_was_the_limit is (number >= 1)


def test_workload_without_readers_is_unverified() -> None:
    found = msgspec.structs.replace(result(read=0), workload=workload_of({"subscriptionsPerTopic": 0}, "w", "w"))
    assert (found.outcome, found.reason) == ("UNVERIFIED", "The workload has no readers, so no record was verified.")


def test_measures_of_workers_add_up() -> None:
    one, other = result(10).measures, result(30, wanted_permille=700).measures
    both = merged([one, other])
    assert both.seconds[2].acknowledged == 40
    assert both.seconds[2].wanted_permille == 700
    assert sum(both.histogram("publish", 0, 99).values()) == 5 * 40


def test_results_of_workers_are_evaluated_together(tmp_path: Path) -> None:
    """Here one worker sends and the other reads, and a batch is missing."""
    sent = Sent([(0, 100)])
    parts = [
        WorkerResult(Measures(), {"p0": (sent.ok, [], [], {"REQUEST_TIMED_OUT": 2})}, [], {}, 1.5, 100),
        WorkerResult(
            Measures(), {}, [(0, {"p0": [(0, 60), (70, 100)]}, 0, 0, 0)], {"NOT_LEADER_OR_FOLLOWER": 1}, 0.5, 200
        ),
    ]

    for index, part in enumerate(parts):
        result_path(tmp_path, index).write_bytes(msgspec.json.encode(part))
    totals = collect(tmp_path, 2, exactly_once=True)
    assert (totals.findings.acknowledged, totals.findings.lost) == (100, 10)
    assert (totals.cpu_s, totals.rss_bytes) == (2.0, 300)
    assert totals.errors == {"REQUEST_TIMED_OUT": 2, "NOT_LEADER_OR_FOLLOWER": 1}


def test_lost_record_fails_the_run() -> None:
    found = result(findings=Findings(100, 99, 1, 0, 0, 0, 0, "subscription 0 never read the sequences 5 to 5 of p0"))
    assert found.outcome == "FAILED"
    assert found.reason.startswith("Of 100 acknowledged records: 1 lost. subscription 0 never read")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (result(wanted_permille=1_000, lag_us=150_000), "The load generator was the limit"),
        (result(unfinished="the clients did not read"), "Not all was read"),
        (result(acknowledged=0), "No record was acknowledged"),
    ],
)
def test_run_without_broker_figures_is_invalid(wrong: LoadResult, words: str) -> None:
    assert wrong.outcome == "INVALID"
    assert words in wrong.reason


def test_rate_that_is_not_reached_is_named_and_does_not_fail() -> None:
    found = result(1_000, acknowledged=900)
    assert (found.outcome, found.reason[:26]) == ("PASSED", "The rate was not reached: ")


def test_backlog_is_number_of_unread_records() -> None:
    assert backlog_of(result(100, read=90)) == [20, 30, 40, 50]


def play_to(limit: float) -> list[float]:
    """Search on a broker that sustains ``limit``. Return the rates that were tried, and the result at the end."""
    tried: list[float] = []

    def play(rate: float) -> LoadResult:
        tried.append(rate)
        return result(rate, acknowledged=min(rate, limit))

    search = sustained_rate(play, 1_000)
    assert search.rate * 0.98 <= limit
    assert search.beyond is not None
    assert search.rate < search.beyond < search.rate * 1.06
    assert search.beyond * 0.98 > limit
    return tried


def test_search_doubles_and_then_bisects() -> None:
    tried = play_to(55_000)
    assert tried[:5] == [10_000, 20_000, 40_000, 80_000, 60_000]


def test_search_halves_until_a_rate_is_sustained() -> None:
    assert play_to(3_000)[:3] == [10_000, 5_000, 2_500]


def test_search_ends_below_the_rate_where_the_generator_is_the_limit() -> None:
    search = sustained_rate(
        lambda rate: result(rate, wanted_permille=1_000, lag_us=150_000 if rate > 30_000 else 0), 1_000
    )
    assert 28_500 < search.rate <= 30_000
    assert search.generator_was_the_limit
    assert sentence(search) == f"At least {search.rate:,.0f} records/s; beyond that the load generator was the limit."


def test_search_below_the_generators_limit_still_finds_that_of_the_brokers() -> None:
    def play(rate: float) -> LoadResult:
        is_late = rate > 30_000
        wanted_permille, lag_us = (1_000, 150_000) if is_late else (100, 0)
        return result(rate, acknowledged=min(rate, 25_000), wanted_permille=wanted_permille, lag_us=lag_us)

    search = sustained_rate(play, 1_000)
    assert 24_000 < search.rate <= 25_600
    assert not search.generator_was_the_limit


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (result(1_000, acknowledged=900), "only 900 records/s were acknowledged"),
        (result(1_000, read=500), "2,500 records waited for readers at the end"),
        (result(1_000, latency_us=2_000_000), "the 99th percentile was"),
        (result(1_000), ""),
    ],
)
def test_why_a_rate_is_not_sustained(found: LoadResult, words: str) -> None:
    assert complaint_of(found, 1_000).startswith(words)
    assert bool(complaint_of(found, 1_000)) == bool(words)


def test_percentile_needs_ten_batches_beyond_it() -> None:
    assert has_percentile(1_000, 0.99)
    assert not has_percentile(999, 0.99)
    many, few = result(records_in_a_batch=1), result(records_in_a_batch=1_000)
    assert (many.samples("publish"), few.samples("publish")) == (4_000, 4)
    assert many.percentile_ms("publish", 0.99) == pytest.approx(5, rel=0.01)
    assert few.percentile_ms("publish", 0.5) is None  # 4,000 records, but of four batches only
