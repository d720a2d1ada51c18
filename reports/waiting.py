"""A judge that stands ready when a run ends: Spark has started, Java is warm and the queries are planned by then.

It is a process of its own, which is started with the run. It has the lowest priority, so it takes what the load
leaves of the processors. When the run ends it gets the folders.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, Self

from reports.errors import SetupError
from reports.expected import Expected
from reports.judge import Progress, judge_many, silent
from reports.manifest import ManifestError
from reports.parent import end_with_parent
from reports.verdict import Verdict

LOWEST_PRIORITY = 19
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
                self._link.send(folders)
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
    os.nice(LOWEST_PRIORITY)
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
            try:
                tell(_VERDICTS, judge_many(folders, spark=spark, progress=tell_progress, rehearsal=rehearsal))
            except (SetupError, ManifestError) as error:
                tell(_REFUSED, error)
