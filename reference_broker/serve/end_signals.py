"""SIGTERM, SIGINT, SIGHUP: the first one asks for a clean end, and further ones change nothing."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def end_signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """Calls ``end`` in the loop when the first of these signals comes inside the block.

    From then on, and in any case after the block, they are ignored for good. Otherwise the system's handlers would
    return when the interpreter ends, and a second SIGTERM would kill a node that has ended cleanly.
    """

    def told(_number: int, _frame: FrameType | None) -> None:
        ignore_end_signals()
        loop.call_soon_threadsafe(end)

    for number in END_SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup makes it ignored.
            signal.signal(number, told)
    try:
        yield
    finally:
        ignore_end_signals()


def ignore_end_signals() -> None:
    """Ignores these signals for good. A handler of one of them calls it first.

    A signal that comes while a handler runs calls the handler again inside of itself. Signals that come fast enough
    would nest the calls until Python raises RecursionError.

    Blocking them first runs the handlers of those that have come, and lets none come between a handler and its removal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
