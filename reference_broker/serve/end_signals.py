"""SIGTERM, SIGINT, SIGHUP: the first one asks for a clean end, and further ones change nothing."""

import signal
import threading
from collections.abc import Callable

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def await_end_signals(told: Callable[[], None]) -> None:
    """Calls ``told`` when the first of these signals comes, in a thread of its own.

    The signals stay blocked for good in this thread and in those that it starts from now on. So no handler runs in the
    middle of other code, a flood of signals costs nothing, and none that comes while the interpreter ends can kill a
    process that has ended cleanly. Child processes inherit what is blocked: ``let_signals_end_me`` is for those that
    do not call this function themselves.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup makes it ignored.
    awaited = END_SIGNALS[:-1] if ignored else END_SIGNALS
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)

    def wait() -> None:
        signal.sigwait(awaited)
        told()

    threading.Thread(target=wait, name="end-signals", daemon=True).start()


def let_signals_end_me() -> None:
    """Lets the signals end a new process, before it becomes another program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
