"""Codec work for large messages, in a thread beside the event loop. A list of 50,000 names takes a tenth of
a second."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

ASIDE_FROM_BYTES: Final = 64 << 10
"""Requests of this size and more are decoded aside, and so are their answers. Smaller ones cost less than the hand-over
to a thread is worth."""
SWITCH_S: Final = 0.0005
"""How long the event loop waits for the interpreter while the thread works. By default it would wait ten times as long,
after each call of the system."""

ResultT = TypeVar("ResultT")


class Aside:
    """One piece of work at a time, in the order in which they came. It touches nothing of the node's state."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="codec")
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

        def hand_over(future: "Future[ResultT]") -> None:
            if not future.cancelled():
                with suppress(RuntimeError):  # The loop is closed: the node has ended.
                    self._loop.call_soon_threadsafe(finished, future.result())

        self._executor.submit(work).add_done_callback(hand_over)

    def close(self) -> None:
        """What has not begun never does."""
        self._executor.shutdown(wait=False, cancel_futures=True)
