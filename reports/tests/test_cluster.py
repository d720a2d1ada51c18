"""The judge gives the same verdicts on a cluster: ``spark-submit``, a standalone master and one worker, on loopback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from reports.judge import compute_verdicts
from reports.tests.played import generate
from reports.tests.test_judge_finds_anomalies import plant_lost_write
from reports.verdict import Outcome, write_verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
STARTS_S = 90.0
ENDS_S = 30.0
JUDGES_S = 600.0


@dataclass(frozen=True, slots=True)
class Started:
    process: "subprocess.Popen[bytes]"
    log: Path

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def logged(self, pattern: str) -> str:
        """Wait until the log has this, and return it."""
        until = time.monotonic() + STARTS_S
        while time.monotonic() < until and self.process.poll() is None:
            if match := re.search(pattern, self.text()):
                return match[0]
            time.sleep(0.1)
        pytest.fail(f"no {pattern} in {self.log.name}: {self.text()[-2000:]}")


@contextmanager
def _started(name: str, words: Sequence[str], folder: Path) -> Iterator[Started]:
    """A program of Spark. It is killed with all that it started when the block ends."""
    environment = {
        **{key: value for key, value in os.environ.items() if key != "MASTER"},
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "TMPDIR": str(folder),
    }
    command, log = [str(SPARK_HOME / "bin" / words[0]), *words[1:]], folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
        )
    try:
        yield Started(process, log)
    finally:
        with suppress(ProcessLookupError):  # It and all that it started have ended.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(ENDS_S)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster that has one worker with one core."""
    daemon = ["spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--webui-port", "0"]
    with _started("master", [*daemon, "--port", "0"], tmp_path) as one:
        url = one.logged(r"spark://127\.0\.0\.1:\d+")
        daemon[1] = "org.apache.spark.deploy.worker.Worker"
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work")]
        with _started("worker", [*daemon, *size, url], tmp_path) as other:
            other.logged("Successfully registered with master")
            yield url


def test_cluster_gives_the_same_verdicts(master: str, spark: "SparkSession", tmp_path: Path) -> None:
    history = generate(46)
    runs = [history.write(tmp_path / "clean")]
    plant_lost_write(history)
    runs.append(history.write(tmp_path / "planted"))
    events = tmp_path / "events"
    events.mkdir()

    _judge_on(master, runs, events)

    assert _broken(runs[0]) == ("PASSED", [])
    assert _broken(runs[1]) == ("FAILED", ["lost-write", "unseen"])
    for run, here in zip(runs, compute_verdicts(runs, spark), strict=True):
        write_verdict(tmp_path / "here.json", here)
        assert _verdict_of(run / "report" / "verdict.json") == _verdict_of(tmp_path / "here.json")
        assert (run / "report" / "index.html").exists()
    (log,) = events.iterdir()
    executors = _executors(log)
    assert executors, "no task has run"
    assert executors <= {path.name for path in tmp_path.glob(f"work/{log.name}/*")}, "the worker has a folder for each"


def _judge_on(master: str, runs: Sequence[Path], events: Path) -> None:
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    words = ["spark-submit", "--master", master, "--executor-memory", "1g"]
    words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    words += [str(ROOT / "reports" / "judge.py"), *map(str, runs)]
    with _started("judge", words, events.parent) as judge:
        code = judge.process.wait(JUDGES_S)
        assert code == Outcome.FAILED, judge.text()[-3000:]


def _verdict_of(verdict: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(verdict.read_text(encoding="utf-8"))
    return {key: value for key, value in content.items() if key != "report"}


def _broken(run: Path) -> tuple[str, list[str]]:
    verdict = json.loads((run / "report" / "verdict.json").read_text(encoding="utf-8"))
    return verdict["outcome"], [
        guarantee["name"] for guarantee in verdict["guarantees"] if guarantee["status"] == "broken"
    ]


def _executors(log: Path) -> set[str]:
    """Return the executors on which tasks ended, by the event log of the application. Tasks of a local master would end
    at "driver"."""
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return {event["Task Info"]["Executor ID"] for event in events if event["Event"] == "SparkListenerTaskEnd"}
