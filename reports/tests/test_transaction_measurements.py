"""The figures of transactions equal what was planted. The page shows it, and only if there were transactions."""

from dataclasses import asdict

import pytest

from reports.collect import Findings
from reports.judge import _findings, _report, silent
from reports.manifest import read_manifest
from reports.page import transactions
from reports.page.transactions import Cost, Ends, Stall
from reports.rows import FaultRow, PositionRow
from reports.tests.history import History, int_of
from reports.tests.ledger import EXPECTATIONS, GROUP, LEDGER, SOURCE, WORKER, WRITER, Ledger
from reports.tests.played import generate

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(600)]
STRIKE_US, LATE_US = 30_000_000, 50_000_000
SHOWN = ((40_000_000, 9, 9), (40_500_000, 9, 12), (41_000_000, 9, 15), (41_400_000, 15, 15), (41_600_000, 9, 15))
"""Responses for ``ledger-1``: the time, the last stable offset and the high watermark. The last one is an old
response."""
HANGS_US = 45_000_000


def plant(history: History) -> None:
    """One transaction is abandoned under a fault, and one is fenced right after it. A third starts when all is over."""
    _move(history, WRITER, 3, STRIKE_US + 100_000, STRIKE_US + 200_000, STRIKE_US + 2_200_000)
    _move(history, WRITER, 4, STRIKE_US + 1_000_000, STRIKE_US + 1_100_000, STRIKE_US + 1_100_000)
    history.rows("transactions", process=WRITER, index=4)[0]["error"] = "PRODUCER_FENCED"
    worker = history.rows("transactions", process=WORKER)[-1]
    started_us = STRIKE_US + 2_000_000
    _move(history, WORKER, int_of(worker, "index"), started_us, started_us + 10_000, started_us + 50_000)
    for index, took_us in ((0, 20_000), (2, 70_000)):
        (row,) = history.rows("transactions", process=WRITER, index=index)
        row["until_us"] = int_of(row, "at_us") + took_us
    for name, at_us in (("strike", STRIKE_US), ("late", LATE_US)):
        history.tables["faults"].append(asdict(FaultRow(name, "node_killed", at_us, at_us + 50_000, "node-0", 1)))
    for at_us, stable, high in SHOWN:
        _show(history, LEDGER, 1, at_us, stable, high)
    _show(history, SOURCE, 0, HANGS_US, 10, 13)
    history.rows("ends", topic=SOURCE)[0]["high_watermark"] = 13


def _move(history: History, process: str, index: int, from_us: int, at_us: int, until_us: int) -> None:
    (row,) = history.rows("transactions", process=process, index=index)
    row.update(from_us=from_us, at_us=at_us, until_us=until_us)


def _show(history: History, topic: str, partition: int, at_us: int, stable: int, high: int) -> None:
    reader = Ledger(history, now_us=at_us - 1_000)
    reader.operation(f"at-{at_us}", "fetch", duration_us=1_000)
    reader.add("positions", PositionRow(f"at-{at_us}", 0, topic, partition, high, high, high, 0, None, stable, 3))


@pytest.fixture(scope="module")
def run(spark: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[History, list[Findings], list[str]]:
    """A run with transactions, and one without whose last stable offset is nevertheless shown behind."""
    root = tmp_path_factory.mktemp("transactions")
    history, without = Ledger().play(), generate(12)
    plant(history)
    for row in without.tables["positions"]:
        row["last_stable_offset"] = 0
    folders = [history.write(root / "with", expectations=EXPECTATIONS), without.write(root / "without")]
    manifests = [read_manifest(each) for each in folders]
    found = _findings(folders, manifests, spark, silent)  # type: ignore[arg-type]
    for folder, manifest, one in zip(folders, manifests, found, strict=True):
        _report(manifest, one, folder, folder / "report", None)
    return history, found, [(each / "report" / "index.html").read_text(encoding="utf-8") for each in folders]


Run = tuple[History, list[Findings], list[str]]


def test_transactions_are_counted_by_their_end(run: Run) -> None:
    _, (found, _), _ = run
    assert transactions.ends(found) == [
        Ends("writers", 1, (5, 2, 2, 1, 1, 1), None, None),
        Ends(f"workers of {GROUP}", 1, (3, 2, 1, 1, 0, 0), 13, 10),
    ]


def test_time_to_decide_counts_only_known_outcomes(run: Run) -> None:
    _, (found, _), _ = run
    whole = {row["requested_end"]: row for row in found.decided if row["second"] < 0}
    names = ("count", "min_us", "p50_us", "p99_us", "max_us")
    assert [whole["commit"][name] for name in names] == [4, 20_000, 40_000, 70_000, 70_000]
    assert [whole["abort"][name] for name in names] == [2, 40_000, 40_000, 40_000, 40_000]
    (late,) = [row for row in found.decided if row["second"] == STRIKE_US // 10**6 + 2]
    assert (late["requested_end"], late["count"], late["max_us"]) == ("commit", 1, 40_000)
    assert sum(row["count"] for row in found.decided if row["second"] >= 0) == 6
    assert [(each.name, each.count, each.p50_us, each.max_us) for each in transactions.decided(found)] == [
        ("commit", 4, None, 70_000),
        ("abort", 2, None, 40_000),
    ]


def test_fault_costs_transactions_open_around_it(run: Run) -> None:
    _, (found, _), _ = run
    assert transactions.costs(found) == [Cost("strike", 2, 0, 1, 1, 1, 2_000_000), Cost("", 6, 4, 2, 0, 0, 70_000)]


def test_last_stable_offset_stays_until_a_greater_one_is_shown(run: Run) -> None:
    history, (found, _), _ = run
    end_us = int_of(history.rows("ends", topic=SOURCE)[0], "end_us")
    assert transactions.stalls(found) == [
        Stall(SOURCE, 0, 10, HANGS_US, end_us - HANGS_US, 3, False, "late"),
        Stall(LEDGER, 1, 9, SHOWN[1][0], 900_000, 6, True, ""),
    ]
    assert [
        (stall_time.name, stall_time.count, stall_time.max_us) for stall_time in transactions.stall_times(found)
    ] == [
        (SOURCE, 1, end_us - HANGS_US),
        (LEDGER, 1, 900_000),
    ]


def test_run_without_transactions_has_no_such_section(run: Run) -> None:
    _, (_, without), (page, bare) = run
    for rows in (without.transactions, without.decided, without.stalls, without.stable_offsets):
        assert not rows
    for shown in ('id="transactions"', 'href="#transactions"', 'id="stalls"', "of 8 begun, 1 undecided"):
        assert shown in page, shown
    assert "time to decide, by the second of the response" in page
    for hidden in ('id="transactions"', 'href="#transactions"', "transactions committed"):
        assert hidden not in bare, hidden
