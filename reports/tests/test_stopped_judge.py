"""A judge that a signal stops in the middle of a question to Spark says so, and leaves no Java behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from reports.tests.played import generate
from reports.tests.test_watch import write_part

CRUCIBLE = Path(__file__).parents[2] / "crucible.py"
ASKS_AFTER_S = 7.0
"""Spark stands some three seconds after its Java was started, and the first look takes ten more."""


@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_judge_ends_with_one_line(number: signal.Signals, tmp_path: Path) -> None:
    write_part(tmp_path / "run", generate(45), -1, 20_000_000, 0)
    words = [sys.executable, str(CRUCIBLE), "judge", "--watch", str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as judge:
        family: list[psutil.Process] = []
        while not any(each.name() == "java" for each in family):
            time.sleep(0.1)
            family = psutil.Process(judge.pid).children(recursive=True)
        time.sleep(ASKS_AFTER_S)
        judge.send_signal(number)
        assert judge.stdout is not None
        told = judge.stdout.read()
    assert told == f"crucible: stopped by {number.name}\n"
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
