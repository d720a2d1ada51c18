"""Codec work for large messages, in a thread beside the event loop. A list of 50,000 names takes a tenth of
a second."""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, TypeVar

ASIDE_FROM_BYTES: Final = 64 << 10
"""Requests of this size and more are decoded aside, and so are their answers. Smaller ones cost less than the hand-over
to a thread is worth."""
SWITCH_S: Final = 0.0005
"""How long the event loop waits for the interpreter while the thread works. By default it would wait ten times as long,
after each call of the system."""

ResultT = TypeVar("ResultT")


class Aside:
    """One piece of work at a time, in the order in which they came. It touches nothing of the node's state.

    The thread starts with the first piece. It is a daemon, so that the end of the process does not wait for its work.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._usual_s = sys.getswitchinterval()
        self._under_way = 0

    def run(self, work: Callable[[], ResultT], done: Callable[[ResultT], None]) -> None:
        """Calls ``done`` with the result, later and in the event loop. ``work`` must not raise."""
        self._under_way += 1
        sys.setswitchinterval(SWITCH_S)

        def finished(result: ResultT) -> None:
            self._under_way -= 1
            if not self._under_way:
                sys.setswitchinterval(self._usual_s)
            done(result)

        def piece() -> None:
            result = work()
            with suppress(RuntimeError):  # The loop is closed: the node has ended.
                self._loop.call_soon_threadsafe(finished, result)

        self._work.put(piece)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work_on, name="codec", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """The thread ends after the work that was asked for."""
        self._work.put(None)

    def _work_on(self) -> None:
        while (piece := self._work.get()) is not None:
            piece()
