"""A judge that stands ready when a run ends: Spark has started, Java is warm and the queries are planned by then.

It is a process of its own, which is started with the run. While it waits it takes what the load leaves of the
processors. When the run ends it gets the folders, and as many processors as anybody else.
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
from reports.expected import Expected
from reports.judge import Progress, judge_many, silent
from reports.manifest import ManifestError
from reports.parent import end_with_parent
from reports.verdict import Verdict

NICEST = 19
"""The lowest scheduling priority (nice)."""
NICER_FOR_GOOD = 5
"""How much nicer a judge gets that may not go back. Beside a busy process it has a quarter of the processor then; with
the nicest level it would have a hundredth, and a verdict on a busy machine would take minutes."""
AUTOGROUP_TRIES, AUTOGROUP_PAUSE_S = 5, 0.1
"""Linux refuses to change the level of an autogroup more often than ten times a second."""
LONG_LOAD_S = 40.0
"""Beside a shorter load the judge has no time to gain by Java's second compiler."""
SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
"""Tells Spark where to keep what it spills. Whoever kills Spark must remove it."""
_PROGRESS, _VERDICTS, _REFUSED = "progress", "verdicts", "refused"


class WaitingJudge:
    """A context manager. The judge ends with the block, also if it was never asked, or with the process that made it.

    Nothing depends on it: whoever asks it gets the same verdicts, sooner or later.
    """

    def __init__(self, expected: Expected | None = None, run_dir: Path | None = None, load_s: float = 0.0) -> None:
        """``run_dir`` is the folder of a run that goes on. All runs that are still to end offer load for so long."""
        context = get_context("spawn")
        self._scratch = tempfile.TemporaryDirectory(prefix="crucible-judge-", ignore_cleanup_errors=True)
        self._link, theirs = context.Pipe()
        told = (theirs, self._scratch.name, expected or Expected(), run_dir, load_s)
        self._process = context.Process(target=_wait, args=(os.getpid(), *told))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge_many(self, run_dirs: Sequence[Path], progress: Progress = silent) -> list[Verdict]:
        """As ``reports.judge.judge_many``. A large history is judged in this process, because it needs another Java;
        and so is any if the judge has died."""
        from reports.schema import history_bytes
        from reports.spark import SMALL_HISTORY_BYTES

        folders = [Path(one).resolve() for one in run_dirs]
        if history_bytes(folders) < SMALL_HISTORY_BYTES:
            try:
                assert self._process.pid is not None, "it was started"
                self._link.send(folders)  # First: a judge that steps back after that sees that it was asked.
                step_forward(self._process.pid, like=os.getpid())
                return self._answer(progress)
            except (EOFError, OSError):
                progress("the judge that was started with the run has died; another begins anew")
        self.close()
        return judge_many(folders, progress=progress)

    def _answer(self, progress: Progress) -> list[Verdict]:
        while True:
            kind, told = self._link.recv()
            if kind == _PROGRESS:
                progress(told)
            elif kind == _REFUSED:
                raise told
            else:
                verdicts: list[Verdict] = told
                return verdicts

    def close(self) -> None:
        """Kills the judge and its Java, which have nothing to lose. It may be called again."""
        self._link.close()
        assert self._process.pid is not None, "it was started"
        with suppress(ProcessLookupError):  # It has no group of its own yet, and no Java, or it is gone.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._scratch.cleanup()


def _wait(
    parent: int,
    link: "Connection[Any, Any]",
    scratch: str,
    expected: Expected,
    run_dir: Path | None,
    load_s: float,
) -> None:
    """What the judge's process does. It ends with all that it has started, or whoever asked it would wait for ever."""
    os.setsid()  # Ctrl-C does not reach it, and what it starts can be ended with it.
    end_with_parent(parent)
    try:
        _judge_when_asked(link, scratch, expected, run_dir, load_s)
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
    except Exception:  # A bug of ours: whoever asked begins anew, and the traceback is for those who mend it.
        traceback.print_exc()
    finally:
        os.killpg(0, signal.SIGKILL)


def _judge_when_asked(
    link: "Connection[Any, Any]", scratch: str, expected: Expected, run_dir: Path | None, load_s: float
) -> None:
    os.environ[SPARK_FOLDERS] = scratch
    tempfile.tempdir = scratch  # It is killed and tidies nothing up.
    step_back()
    if link.poll():
        step_forward(os.getpid(), like=os.getppid())
    from reports.rehearsal import rehearsing
    from reports.spark import spark_session

    lock = Lock()

    def tell(kind: str, what: Any) -> None:
        with lock:
            link.send((kind, what))

    def tell_progress(text: str) -> None:
        tell(_PROGRESS, text)

    with spark_session(lives_long=load_s >= LONG_LOAD_S) as spark, rehearsing(spark, expected) as rehearsal:
        rehearsal.prepare(link.poll, run_dir)
        while True:
            try:
                folders = link.recv()
            except EOFError:
                return
            step_forward(os.getpid(), like=os.getppid())  # Again, for what was being started when the other one did it.
            try:
                tell(_VERDICTS, judge_many(folders, spark=spark, progress=tell_progress, rehearsal=rehearsal))
            except (SetupError, ManifestError) as error:
                tell(_REFUSED, error)


# Priorities


def step_back() -> None:
    """Leave the processors to others until ``step_forward``. This process must lead a session of its own, and be about
    to start all others of it.

    Linux gives each session a share of the processors (its autogroup) where no control group does that, and everybody
    may change the level of an own one, up and down. Nice levels count inside the session then. Elsewhere they count
    among all processes, but only root may lower one again, or a process whose RLIMIT_NICE allows it. The same holds for
    leaving SCHED_IDLE (sched(7)), and SCHED_BATCH leaves nothing to others.
    """
    _set_autogroup(os.getpid(), NICEST)
    os.nice(NICEST if _may_go_back() else NICER_FOR_GOOD)


def step_forward(leader: int, like: int) -> None:
    """Give the session that ``leader`` leads the level of the process ``like`` (both by ID), as far as is allowed."""
    with suppress(OSError):  # One of them is gone.
        level = os.getpriority(os.PRIO_PROCESS, like)
        _set_autogroup(leader, max(level, 0))
        for group in _groups_of_session(leader):
            with suppress(OSError):  # It is gone, or may not: then it is only a little nicer.
                os.setpriority(os.PRIO_PGRP, group, level)


def _groups_of_session(leader: int) -> set[int]:
    """The process groups of a session. Spark's Python workers have one of their own."""
    groups: set[int] = set()
    for process in psutil.pids():
        with suppress(OSError):  # It is gone, or belongs to somebody else.
            if os.getsid(process) == leader:
                groups.add(os.getpgid(process))
    return groups


def _set_autogroup(process: int, level: int) -> None:
    group = Path(f"/proc/{process}/autogroup")
    for _ in range(AUTOGROUP_TRIES):
        try:
            if group.read_text().split()[-1] == str(level):
                return
            group.write_text(str(level))
        except BlockingIOError:
            time.sleep(AUTOGROUP_PAUSE_S)
        except OSError:  # Another system, or a kernel without autogroups.
            return
        else:
            return


def _may_go_back() -> bool:
    """Try it with a thread, since threads have levels of their own in Linux."""
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
