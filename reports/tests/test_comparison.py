"""Runs in several revisions, laid beside each other: the numbers, the page, what is missing."""

import json
import re
from pathlib import Path

import pytest

from reports.comparison import _LINES, compare_runs, measure, table
from reports.tests.history import History
from reports.tests.played import generate
from reports.tests.test_verdict import findings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _without_sessions(history: History) -> History:
    for row in history.rows("operations", f="fetch"):
        row.update(session_id=0, session_epoch=-1, response_session_id=0)
    for row in history.tables["fetch_costs"]:
        row.update(revision="none", full=True, service_us=2_000, request_bytes=900)
    return history


@pytest.mark.nightly
def test_three_runs_on_one_page(spark: object, tmp_path: Path) -> None:
    none = _without_sessions(generate(7)).write(tmp_path / "a", without=("trace",), revision="none", world="live")
    final = generate(7).write(tmp_path / "b", revision="final", world="live")
    first = generate(7).write(tmp_path / "c", revision="first", world="live")
    compared = compare_runs([none, final, first], tmp_path / "out", spark)  # type: ignore[arg-type]
    assert [each.revision for each in compared.measured] == ["final", "first", "none"]
    assert [verdict.exit_code for verdict in compared.verdicts] == [0, 0, 0]
    with_sessions, _, without = compared.measured
    assert (without.clients.mean_us, without.clients.request_bytes) == (2_000, 900)
    assert with_sessions.clients.mean_us is not None
    assert with_sessions.clients.mean_us < 300
    assert with_sessions.losses == without.losses > 0
    assert without.sent_again > with_sessions.sent_again > 0
    text = compared.page.read_text(encoding="utf-8")
    for link in re.findall(r'href="([^"#]+)"', text):
        assert (compared.page.parent / link).is_file(), link
    median = "requests until the next good response, median"
    for shown in ("final", "first", "none", "partitions sent again", median, "2.00 ms"):
        assert shown in text, shown
    assert not re.search(r"(?:src|href)=[\"']https?:|url\(https?:|@import", text.replace("http://www.w3.org", ""))
    names = {path.name for path in compared.page.parent.glob("*.png")}
    assert {f"comparison-{name}.png" for name in ("overview", "bytes", "partitions", "service", "recovery")} <= names
    numbers = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [run["clients"]["mean_us"] for run in numbers["runs"]][2] == 2_000


def test_simulated_run_without_costs_leaves_their_lines_out() -> None:
    runs = [
        measure(
            name,
            findings(
                sent_again=[
                    {
                        "fetches": 10,
                        "named": 40,
                        "returned": 5,
                        "requests_again": 1,
                        "named_again": 4,
                        "returned_again": 4,
                    }
                ]
            ),
        )
        for name in ("final", "none")
    ]
    groups = dict(table(_LINES, runs))
    assert "The node's time" not in groups
    assert "Followers" not in groups
    lines = {line.title: line.cells for line in groups["Fetchers"]}
    assert lines["partitions named a fetch"] == ("4.00", "4.00")
    assert "request bytes a fetch" not in lines
    assert {line.title: line.cells for line in groups["Lost responses"]}["partitions sent again"] == ("4", "4")
