"""Handling of workers' reports by the master. Locust patches a process that imports it, so this runs in another."""

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.locust.processes import ROOT

PROGRAM = """
import json, sys
from bench.locust.messages import AT, SILENT_S, failure_of, sums
reports = {int(index): each for index, each in json.loads(sys.argv[1]).items()}
print(json.dumps([sums(reports.values()), failure_of(reports, 100.0), SILENT_S]))
"""
FINE = {"index": 0, "failure": "", "closed": 0, "read": 5, "worst_lag": 7, "at_s": 99.0}

pytestmark = pytest.mark.live


def digest(*reports: dict[str, Any]) -> tuple[dict[str, int], str]:
    words = [sys.executable, "-c", PROGRAM, json.dumps(dict(enumerate(reports)))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    added, failure, silent_s = json.loads(done.stdout.splitlines()[-1])
    assert silent_s == 60
    return added, failure


def test_reports_are_added_and_the_worst_kept() -> None:
    assert digest(FINE, {**FINE, "read": 6, "worst_lag": 3}) == ({"closed": 0, "read": 11, "worst_lag": 7}, "")


def test_worker_that_is_silent_for_a_minute_has_failed() -> None:
    assert digest(FINE, {**FINE, "at_s": 39.0})[1] == "worker 1 has sent nothing for 60 s"
    assert digest(FINE, {**FINE, "at_s": 41.0})[1] == ""
    assert digest(FINE, {**FINE, "at_s": 1.0, "closed": 1})[1] == ""
    assert digest({**FINE, "failure": "disk full"}, FINE)[1] == "disk full"
