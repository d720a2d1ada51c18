"""Child processes that always end with their parent.

``subprocess.Popen(..., preexec_fn=ends_with_me())`` starts one. On Linux the kernel then sends it SIGKILL when its
starter is gone. That also ends a stopped process (SIGSTOP), which could not end itself. Other systems have no such
call: there a process ends only if it watches a pipe that its starter holds, as nodes do with their stdin.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psutil

PR_SET_PDEATHSIG: Final = 1
CHILDREN_END_WITHIN_S: Final = 5.0
_PRCTL: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""It is looked up here, because a new process must not load a library before it becomes another program."""


def ends_with_me() -> Callable[[], None]:
    """Return what the new process must run before it becomes another program.

    The kernel watches the *thread* that starts the process. So the thread must live as long as the process may.
    """
    starter = os.getpid()

    def prepare() -> None:
        if _PRCTL is None:
            return
        _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:  # It was gone before the kernel knew of our wish.
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def children() -> "set[psutil.Process]":
    """Return the processes that this one has started and that run, with those that they have started."""
    import psutil

    return {*psutil.Process().children(recursive=True)}


def end_children(earlier: "Set[psutil.Process]") -> None:
    """Kill all processes that this one has started since ``earlier`` was taken and that still run, and wait for them. A
    stop (Ctrl-C, SIGTERM) may arrive while one is being started; then only this function can end it. Processes of
    ``earlier`` belong to other code in this process, such as Spark."""
    import psutil

    later = [*children() - earlier]
    for child in later:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(later, CHILDREN_END_WITHIN_S)


def stop_behind(failure: BaseException) -> KeyboardInterrupt | None:
    """Return the stop on whose way out this failure came up, if there is one. It is no failure of its own then."""
    at: BaseException | None = failure
    while at is not None and not isinstance(at, KeyboardInterrupt):
        at = at.__context__
    return at
