"""A second process that draws, one figure after the other, what its owner sends it.

It is a program of its own, ``python -m reports.plots.helper``, because ``multiprocessing`` would import its owner's
program anew. It is kept for the next page, since its start takes a second. It ends when its owner does.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import IO, TypeVar

T = TypeVar("T")


class HelperError(Exception):
    """It has died."""


class Helper:
    """The process, as its owner sees it. One thread at a time may ask it."""

    def __init__(self) -> None:
        # Without -P Python would first look into the user's current folder for the modules that it imports.
        words = [sys.executable, "-P", "-m", "reports.plots.helper"]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=found)
        assert self._process.stdin is not None and self._process.stdout is not None, "they are pipes"  # noqa: PT018
        self._tasks: IO[bytes] = self._process.stdin
        self._results: IO[bytes] = self._process.stdout
        atexit.register(self.close)

    def ask(self, task: Callable[[], T]) -> T:
        """Has it call ``task``, which must be such as can be pickled. Raises what that raises, or HelperError."""
        try:
            pickle.dump(task, self._tasks)
            self._tasks.flush()
            result, error = pickle.load(self._results)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as wrong:
            raise HelperError from wrong
        if error is not None:
            raise error
        answer: T = result
        return answer

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.kill()
        self._process.wait()
        for pipe in (self._tasks, self._results):
            with suppress(OSError):  # What nobody has read cannot be sent any more.
                pipe.close()


@cache
def helper() -> Helper:
    """The one of this process. It need not be ready yet."""
    return Helper()


def forget_helper() -> None:
    """The next one to ask for it gets another."""
    broken = helper()
    helper.cache_clear()
    broken.close()


def main() -> None:
    """Answers its owner until that closes the pipe. What is printed goes to stderr."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Its owner decides.
    import reports.plots.catalogue  # noqa: F401  # so that the first figure need not wait for matplotlib

    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            told = pickle.dumps((task(), None))
        except Exception as error:
            told = pickle.dumps((None, error))
        try:
            results.write(told)
            results.flush()
        except BrokenPipeError:
            os._exit(0)  # Its owner has ended.


if __name__ == "__main__":
    main()
