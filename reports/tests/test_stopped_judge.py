"""A judge that a signal stops writes one line and leaves no Java behind, whatever it was doing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from reports.tests.played import generate
from reports.tests.test_watch import write_part

CRUCIBLE = Path(__file__).parents[2] / "crucible_kafka"
PYTHON_TASK = """
from reports.spark import spark_session

with spark_session() as session:
    session.sparkContext.parallelize([1]).map(str).collect()
    raise KeyboardInterrupt
"""


def is_starting(family: Sequence[psutil.Process], _scratch: Path) -> bool:
    return any(process.is_running() and process.name() == "java" for process in family)


def is_in_a_query(_family: Sequence[psutil.Process], scratch: Path) -> bool:
    """The folder of gathered tables is made once Spark runs, and queries follow it."""
    return any(scratch.glob("crucible-gathered-*"))


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "reached"),
    [(signal.SIGTERM, is_starting), (signal.SIGTERM, is_in_a_query), (signal.SIGINT, is_in_a_query)],
)
@pytest.mark.rotated(8, "judges")
def test_stopped_judge_ends_with_one_line(
    number: signal.Signals, reached: Callable[[Sequence[psutil.Process], Path], bool], tmp_path: Path
) -> None:
    write_part(tmp_path / "run", generate(45), -1, 20_000_000, 0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, str(CRUCIBLE), "judge", "--watch", str(tmp_path / "run")]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as judge:
        family: list[psutil.Process] = []
        while not reached(family, scratch):
            time.sleep(0.05)
            family = psutil.Process(judge.pid).children(recursive=True)
        judge.send_signal(number)
        assert judge.stdout is not None
        output = judge.stdout.read()
    assert output == f"crucible: stopped by {number.name}\n"
    _, alive = psutil.wait_procs(family, timeout=0)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.rotated(8, "judges")
def test_connection_of_accumulators_ends_without_a_traceback() -> None:
    """A task in Python opens a connection from Java to PySpark's server of accumulators, and the stop closes it."""
    ended = subprocess.run(
        [sys.executable, "-c", PYTHON_TASK], cwd=CRUCIBLE.parent, capture_output=True, text=True, check=False
    )
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "EOFError" not in ended.stderr
    assert "py4j" not in ended.stderr
