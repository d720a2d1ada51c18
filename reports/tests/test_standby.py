"""A standby session returns the verdict of one that is started at the end, and its process ends with the block."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pyarrow.parquet as pq
import pytest

from reports import schema
from reports.manifest import ManifestError
from reports.parts import Progress, part_of, write_progress
from reports.schema import files_of, history_bytes
from reports.standby.expected import SELDOM, Expected
from reports.standby.process import NICER_FOR_GOOD, StandbySpark, _may_go_back, step_forward
from reports.standby.rehearsal import Rehearsal, rehearsing, write_history
from reports.tests.played import generate
from reports.tests.test_judge_finds_anomalies import plant_lost_write
from reports.verdict import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_history_for_rehearsing_has_a_row_in_each_table(tmp_path: Path) -> None:
    write_history(tmp_path)
    assert all(files_of(tmp_path, table) for table in schema.TABLES)
    assert history_bytes([tmp_path]) < 80_000


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_rehearsal_reads_complete_parts_of_running_run(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []

    def rehearse(_: Rehearsal, folder: Path, __: object) -> str:
        seen.append(_rows_of(folder))
        return "found"

    monkeypatch.setattr(Rehearsal, "rehearse", rehearse)
    monkeypatch.setattr(Rehearsal, "_describe", lambda *_: None)
    monkeypatch.setattr("reports.standby.rehearsal.drawing_process", lambda: None)
    monkeypatch.setattr("reports.standby.rehearsal.decide", lambda *_: None)
    pages: list[object] = []
    monkeypatch.setattr("reports.standby.rehearsal.write_page", lambda *_: pages.append(_))
    generate(45).write(tmp_path)
    write_progress(tmp_path, Progress(writer="worker", parts=1, until_us=1_000_000))
    table = next(each for each in schema.TABLES if each.name == "operations")
    Path(files_of(tmp_path, table)[0]).rename(part_of(tmp_path, table, "worker"))
    with rehearsing(spark, Expected()) as rehearsal:
        rehearsal.prepare(lambda: False, tmp_path, passes=2)
        assert seen[0] == {each.name: 1 for each in schema.TABLES}
        assert seen[1]["operations"] == _rows_of(tmp_path)["operations"]
        assert len(pages) == 2
        calls = count()
        rehearsal.prepare(lambda: next(calls) > 0, tmp_path)
    assert len(seen) == len(pages) == 2


def _rows_of(folder: Path) -> dict[str, int]:
    files = {table.name: files_of(folder, table) for table in schema.TABLES}
    return {name: sum(pq.read_metadata(each).num_rows for each in some) for name, some in files.items() if some}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.rotated(8, "judges")
def test_standby_reports_refuses_and_ends(waiting: StandbySpark, tmp_path: Path) -> None:
    history = generate(45)
    plant_lost_write(history)
    lines: list[str] = []
    with pytest.raises(ManifestError):
        waiting.request_reports([tmp_path / "nothing"])
    (verdict,) = waiting.request_reports([history.write(tmp_path / "run")], lines.append)
    assert verdict.outcome is Outcome.FAILED
    assert [guarantee.name for guarantee in verdict.guarantees if guarantee.status == "broken"] == [
        "lost-write",
        "unseen",
    ]
    assert "the queries are planned already" in lines
    assert "judged lost-write" in lines
    assert verdict.report is not None
    assert verdict.report.exists()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.rotated(8, "judges")
def test_standby_that_fails_ends_with_all_that_it_started(capfd: pytest.CaptureFixture[str]) -> None:
    """The standby fails when Spark is ready, because of a wrong argument."""
    seen: dict[psutil.Process, str] = {}
    with StandbySpark("nonsense") as standby:  # type: ignore[arg-type]
        standby_process = psutil.Process(standby._process.pid)
        while standby._process.is_alive():
            with suppress(psutil.Error):
                seen.update({child: child.name() for child in standby_process.children(recursive=True)})
            time.sleep(0.1)
    assert "java" in seen.values()
    _, alive = psutil.wait_procs(list(seen), timeout=30)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in alive)
    assert "'str' object has no attribute" in capfd.readouterr().err


ALONE = (
    "import time; from reports.standby.process import StandbySpark;"
    "standby = StandbySpark(); print(standby._process.pid); time.sleep(60)"
)


@pytest.mark.live
def test_standby_ends_with_the_process_that_started_it_even_if_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-uc", ALONE], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        standby = psutil.Process(int(parent.stdout.readline()))
        assert standby.is_running()
        parent.kill()
    _, alive = psutil.wait_procs([standby], timeout=30)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


LEVELS = """
import os, subprocess, sys, threading, time
from pathlib import Path
import reports.standby.process
if sys.argv[1] == "nobody":
    os.setuid(65534)
os.setsid()

def shown(*children):
    def level(task):
        return int(task.read_text().rpartition(")")[2].split()[16])
    pids = [os.getpid(), *(each.pid for each in children)]
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    group = Path("/proc/self/autogroup")
    print(sorted({*map(level, tasks)}), len(tasks), group.read_text().split()[-1] if group.exists() else "-")

reports.standby.process.step_back()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
children = [subprocess.Popen(["sleep", "60"], process_group=group) for group in (None, 0)]
shown(*children)
reports.standby.process.step_forward(os.getpid(), os.getppid()) if sys.argv[1] == "nobody" else input()
shown(*children)
for child in children:
    child.kill()
"""


def levels_of(who: str) -> list[str]:
    """Run ``LEVELS``, and step forward for it when it waits, as a run does. One of its two children has a
    process group of its own, as Spark's Python workers do."""
    words = [sys.executable, "-c", LEVELS, who]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = process.stdout.readline()
        if who == "somebody":
            step_forward(process.pid, like=os.getpid())
            process.stdin.write("\n")
            process.stdin.flush()
        return [before.strip(), process.stdout.readline().strip()]


@pytest.mark.live
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the levels of threads from /proc")
def test_standby_steps_back_with_all_that_it_starts_and_forward_when_it_judges() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    waiting_at = 19 if _may_go_back() else min(own + NICER_FOR_GOOD, 19)
    judging_at = own if _may_go_back() else waiting_at
    group = Path("/proc/self/autogroup").exists()
    assert levels_of("somebody") == [
        f"[{waiting_at}] 4 {19 if group else '-'}",
        f"[{judging_at}] 4 {max(own, 0) if group else '-'}",
    ]


@pytest.mark.live
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become somebody without rights")
def test_standby_that_may_not_go_back_is_a_little_nicer_only() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    level = min(own + NICER_FOR_GOOD, 19)
    assert [line.rpartition(" ")[0] for line in levels_of("nobody")] == [f"[{level}] 4", f"[{level}] 4"]


def test_process_without_autogroup_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux shows an empty file for the processes of a session that began before there were autogroups, such as those
    of a container's init."""
    group = tmp_path / "autogroup"
    group.write_text("")
    monkeypatch.setattr("reports.standby.process.Path", lambda _: group)
    step_forward(os.getpid(), like=os.getpid())
    assert group.read_text() == ""


ON_REQUEST = """
import os, sys
from contextlib import contextmanager
from multiprocessing import Pipe
from types import SimpleNamespace
import reports.standby.rehearsal, reports.spark, reports.standby.process
from reports.standby.expected import Expected

def print_level(*_, **__):
    print(os.getpriority(os.PRIO_PROCESS, 0))

@contextmanager
def spark_session(**_):
    print_level()
    yield
    ours.close()

@contextmanager
def rehearsing(*_):
    yield SimpleNamespace(prepare=lambda *_: ours.send([]))

os.setsid()
ours, theirs = Pipe()
reports.spark.spark_session, reports.standby.rehearsal.rehearsing = spark_session, rehearsing
reports.standby.process.report_runs = lambda *_, **__: sys.exit(print_level())
if sys.argv[1] == "early":
    ours.send([])
reports.standby.process._report_on_request(theirs, sys.argv[2], Expected(), None, 0.0)
"""
"""The process without Spark. It prints its level when Spark starts and when it reports."""


@pytest.mark.live
@pytest.mark.parametrize("when", ["early", "late"])
def test_standby_steps_forward_by_itself_at_each_request(when: str, tmp_path: Path) -> None:
    """A run may end before its session has stepped back."""
    words = [sys.executable, "-c", ON_REQUEST, when, str(tmp_path)]
    levels = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    waiting_at = 19 if _may_go_back() else min(own + NICER_FOR_GOOD, 19)
    judging_at = own if _may_go_back() else waiting_at
    assert [int(level) for level in levels] == [judging_at if when == "early" else waiting_at, judging_at]


@pytest.mark.live
def test_standby_gets_the_folders_before_anybody_steps_forward_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the standby could lower its priority after that, and not see the request yet."""
    done: list[str] = []
    monkeypatch.setattr("reports.standby.process.step_forward", lambda *_, **__: done.append("forward"))
    monkeypatch.setattr(StandbySpark, "_verdicts", lambda *_: done.append("received"))
    with StandbySpark() as standby:
        monkeypatch.setattr(standby, "_link", SimpleNamespace(send=lambda _: done.append("sent")))
        standby.request_reports([tmp_path])
        monkeypatch.undo()
    assert done == ["sent", "forward", "received"]


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandbySpark]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    names = {name for name, rows in generate(45).tables.items() if rows}
    with StandbySpark(Expected((SELDOM & names,))) as standby:
        process = standby._process
        yield standby
    assert not process.is_alive()
    assert not list(tmp_path.glob("crucible-*"))
