"""SIGTERM, SIGINT, SIGHUP: the first asks for a clean end, further ones change nothing until the process is gone."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def end_signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """Calls ``end`` in the loop for each of these signals, inside the block. After the block they are ignored for good.

    Otherwise the system's handlers would return when the loop closes, and a second SIGTERM would kill a node that has
    ended cleanly.
    """

    def told(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(end)

    for number in END_SIGNALS:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # Ignored: under nohup.
            signal.signal(number, told)
    try:
        yield
    finally:
        ignore_end_signals()


def ignore_end_signals() -> None:
    """Blocks the signals first, so that earlier ones are handled and none comes between a handler and its removal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
