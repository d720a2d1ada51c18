"""A second process that draws figures, one after the other, for the process that started it (its owner).

It is a program of its own, ``python -m reports.plots.drawing_process MODULE``, because ``multiprocessing`` would import
its owner's program again. It imports MODULE when it starts. It is kept for the next page, since its start takes a
second, and ends when its owner does.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import IO, TypeVar

T = TypeVar("T")


class DrawingProcessError(Exception):
    """The process has died."""


class DrawingProcess:
    """The process, as its owner sees it. Only one thread at a time may use it."""

    def __init__(self, module: str) -> None:
        """Start it, and let it import ``module``, so that the first figure need not wait for that. It need not be ready
        when this returns."""
        # Without -P Python would first look into the user's current folder for the modules that it imports.
        words = [sys.executable, "-P", "-m", "reports.plots.drawing_process", module]
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings)
        assert self._process.stdin is not None and self._process.stdout is not None, "they are pipes"  # noqa: PT018
        self._tasks: IO[bytes] = self._process.stdin
        self._results: IO[bytes] = self._process.stdout
        atexit.register(self.close)

    def call(self, task: Callable[[], T]) -> T:
        """Call ``task``, which must be picklable, in the process. Return its result, or raise its error.

        Raise DrawingProcessError if the process dies.
        """
        try:
            pickle.dump(task, self._tasks)
            self._tasks.flush()
            result, error = pickle.load(self._results)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as wrong:
            raise DrawingProcessError from wrong
        if error is not None:
            raise error
        returned: T = result
        return returned

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.kill()
        self._process.wait()
        for pipe in (self._tasks, self._results):
            with suppress(OSError):  # Unread data cannot be sent any more.
                pipe.close()


def main() -> None:
    """Run the owner's tasks until it closes the pipe. What they print goes to stderr."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Its owner decides.
    import_module(sys.argv[1])

    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = pickle.dumps((task(), None))
        except Exception as error:
            result = pickle.dumps((None, error))
        try:
            results.write(result)
            results.flush()
        except BrokenPipeError:
            os._exit(0)  # Its owner has ended.


if __name__ == "__main__":
    main()
