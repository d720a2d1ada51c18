"""Figures of the report equal a plain computation over the same history; the page shows them."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.collect import Findings
from reports.judge import _report
from reports.manifest import read_manifest
from reports.page.control_plane import Failover, summary, transfers
from reports.tests.control_plane import SIZE_BYTES
from reports.tests.history import Fault, History, Shape, int_of
from reports.tests.played import generate
from reports.tests.replicas import FOLLOWER, FULL_US, INCREMENTAL_US
from reports.verdict import Verdict

if TYPE_CHECKING:
    from conftest import JudgedRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NAMES = {0.5: "p50_us", 0.75: "p75_us", 0.9: "p90_us", 0.95: "p95_us", 0.99: "p99_us", 0.999: "p999_us"}

BARE = Shape(seconds=9, histograms=False, faults=(Fault("early", "node_killed", 1_200_000, 1_400_000),))


def write_histories(root: Path, _tests: Sequence[pytest.Function]) -> dict[str, Path]:
    return {
        "histograms": generate(41).write(
            root / "with histograms", title="<b>A & B</b>", warm_up_us=1_000_000, world="live"
        ),
        "bare": generate(41, BARE).write(root / "bare"),
        "more hits": _with_more_hits().write(root / "more hits"),
    }


@pytest.fixture(scope="module")
def run(found_by_name: "Mapping[str, JudgedRun]") -> tuple[History, list[Findings], list[Path]]:
    """The history with histograms. Its findings and its folder, and those of the bare one."""
    both = [found_by_name["histograms"], found_by_name["bare"]]
    return generate(41), [each.findings for each in both], [each.folder for each in both]


def _with_more_hits() -> History:
    never_us = 10**9
    history = generate(43)
    drop = history.rows("faults", name="drop_response")[0]
    for name, ends_us in (("again", (2_300_000, 4_000_000, 4_001_000, 4_900_000)), ("last", (never_us, 2_300_000))):
        history.tables["faults"] += [
            {**drop, "name": name, "hit": hit, "at_us": end_us, "until_us": end_us}
            for hit, end_us in enumerate(ends_us, 1)
        ]
    for kill in history.rows("faults", name="kill"):
        kill["kind"] = "host_lost"
    return history


def test_percentiles_are_exact_to_the_bucket(run: tuple[History, list[Findings], list[Path]]) -> None:
    history, (measured, _), _ = run
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in history.tables["latency"]:
        if int_of(row, "second") >= 1:
            expected[str(row["operation"]), str(row["measure"])] += [int_of(row, "high_us") - 1] * int_of(row, "count")
    whole = {
        (row["operation"], row["measure"]): row
        for row in measured.percentiles
        if (row["fault"], row["window"]) == ("", "")
    }
    assert set(whole) == set(expected)
    for key, values in expected.items():
        values.sort()
        for share, name in NAMES.items():
            assert whole[key][name] == values[math.ceil(round(share * len(values), 6)) - 1], (key, name)
        assert whole[key]["count"] == len(values)
        assert whole[key]["max_us"] == values[-1]


def test_without_histograms_latency_and_load_come_from_the_operations(
    run: tuple[History, list[Findings], list[Path]],
) -> None:
    history, (_, (_, bare), _) = generate(41, BARE), run
    service = sorted(
        int_of(row, "complete_us") - int_of(row, "invoke_us") for row in history.rows("operations", f="fetch")
    )
    row = next(
        row
        for row in bare.percentiles
        if (row["operation"], row["measure"], row["fault"], row["window"]) == ("fetch", "service", "", "")
    )
    assert row["p99_us"] == service[math.ceil(0.99 * len(service)) - 1]
    assert row["count"] == len(service)
    offered = sum(row["offered"] for row in bare.load)
    assert offered == sum(row["f"] in ("fetch", "produce") for row in history.tables["operations"])


def test_fault_windows_hold_only_their_seconds(run: tuple[History, list[Findings], list[Path]]) -> None:
    history, (measured, _), _ = run
    kill = {
        row["window"]: row["count"]
        for row in measured.percentiles
        if (row["fault"], row["operation"], row["measure"]) == ("kill", "fetch", "service")
    }
    fetches = history.rows("operations", f="fetch")
    # The histograms are the fetchers': group members were planted as operations alone.
    seconds = [int_of(row, "complete_us") // 10**6 for row in fetches if str(row["process"]).startswith("fetcher-")]
    assert kill["during"] == sum(second in (3, 4) for second in seconds)  # 3.0 to 3.6 s and one second to settle
    assert kill["before"] == sum(1 <= second < 3 for second in seconds)  # the first second is warm-up


def test_seconds_outside_faults_are_those_that_no_fault_touches_and_no_client_begins_in(
    run: tuple[History, list[Findings], list[Path]],
) -> None:
    """A node is dead until 1.4 s, so seconds 1 to 5 are under a fault. In the first two clients begin. The last write
    is wanted in second 8, so that one is no longer whole."""
    _, (measured, bare), _ = run
    assert {row["second"] for row in bare.load if row["calm"]} == {6, 7}
    assert {row["second"] for row in bare.load if row["in_load"]} == set(range(8))
    assert not any(row["calm"] for row in measured.load), "its load ends soon after its last fault"
    fetches = generate(41, BARE).rows("operations", f="fetch")
    seconds = [int_of(row, "complete_us") // 10**6 for row in fetches]
    counts = {
        row["window"]: row["count"]
        for row in bare.percentiles
        if (row["fault"], row["operation"], row["measure"]) == ("", "fetch", "service")
    }
    calm = sum(second in (6, 7) for second in seconds)
    assert counts == {"": len(seconds), "calm": calm, "faulty": sum(second < 6 for second in seconds)}
    assert calm


def test_longest_outage(run: tuple[History, list[Findings], list[Path]]) -> None:
    history, (measured, _), _ = run
    done = sorted(int_of(row, "complete_us") for row in history.rows("operations", f="produce", type="ok"))
    worst = max((b - a, a, b) for a, b in itertools.pairwise(done))
    longest = max(measured.gaps, key=lambda row: (row["f"] == "produce", row["gap_us"]))
    assert (longest["gap_us"], longest["from_us"], longest["until_us"]) == worst


def test_first_success_after_the_hit_after_which_it_took_longest(
    found_by_name: "Mapping[str, JudgedRun]",
) -> None:
    history, measured = _with_more_hits(), found_by_name["more hits"].findings
    done: dict[str, list[int]] = defaultdict(list)
    for row in history.rows("operations", type="ok"):
        done[str(row["f"])].append(int_of(row, "complete_us"))
    kinds = {str(row["f"]) for row in history.tables["operations"]}
    waits: dict[tuple[str, str], list[tuple[float, int | None, int]]] = defaultdict(list)
    for fault in history.tables["faults"]:
        until_us = max(int_of(fault, "at_us"), int_of(fault, "until_us"))
        for kind in kinds:
            first_us = min((at for at in done[kind] if at >= until_us), default=None)
            wait_us = math.inf if first_us is None else first_us - until_us
            waits[str(fault["name"]), kind].append((wait_us, first_us, int_of(fault, "hit")))
    assert {(row["fault"], row["f"]) for row in measured.first_ok} == set(waits)
    for row in measured.first_ok:
        hits = waits[str(row["fault"]), str(row["f"])]
        worst = max(wait_us for wait_us, _, _ in hits)
        longest = [(first_us, hit) for wait_us, first_us, hit in hits if wait_us == worst]
        assert (row["first_ok_us"], row["hit"]) in longest, row


def test_failover_lasts_from_the_fault_to_the_next_controller_and_the_first_accepted_request(
    run: tuple[History, list[Findings], list[Path]],
) -> None:
    _, (measured, _), _ = run
    (failover,) = measured.failovers
    assert failover["node"] == 0
    assert failover["epoch"] == 1
    assert failover["next_node"] == 1
    assert failover["next_epoch"] == 2
    assert failover["cause"] == "kill"
    assert failover["lost_us"] == 3_000_000
    assert failover["active_us"] == 3_450_000
    assert failover["accepted_us"] == 4_000_000


def test_lost_host_is_the_cause_of_a_failover(found_by_name: "Mapping[str, JudgedRun]") -> None:
    (failover,) = found_by_name["more hits"].findings.failovers
    assert failover["cause"] == "kill"
    assert failover["lost_us"] == 3_000_000


def test_download_that_a_kill_cut_in_two_is_one_transfer_that_resumed(
    run: tuple[History, list[Findings], list[Path]],
) -> None:
    _, (measured, _), _ = run
    (download,) = transfers(measured)
    assert download.node == 2
    assert download.snapshot == "102-1"
    assert download.size_bytes == SIZE_BYTES
    assert download.starts == 2
    assert download.resumes == 1
    assert download.received_bytes == SIZE_BYTES + 1_000
    assert download.beyond_bytes == 1_000
    assert download.allowed_bytes == 2_000
    assert download.resumed_at == 1_000
    assert download.took_us == 1_100_000
    assert download.finished


def test_few_failovers_get_no_median() -> None:
    one = Failover(0, 1, 1, 2, 0, "kill", 500_000, None)
    assert "too few for a median" in summary([one] * 4)
    assert "The median of 5 is 0.500 s" in summary([one] * 5)


def test_fetch_costs_are_summed_by_kind(run: tuple[History, list[Findings], list[Path]]) -> None:
    history, (_, (_, measured), _) = generate(41, BARE), run
    rows = {(row["follower"], row["full"]): row for row in measured.costs}
    clients = [row for row in history.rows("fetch_costs") if str(row["client_id"]).startswith("fetcher-")]
    for full in (True, False):
        mine = [row for row in clients if row["full"] is full]
        assert rows[False, full]["fetches"] == len(mine) > 0
        assert rows[False, full]["response_bytes"] == sum(int_of(row, "response_bytes") for row in mine)
        assert rows[False, full]["p99_us"] == (FULL_US if full else INCREMENTAL_US)
    follower = history.rows("fetch_costs", client_id=FOLLOWER, full=False)
    fetched = history.rows("operations", f="fetch")
    bounds = min(int_of(row, "invoke_us") for row in fetched), max(int_of(row, "complete_us") for row in fetched)
    during = [row for row in follower if bounds[0] <= int_of(row, "at_us") <= bounds[1]]
    assert rows[True, False]["fetches"] == len(during) > 0
    assert (True, True) not in rows or rows[True, True]["fetches"] <= 1


def test_lost_response_is_recovered_from_by_the_next_good_one_at_that_node(
    run: tuple[History, list[Findings], list[Path]],
) -> None:
    history, (measured, _), _ = run
    lost = history.rows("operations", f="fetch", type="info")
    expected = []
    for row in lost:
        mine = history.rows("operations", f="fetch", process=row["process"])
        after = [each for each in mine if int_of(each, "index") > int_of(row, "index")]
        good = next(each for each in after if each["type"] == "ok")
        refused = [each for each in after[: after.index(good)] if each["type"] == "fail"]
        requests_us = sum(int_of(each, "complete_us") - int_of(each, "invoke_us") for each in (*refused, good))
        expected.append((row["process"], int_of(good, "complete_us") - int_of(row, "complete_us"), requests_us))
    recoveries = [(row["process"], row["recovered_us"], row["requests_us"]) for row in measured.recoveries]
    assert sorted(recoveries) == sorted(expected)
    assert recoveries


def test_full_fetches_after_the_first_bring_partitions_again(
    run: tuple[History, list[Findings], list[Path]],
) -> None:
    history, (measured, _), _ = run
    (sums,) = measured.sent_again
    full = [row for row in history.rows("operations", f="fetch", type="ok") if int_of(row, "session_epoch") <= 0]
    first = {row["process"]: row for row in reversed(full)}
    again = [row for row in full if row is not first[row["process"]]]
    assert {"fetcher-0", "fetcher-1", "fetcher-2"} <= set(first)
    assert sums["requests_again"] == len(again)
    assert sums["returned_again"] == sum(int_of(row, "partitions_returned") for row in again)


def test_leaders_of_a_partition_are_listed_in_order(run: tuple[History, list[Findings], list[Path]]) -> None:
    _, (measured, _), _ = run
    first = [row for row in sorted(measured.leadership, key=lambda row: row["n"]) if row["place"] == 1]
    assert [(row["partition"], row["node"], row["isr"]) for row in first] == [
        ("orders-0", 0, "0,1,2"),
        ("orders-0", 1, "1,2"),
        ("orders-0", 1, "1,2,0"),
    ]
    seconds = {row["second"]: row for row in measured.leaderships}
    assert seconds[3]["elected"] == 1
    assert seconds[3]["shrunk"] == 3
    assert seconds[4]["grown"] == 3


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attributes}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values.get("href", ""))
        if tag in ("script", "link", "img", "iframe"):
            self.loads.append(values.get("src") or values.get("href") or "")


@pytest.fixture(scope="module")
def report(
    run: tuple[History, list[Findings], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Verdict]:
    """The folder of the report, and the verdict. The baseline is the run without histograms."""
    _, (measured, bare), folders = run
    folder = tmp_path_factory.mktemp("report")
    baseline = read_manifest(folders[1]), bare
    return folder, _report(read_manifest(folders[0]), measured, folders[0], folder, baseline)


def test_page_is_self_contained_with_every_section(report: tuple[Path, Verdict]) -> None:
    folder, verdict = report
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    sections = [
        "verdict",
        "attacked",
        "figures",
        "guarantees",
        "run",
        "load",
        "latency",
        "faults",
        "correctness",
        "groups",
        "mirror",
        "broker",
        "baseline",
        "notes",
    ]
    assert [each for each in page.ids if each in sections] == sections
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert not [each for each in page.loads if each and not each.startswith("data:")]
    assert not re.search(r"(?:src|href)=[\"']https?:|url\(https?:|@import", text.replace("http://www.w3.org", ""))
    assert len(text.encode()) < 2_000_000
    assert "&lt;b&gt;A &amp; B&lt;/b&gt;" in text
    assert "<b>A & B" not in text
    for shown in (verdict.summary, verdict.repeat_command, "drop_response", "kill", "p99.9", "shared one machine"):
        assert shown in text, shown
    figures = (
        "poster",
        "load",
        "percentiles",
        "latency",
        "throughput",
        "availability",
        "controller",
        "leadership",
        "broker",
        "groups",
        "mirror",
    )
    assert {path.name for path in folder.glob("*.png")} == {f"{name}.png" for name in figures}
    assert (folder / "verdict.json").exists()
    assert (folder / "junit.xml").exists()


def test_ids_on_the_page_are_unique(report: tuple[Path, Verdict]) -> None:
    page = _Page()
    page.feed((report[0] / "index.html").read_text(encoding="utf-8"))
    assert len(page.ids) == len(set(page.ids))
