"""A run whose load generator is no longer what it was must not look like a good one."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.processes import LocustProcesses, WorkerDiedError
from bench.fleet.spec import FleetSpec
from scenarios.load import Load

REPORT = {"fleet": "report", "workers": 2, "failure": "", "ended_early": 0, "ok": 5, "closed": 0}


def processes_that_reported(tmp_path: Path, **changes: Any) -> LocustProcesses:
    locust = LocustProcesses(FleetSpec(["127.0.0.1:1"], Load(seconds=1)), tmp_path / "spec.json", tmp_path)
    locust._read_reports(io.StringIO(json.dumps(REPORT | changes) + "\n" + json.dumps(REPORT) + "\n"))
    return locust


def test_reports_are_added_up(tmp_path: Path) -> None:
    assert processes_that_reported(tmp_path).report() == {"ok": 5, "closed": 0}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"failure": "the history could not be written: disk full"}, "worker failed: the history could not be written"),
        ({"ended_early": 2}, "2 of the clients ended before they were told to"),
    ],
)
def test_a_failure_is_not_forgotten_by_the_next_report(
    tmp_path: Path, changes: dict[str, int | str], told: str
) -> None:
    with pytest.raises(WorkerDiedError, match=told):
        processes_that_reported(tmp_path, **changes).report()


def test_a_sink_that_cannot_write_says_so_before_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where the folder should be")
    sink = ParquetSink(tmp_path, "worker-0", start_thread=lambda _: None)
    sink._items.put(("operations", [], 0))
    sink._items.put(None)
    sink._work()
    assert "could not be written" in sink.failure
    with pytest.raises(OSError, match="could not be written"):
        sink.close()
