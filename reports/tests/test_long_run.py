"""A run of hours: its page stays small, and no peak and no hole vanishes from the charts."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from matplotlib.figure import Figure

from reports.collect import Findings
from reports.job_rows import Row
from reports.page.render import MAX_EVENTS, write_page
from reports.plots import timeline
from reports.plots.operations import _availability_states
from reports.tests.test_verdict import MANIFEST, findings, verdict_of

HOURS_4 = 4 * 3_600
MAX_BYTES = 1_000_000
S = 1_000_000
ERRORS = ("NOT_LEADER_OR_FOLLOWER", "timeout", "REQUEST_TIMED_OUT")
OPERATIONS = ("produce", "fetch", "create_topics", "metadata_read", "commit", "transaction")


def rows_of(seconds: int) -> dict[str, list[Row]]:
    """Return the rows that the jobs find in a run with everything: a kill, a rebalance and a failover each ten
    seconds."""
    drawn = Random(1)
    each = range(seconds)
    kills = range(5, seconds, 10)
    leaders = [(f"hot-{index}", n, at) for index in range(12) for n, at in enumerate([*kills][:400])]
    noise = {name: [drawn.randint(900, 1_100) for _ in each] for name in ("p50_us", "p99_us", "max_us")}
    quantiles = [{name: values[at] for name, values in noise.items()} for at in each]
    metrics = ("process_cpu_permille", "process_rss_bytes", *(f"Metric{number}" for number in range(10)))
    return {
        "latency": [
            {"operation": kind, "measure": measure, "second": at, "count": 9, "min_us": 5, **quantiles[at]}
            for kind in OPERATIONS
            for measure in ("response", "service")
            for at in each
        ],
        "heatmap": [
            {"operation": kind, "second": at, "step": drawn.randint(30, 60), "count": 9}
            for kind in ("produce", "fetch")
            for at in each
            for _ in range(3)
        ],
        "throughput": [
            *(
                {"second": at, "f": kind, "type": "ok", "error": "", "operations": drawn.randint(50, 90)}
                for kind in OPERATIONS
                for at in each
            ),
            *(
                {"second": at, "f": kind, "type": "fail", "error": drawn.choice(ERRORS), "operations": 3}
                for kind in OPERATIONS
                for at in each
                if at % 3 == 0
            ),
        ],
        "load": [
            {
                "second": at,
                "offered": 100,
                "sent": drawn.randint(90, 100),
                "completed": 90,
                "failed": 1,
                "max_slip_us": drawn.randint(0, 9_000),
                "cpu_permille": 300,
                "in_load": True,
                "calm": at % 10 < 5,
            }
            for at in each
        ],
        "broker": [
            {"node": node, "metric": metric, "second": at, "value": drawn.randint(1, 10**6)}
            for node in range(3)
            for metric in metrics
            for at in each
        ],
        "fault_hits": [
            {"name": f"kill {name}", "kind": "node_killed", "hit": at, "at_us": at * S, "until_us": (at + 2) * S}
            for name in range(6)
            for at in [*kills][name :: max(6, len(kills) // 60)]
        ],
        "failovers": [
            {
                "epoch": n,
                "node": n % 3,
                "lost_us": at * S,
                "cause": "kill 1",
                "next_node": (n + 1) % 3,
                "next_epoch": n + 1,
                "active_us": (at + 1) * S,
                "accepted_us": (at + 2) * S,
            }
            for n, at in enumerate(kills)
        ],
        "transfers": [
            {
                "node": n % 3,
                "leader": 0,
                "end_offset": n,
                "epoch": 1,
                "size_bytes": 9_000,
                "starts": 1,
                "received_bytes": 9_000,
                "resumes": 0,
                "resumed_at": 0,
                "discarded": 0,
                "finished": True,
                "largest_chunk_bytes": 1_000,
                "from_us": at * S,
                "until_us": at * S + 900_000 + n,
            }
            for n, at in enumerate(kills)
        ],
        "rebalances": [
            {
                "group": group,
                "generation": n,
                "members": 3,
                "from_us": at * S,
                "until_us": (at + 2) * S + n,
                "slowest_us": 500_000,
            }
            for group in ("readers", "workers", "others")
            for n, at in enumerate(kills)
        ],
        "ownerless": [
            {"group": group, "topic": "hot", "partition": 0, "from_us": at * S, "until_us": at * S + 1_500_000}
            for group in ("readers", "workers", "others")
            for at in kills
        ],
        "coordinators": [
            {
                "group": "readers",
                "node": 0,
                "next_node": 1,
                "last_us": at * S,
                "first_us": (at + 2) * S + at,
                "failed": 3,
                "loaded_us": (at + 1) * S,
                "records": 90,
            }
            for at in kills
        ],
        "leadership": [
            {
                "place": 1,
                "n": n,
                "partition": name,
                "at_us": at * S,
                "node": n % 3,
                "what": "leads",
                "leader_epoch": n,
                "isr": "0,1" if n % 2 else "0,1,2",
            }
            for name, n, at in leaders
        ],
        "leaderships": [{"second": at, "elected": at % 7, "shrunk": at % 5, "grown": at % 3} for at in each],
        "decided": [
            {"requested_end": requested_end, "second": at, "count": 9, "min_us": 3, **quantiles[at]}
            for requested_end in ("commit", "abort")
            for at in each
        ],
        "transactions": [
            {
                "group": "",
                "producers": 3,
                "begun": 900,
                "committed": 800,
                "aborted": 90,
                "aborts_requested": 80,
                "undecided": 1,
                "fenced": 0,
                "records": 0,
                "records_committed": 0,
            }
        ],
        "stalls": [
            {
                "topic": "hot",
                "partition": 0,
                "offset": at,
                "from_us": at * S,
                "until_us": (at + 4) * S,
                "behind": 9,
                "moved": True,
            }
            for at in [*kills][:50]
        ],
    }


def long_run(seconds: int) -> Findings:
    facts = {**findings().facts, "last_us": seconds * S, "rewinds": 0, "records_rewound": 0}
    changed: dict[str, Any] = rows_of(seconds)
    return findings(facts=facts, **changed)


@pytest.mark.live
@pytest.mark.timeout(180)
def test_page_of_a_run_of_four_hours_stays_small(tmp_path: Path) -> None:
    manifest = replace(MANIFEST, duration_us=HOURS_4 * S)
    found = long_run(HOURS_4)
    page = write_page(tmp_path, manifest, found, verdict_of(manifest, found)).read_text()
    assert len(page.encode()) < MAX_BYTES
    pictures = {path.stem for path in tmp_path.glob("*.png")}
    drawn = {"poster", "load", "latency", "heatmap", "throughput", "availability", "controller", "leadership", "broker"}
    assert drawn | {"groups", "transactions"} <= pictures
    assert "each 120 seconds are drawn by their lowest and highest second" in page
    assert f"the {MAX_EVENTS} of 4,320 that lasted longest" in page


def test_no_peak_no_hole_and_no_gap_of_a_line_vanishes() -> None:
    points = dict.fromkeys(range(HOURS_4), 10.0)
    points[7_777], points[9_001] = 900.0, 0.0
    for second in range(1_000, 1_200):
        del points[second]
    x, y = timeline.dense(points, HOURS_4)
    drawn = dict(zip(x, y, strict=True))
    assert (drawn[7_777.5], drawn[9_001.5]) == (900.0, 0.0)
    assert len(x) <= 2 * timeline.MAX_BUCKETS
    assert [at for at, value in drawn.items() if value != value] == [1_080.5]
    assert x == sorted(x)


def test_bars_and_stacks_show_the_highest_second() -> None:
    failed, refused = {7_777: 5, 7_778: 90}, {7_777: 6, 7_778: 1}
    x, heights = timeline.stacked([failed, refused], HOURS_4)
    assert heights[0][x.index(7_778.5)] == 90
    tops = []
    for seconds in (HOURS_4, 9_000, 10):
        axes = Figure().subplots()
        shown = [failed, refused] if seconds > 10 else [{3: 90}, {3: 1}]
        timeline.bars(axes, shown, ["red", "blue"], ["failed", "refused"], seconds)
        tops.append(axes.dataLim.ymax)
    assert tops == [91, 91, 91]


@pytest.mark.parametrize(("seconds", "width"), [(75, 1), (400, 1), (401, 5), (14_400, 120), (10**7, 66_667)])
def test_bucket_is_so_long_that_a_chart_has_few(seconds: int, width: int) -> None:
    assert timeline.bucket_s(seconds) == width
    assert width == 1 or seconds / width <= timeline.MAX_BUCKETS


def test_short_run_shows_each_second() -> None:
    points = {second: float(second) for second in range(75)}
    assert timeline.dense(points, 75) == ([second + 0.5 for second in range(75)], [*points.values()])
    assert timeline.axis_label(75, timeline.SECONDS) == timeline.SECONDS


def test_one_second_in_which_all_failed_is_seen_in_its_bucket() -> None:
    ok = [{"f": "fetch", "type": "ok", "second": at, "operations": 9} for at in range(HOURS_4) if at != 7_777]
    bad = {"f": "fetch", "type": "fail", "second": 7_777, "operations": 1}
    states = _availability_states([*ok, bad], "fetch", HOURS_4)
    assert states.index(2) == 7_777 // 120
    assert len(states) == 120
    assert states.count(0) == 119


def test_steps_keep_their_extremes() -> None:
    x = [number * HOURS_4 / 20_000 for number in range(20_000)]
    y = [3] * 20_000
    y[11_111], y[12_345] = 40, 0
    shown = timeline.steps(x, y, HOURS_4)
    assert len(shown[0]) <= 4 * timeline.MAX_BUCKETS < 20_000
    assert {40, 0} <= {*shown[1]}
    assert timeline.steps(x[:9], y[:9], HOURS_4) == (x[:9], y[:9])
