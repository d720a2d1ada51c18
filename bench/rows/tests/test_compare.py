"""A run goes on when a measurement fails, and says so."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.peers.node import PeerError
from bench.rows import compare
from bench.rows.context import BenchRun
from bench.rows.options import Options
from bench.rows.results import Figure, ResultRow


def _measures(run: BenchRun) -> None:
    run.progress("measured")
    run.results.rows.append(ResultRow(f"{len(run.systems)} in {run.folder.exists()}", Figure((1.0,), "s")))


def _fails(*_: object) -> None:
    raise PeerError("it hung")


def _has_a_bug(*_: object) -> None:
    raise AssertionError("ours")


def test_other_rows_are_measured_when_one_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MEASURES", {"ladder": _measures, "start": _fails, "memory": _measures})
    lines: list[str] = []
    results = compare.run(lines.append, Options("kafka", ("ladder", "start", "memory")))
    assert [row.work for row in results.rows] == ["2 in True"] * 2
    assert results.missing == {"start": "PeerError: it hung"}
    assert any("start could not be measured" in line for line in lines)


def test_own_bug_is_not_reported_as_broker_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MEASURES", {"ladder": _has_a_bug})
    with pytest.raises(AssertionError, match="ours"):
        compare.run(lambda _: None, Options(None, ("ladder",)))


class Stop(KeyboardInterrupt):
    """The exception of the command line at a signal."""


WRITER = """
import pathlib, sys
for number in range(10 ** 9):
    folder = pathlib.Path(sys.argv[1]) / "node-0" / str(number % 50)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").touch()
"""


@pytest.mark.live
@pytest.mark.parametrize("also_fails", [False, True])
def test_stop_ends_run_and_unregistered_process(monkeypatch: pytest.MonkeyPatch, also_fails: bool) -> None:
    """The stop may come while a process is being started. That one writes into the folder which is removed. A process
    that was there before the run, such as Spark's, goes on."""
    earlier = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def stopped(run: BenchRun) -> None:
        folder = run.folder
        try:
            child = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)])
            seen.append((folder, child))
            while not (folder / "node-0" / "40").exists():
                assert child.poll() is None
            raise Stop
        finally:
            if also_fails:
                raise PeerError("the broker did not respond when its session was closed")

    monkeypatch.setattr(compare, "MEASURES", {"ladder": stopped, "start": _has_a_bug})
    try:
        with pytest.raises(Stop):
            compare.run(lambda _: None, Options(None, ("ladder", "start")))
        ((folder, child),) = seen
        assert not psutil.pid_exists(child.pid)
        assert not folder.exists()
        assert earlier.poll() is None
    finally:
        for child in (earlier, *(each for _, each in seen)):
            child.kill()
            child.wait()
        assert earlier.stdin is not None
        earlier.stdin.close()
