"""The same code judges on a cluster: a standalone master and a worker on loopback, and ``spark-submit``."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from reports.judge import verdicts_of
from reports.tests.played import generate
from reports.tests.test_judge_finds_anomalies import plant_lost_write

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]

BIN = Path(pyspark.__file__).parent / "bin"
ROOT = Path(__file__).parents[2]
STARTS_S = 120.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@contextmanager
def _started(log: Path, main: str, *arguments: str) -> Iterator[None]:
    command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=ENVIRONMENT, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait(STARTS_S)


def _told(log: Path, pattern: str) -> str:
    until = time.monotonic() + STARTS_S
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    pytest.fail(f"no {pattern} in {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with one worker."""
    with ExitStack() as ends:
        log = tmp_path / "master.log"
        ends.enter_context(_started(log, "master.Master", "--port", "0", "--webui-port", "0"))
        url = _told(log, r"Starting Spark master at (spark://\S+)")
        place = ["--work-dir", str(tmp_path / "work"), "--webui-port", "0"]
        worker = tmp_path / "worker.log"
        ends.enter_context(_started(worker, "worker.Worker", "--cores", "2", "--memory", "1g", *place, url))
        _told(worker, r"(Successfully registered with master)")
        yield url


def test_a_cluster_gives_the_same_verdict(master: str, spark: object, tmp_path: Path) -> None:
    history = generate(44)
    plant_lost_write(history)
    run = history.write(tmp_path / "run")
    submit = [str(BIN / "spark-submit"), "--master", master, "--conf", "spark.driver.host=127.0.0.1"]
    submit += ["--executor-memory", "1g", str(ROOT / "reports" / "judge.py"), str(run)]
    done = subprocess.run(submit, capture_output=True, text=True, env=ENVIRONMENT, timeout=600, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    told = json.loads((run / "report" / "verdict.json").read_text(encoding="utf-8"))
    (here,) = verdicts_of([run], spark)  # type: ignore[arg-type]
    assert {one["name"]: (one["status"], one["anomalies"]) for one in told["guarantees"]} == {
        one.name: (one.status, one.anomalies) for one in here.guarantees
    }
    assert [one.name for one in here.guarantees if one.status == "broken"] == ["lost-write", "unseen"]
