"""A process that is ready to compute verdicts when a run ends: Spark runs, Java is warm and the queries are planned.

It starts with the run. During the run it has a low priority, so it uses mostly idle processor time. When the run
ends it gets the folders, and a normal priority.
"""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Self

import psutil

from reports.errors import SetupError
from reports.judge import Progress, report_runs, silent
from reports.manifest import ManifestError
from reports.standby.expected import Expected
from reports.verdict import Verdict

NICEST = 19
"""The lowest scheduling priority (nice)."""
NICER_FOR_GOOD = 5
"""The nice level of a process that cannot raise its priority again. Beside a busy process it gets a quarter of the
processor then; with the nicest level it would get a hundredth, and a verdict on a busy machine would take minutes."""
AUTOGROUP_TRIES, AUTOGROUP_PAUSE_S = 5, 0.1
"""Linux refuses to change the level of an autogroup more than ten times a second."""
LONG_LOAD_S = 40.0
"""The length of a load from which on the session gains by Java's second compiler."""
SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
"""The environment variable that names the folder of Spark's spilled data. Remove the folder after killing Spark."""
_PROGRESS, _VERDICTS, _REFUSED = "progress", "verdicts", "refused"


class StandbySpark:
    """A context manager around the process. It ends with the block, or with the process that started it.

    It is optional: without it the verdicts are the same, only later.
    """

    def __init__(self, expected: Expected | None = None, run_dir: Path | None = None, load_s: float = 0.0) -> None:
        """Start the process. ``run_dir`` is the folder of the current run, and ``load_s`` the time for which this run
        and those after it offer load."""
        context = get_context("spawn")
        self._scratch = tempfile.TemporaryDirectory(prefix="crucible-standby-", ignore_cleanup_errors=True)
        self._link, theirs = context.Pipe()
        arguments = (os.getpid(), theirs, self._scratch.name, expected or Expected(), run_dir, load_s)
        self._process = context.Process(target=_run_process, args=arguments)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request_reports(self, run_dirs: Sequence[Path], progress: Progress = silent) -> list[Verdict]:
        """Let the process compute the verdicts and write the reports, as ``reports.judge.report_runs`` does.

        A large history is read in this process, because it needs a Java with more memory. So is any history if the
        other process has died.
        """
        from reports.schema import history_bytes
        from reports.spark import SMALL_HISTORY_BYTES

        folders = [Path(run_dir).resolve() for run_dir in run_dirs]
        if history_bytes(folders) < SMALL_HISTORY_BYTES:
            try:
                assert self._process.pid is not None, "it was started"
                # Before the priority: if the other lowers its own after this, it sees the request.
                self._link.send(folders)
                step_forward(self._process.pid, like=os.getpid())
                return self._verdicts(progress)
            except (EOFError, OSError):
                progress("the Spark session that was started with the run has died; another is started")
        self.close()
        return report_runs(folders, progress=progress)

    def _verdicts(self, progress: Progress) -> list[Verdict]:
        while True:
            kind, content = self._link.recv()
            if kind == _PROGRESS:
                progress(content)
            elif kind == _REFUSED:
                raise content
            else:
                verdicts: list[Verdict] = content
                return verdicts

    def close(self) -> None:
        """Kill the process and its Java, which have nothing to lose. Closing twice is allowed."""
        self._link.close()
        assert self._process.pid is not None, "it was started"
        with suppress(ProcessLookupError):  # It has no group of its own yet, and no Java, or it is gone.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._scratch.cleanup()


def _run_process(
    parent: int,
    link: "Connection[Any, Any]",
    scratch: str,
    expected: Expected,
    run_dir: Path | None,
    load_s: float,
) -> None:
    """Run the process until it is killed. It ends with all that it has started, or its owner would wait forever."""
    os.setsid()  # Ctrl-C does not reach it, and its children can be killed with it.
    end_with_parent(parent)
    try:
        _report_on_request(link, scratch, expected, run_dir, load_s)
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
    except Exception:  # A bug of ours: the owner computes the verdicts itself, and the traceback helps to mend it.
        traceback.print_exc()
    finally:
        os.killpg(0, signal.SIGKILL)


def _report_on_request(
    link: "Connection[Any, Any]", scratch: str, expected: Expected, run_dir: Path | None, load_s: float
) -> None:
    os.environ[SPARK_FOLDERS] = scratch
    tempfile.tempdir = scratch  # The process is killed and cleans nothing up.
    step_back()
    if link.poll():
        step_forward(os.getpid(), like=os.getppid())
    from reports.spark import spark_session
    from reports.standby.rehearsal import rehearsing

    lock = Lock()

    def send(kind: str, content: Any) -> None:
        with lock:
            link.send((kind, content))

    def send_progress(text: str) -> None:
        send(_PROGRESS, text)

    with spark_session(lives_long=load_s >= LONG_LOAD_S) as spark, rehearsing(spark, expected) as rehearsal:
        rehearsal.prepare(link.poll, run_dir)
        while True:
            try:
                folders = link.recv()
            except EOFError:
                return
            # Again, for processes that were starting when the owner did it.
            step_forward(os.getpid(), like=os.getppid())
            try:
                send(_VERDICTS, report_runs(folders, spark=spark, progress=send_progress, rehearsal=rehearsal))
            except (SetupError, ManifestError) as error:
                send(_REFUSED, error)


# Priorities


def step_back() -> None:
    """Leave the processors to other sessions until ``step_forward``. This process must lead a session of its own, and
    start all other processes of it afterwards.

    Linux gives each session a share of the processors (its autogroup) where no control group does that, and any user
    may change the level of their own one, up and down. Nice levels count inside the session then. Elsewhere they count
    among all processes, but only root may lower one again, or a process whose RLIMIT_NICE allows it. The same holds for
    leaving SCHED_IDLE (sched(7)), and SCHED_BATCH leaves nothing to others.
    """
    _set_autogroup(os.getpid(), NICEST)
    os.nice(NICEST if _may_go_back() else NICER_FOR_GOOD)


def step_forward(leader: int, like: int) -> None:
    """Give the session that ``leader`` leads the level of the process ``like`` (both are IDs), as far as permitted."""
    with suppress(OSError):  # One of them has ended.
        level = os.getpriority(os.PRIO_PROCESS, like)
        _set_autogroup(leader, max(level, 0))
        for group in _groups_of_session(leader):
            with suppress(OSError):  # It has ended, or this is not permitted: then it is only a little nicer.
                os.setpriority(os.PRIO_PGRP, group, level)


def _groups_of_session(leader: int) -> set[int]:
    """Return the process groups of a session. Spark's Python workers have one of their own."""
    groups: set[int] = set()
    for process in psutil.pids():
        with suppress(OSError):  # It has ended, or belongs to another user.
            if os.getsid(process) == leader:
                groups.add(os.getpgid(process))
    return groups


def _set_autogroup(process: int, level: int) -> None:
    group = Path(f"/proc/{process}/autogroup")
    for _ in range(AUTOGROUP_TRIES):
        try:
            shown = group.read_text().split()
            if not shown or shown[-1] == str(level):  # It is empty for a process that never began a session.
                return
            group.write_text(str(level))
        except BlockingIOError:
            time.sleep(AUTOGROUP_PAUSE_S)
        except OSError:  # Another system, or a kernel without autogroups.
            return
        else:
            return


def _may_go_back() -> bool:
    """Return whether a nice level may be lowered again. A thread tries it, since threads have their own in Linux."""
    tried: list[bool] = []

    def go() -> None:
        level = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, level + 1)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, level)
            tried.append(True)

    thread = Thread(target=go)
    thread.start()
    thread.join()
    return bool(tried)


PARENT_CHECKED_EVERY_S = 0.5


def end_with_parent(parent: int) -> None:
    """Kill the process group of this process, Java included, once the process ``parent`` (its ID) has ended.

    ``parent`` must have started this process, which must lead the group. This works even if ``parent`` was killed.
    """

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECKED_EVERY_S)
        os.killpg(0, signal.SIGKILL)

    Thread(target=wait, daemon=True).start()
