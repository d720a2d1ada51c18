"""A run whose load generator is no longer what it was must not look like a good one."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.fleet.fleet_command import FleetRun
from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.spec import FleetSpec, write_spec
from bench.locust.processes import ROOT, SPEC_VARIABLE, LocustProcesses, WorkerDiedError
from bench.ports import free_port
from scenarios.load import Load

REPORT = {"locust": "report", "workers": 2, "failure": "", "ended_early": 0, "ok": 5, "closed": 0}

SILENCE = """
import bench.fleet.locustfile
import gevent, sys
from locust.env import Environment
at = ("127.0.0.1", int(sys.argv[1]))
master = Environment(user_classes=[]).create_master_runner(*at)
worker = Environment(user_classes=[]).create_worker_runner(*at)
with gevent.Timeout(20):
    while not master.clients.ready:
        gevent.sleep(0.05)
print(master.clients.ready[0].heartbeat)
"""
"""Prints after how many seconds of silence Locust's master takes a worker for gone, and ends the load."""


def processes_that_reported(tmp_path: Path, **changes: Any) -> LocustProcesses:
    locust = LocustProcesses(tmp_path, 2, 2, tmp_path / "spec.json", tmp_path)
    locust._read_reports(io.StringIO(json.dumps(REPORT | changes) + "\n" + json.dumps(REPORT) + "\n"))
    return locust


def test_reports_are_added_up(tmp_path: Path) -> None:
    assert processes_that_reported(tmp_path).report() == {"ok": 5, "closed": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failure": "the history could not be written: disk full"}, "worker failed: the history could not be written"),
        ({"ended_early": 2}, "2 of the clients ended before they were stopped"),
    ],
)
def test_failure_is_not_forgotten_by_the_next_report(
    tmp_path: Path, changes: dict[str, int | str], message: str
) -> None:
    with pytest.raises(WorkerDiedError, match=message):
        processes_that_reported(tmp_path, **changes).report()


def test_failing_sink_is_reported_before_close(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where the folder should be")
    sink = ParquetSink(tmp_path, "worker-0", start_thread=lambda _: None)
    sink._items.put(("operations", [], 0))
    sink._items.put(None)
    sink._work()
    assert "could not be written" in sink.failure
    with pytest.raises(OSError, match="could not be written"):
        sink.close()


@pytest.mark.live
def test_worker_that_is_silent_for_a_while_does_not_end_the_load(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    write_spec(FleetSpec(["127.0.0.1:1"], Load(seconds=1)), spec)
    environment = {**os.environ, SPEC_VARIABLE: str(spec)}
    command = [sys.executable, "-c", SILENCE, str(free_port())]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert int(printed.stdout.split()[-1]) >= 50


def test_load_event_counts_all_kinds_of_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetRun, "_wait", lambda *_: True)
    run = FleetRun(FleetSpec(["127.0.0.1:1"], Load(seconds=0.01), out_dir=str(tmp_path), workers=3), hold=False)
    locust: Any = SimpleNamespace(wait_until_ready=lambda: None, send_command=lambda _: None, report=lambda: None)
    run._load(locust)
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert line["event"] == "load"
    assert line["workers"] == 3
    assert line["producers"] == 0
    assert line["transactional_workers"] == 0
