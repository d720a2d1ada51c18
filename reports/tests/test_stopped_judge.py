"""A judge that a signal stops in the middle of a question to Spark says so, and leaves no Java behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from reports.tests.played import generate

CRUCIBLE = Path(__file__).parents[2] / "crucible.py"


@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_judge_ends_with_one_line(number: signal.Signals, tmp_path: Path) -> None:
    run = generate(45).write(tmp_path / "run")
    words = [sys.executable, str(CRUCIBLE), "report", str(run)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as judge:
        assert judge.stdout is not None
        while "judged" not in judge.stdout.readline():
            assert judge.poll() is None
        time.sleep(0.2)
        family = psutil.Process(judge.pid).children(recursive=True)
        judge.send_signal(number)
        told = judge.stdout.read()
    assert "Traceback" not in told
    assert told.splitlines()[-1] == f"crucible: stopped by {number.name}"
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
