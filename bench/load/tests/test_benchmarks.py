"""Whole benchmarks on brokers that run: the reference broker, and one that nobody finds."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from bench.load.comparison import FIGURES, Entry
from bench.load.options import LoadError, LoadOptions
from bench.load.run import run
from bench.load.target import started
from bench.load.workload import workload_of

pytestmark = pytest.mark.live
BURNERS = 12
OPTIONS = LoadOptions(seconds=3, warmup_s=1, workers=2)


def test_workload_on_the_reference_broker(tmp_path: Path) -> None:
    table = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 5_000, "subscriptionsPerTopic": 2}
    lines: list[str] = []
    with started("reference", lines.append) as target:
        result = run(workload_of(table, "w", "w"), target, OPTIONS, tmp_path, lines.append)
        with pytest.raises(LoadError, match="INVALID_REPLICATION_FACTOR"):
            run(workload_of(table, "w", "w"), target, LoadOptions(replication=3), tmp_path, lines.append)
        wrong = {**table, "crucible": {"topicConfig": {"cleanup.policy": "wild"}}}
        with pytest.raises(LoadError, match=r"refuse topics with INVALID_CONFIG \(cleanup.policy is 'wild'"):
            run(workload_of(wrong, "w", "w"), target, OPTIONS, tmp_path, lines.append)
    assert result.findings.is_clean
    assert result.findings.acknowledged == result.findings.read > 2 * 5_000
    assert not result.unfinished
    assert result.samples("end_to_end") > 0
    assert result.brokers_cpu_s > 0
    assert any("load, " in line for line in lines)


@pytest.mark.nightly
def test_worker_that_other_programs_starve_ends_invalid(tmp_path: Path) -> None:
    """It shares one core with twelve processes that burn it. The rate is one that it sends easily alone."""
    burners: list[subprocess.Popen[bytes]] = []

    def starve() -> None:
        me = psutil.Process()
        workers: list[psutil.Process] = []
        while not workers:
            workers = [child for child in me.children(recursive=True) if "--worker" in child.cmdline()]
            time.sleep(0.1)
        for thread in workers[0].threads():
            os.sched_setaffinity(thread.id, [0])
        while len(burners) < BURNERS:
            # In sessions of their own, since Linux shares processors among sessions first (sched_autogroup).
            each = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
            os.sched_setaffinity(each.pid, [0])
            burners.append(each)

    table = {"partitionsPerTopic": 4, "messageSize": 1000, "producerRate": 15_000}
    options = LoadOptions(seconds=6, warmup_s=6)
    try:
        with started("reference", lambda _: None) as target:
            threading.Thread(target=starve, daemon=True).start()
            result = run(workload_of(table, "w", "w"), target, options, tmp_path, lambda _: None)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert len(burners) == BURNERS
    assert result.findings.is_clean
    assert result.outcome == "INVALID"
    assert result.reason.startswith("The load generator was the limit")


@pytest.mark.rotated(4, "load")
def test_reader_catches_up_from_the_remote_tier(tmp_path: Path) -> None:
    own = {
        "readFromStart": True,
        "topicConfig": {"remote.storage.enable": True, "segment.bytes": 1 << 20, "local.retention.bytes": 1 << 20},
        "brokerConfig": {
            "remote.log.storage.system.enable": True,
            "remote.log.manager.task.interval.ms": 200,
            "log.retention.check.interval.ms": 200,
        },
    }
    table = {"messageSize": 1000, "producerRate": 4_000, "crucible": own}
    workload = workload_of(table, "w", "w")
    with started("reference", lambda _: None, workload.crucible.broker_settings) as target:
        result = run(workload, target, LoadOptions(seconds=3, warmup_s=5), tmp_path, lambda _: None)
        assert target.folder is not None
        segments = list((target.folder / "tier").rglob("*.log"))
    assert segments
    assert result.findings.is_clean
    assert result.catch_up is not None
    assert result.catch_up.records > 2_000


@pytest.mark.rotated(4, "load")
def test_transactions_on_the_reference_broker(tmp_path: Path) -> None:
    transactions = {"seconds": 0.05, "abortRatio": 0.25}
    table = {"partitionsPerTopic": 4, "messageSize": 200, "producerRate": 2_000}
    workload = workload_of({**table, "crucible": {"transactions": transactions}}, "w", "w")
    with started("reference", lambda _: None) as target:
        result = run(workload, target, OPTIONS, tmp_path, lambda _: None)
    assert result.findings.is_clean
    assert result.findings.acknowledged == result.findings.read > 2_000
    assert result.rate("aborted") > 200
    assert result.rate("transactions") > 2
    figures = {figure.name for figure in FIGURES if figure.value(Entry(result)) is not None}
    assert {"transactions committed", "aborted by the plan"} <= figures
