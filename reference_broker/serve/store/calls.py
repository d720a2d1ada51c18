"""Carries out StoreCall effects in threads of its own, and gives each answer as an event.

The threads do not keep a process from ending: whoever ends does not wait for a store that is silent.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol

from reference_broker.core.effects import StoreCall
from reference_broker.core.events import StoreDone, StoreFailed
from reference_broker.core.store import store_event
from reference_broker.ports.store import FailureKind, PutFile, StoreAnswer, StoreFailure, StoreOperation

THREADS: Final = 8
FILE_THREADS: Final = 4
"""Files are put in threads of their own, since a large one must not delay reads."""
END_LIMIT_S: Final = 1.0


class Carries(Protocol):
    """The part of ``Objects`` that is needed here."""

    def carry_out(self, operation: StoreOperation, progress: Callable[[], None]) -> StoreAnswer | StoreFailure: ...


@dataclass(slots=True, eq=False)
class _Running:
    """``steps`` counts the signs of life, and ``seen`` those that the watch has seen."""

    call: StoreCall
    steps: int = 0
    seen: int = -1

    def step(self) -> None:
        self.steps += 1


class StoreThreads:
    """A call without a sign of life for ``limit_s`` is answered as ``unavailable``. What it comes to later is left
    out."""

    def __init__(
        self,
        store: Carries,
        loop: asyncio.AbstractEventLoop,
        give: Callable[[StoreDone | StoreFailed], None],
        limit_s: float,
    ) -> None:
        self._store = store
        self._loop = loop
        self._give = give
        self._limit_s = limit_s
        self._running: dict[int, _Running] = {}
        self._calls: SimpleQueue[_Running | None] = SimpleQueue()
        self._files: SimpleQueue[_Running | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def start(self, call: StoreCall) -> None:
        if not self._threads:
            self._start_threads()
        running = self._running[call.token] = _Running(call)
        (self._files if isinstance(call.operation, PutFile) else self._calls).put(running)
        self._loop.call_later(self._limit_s, self._watch, running)

    def close(self) -> None:
        """Gives no more events. Waits a moment for what runs, so that no thread wakes in a process that is ending."""
        self._closed = True
        for thread in self._threads:
            (self._files if thread.name == "store-file" else self._calls).put(None)
        for thread in self._threads:
            thread.join(END_LIMIT_S / len(self._threads))

    def _start_threads(self) -> None:
        for name, count, calls in (("store", THREADS, self._calls), ("store-file", FILE_THREADS, self._files)):
            for _ in range(count):
                thread = threading.Thread(target=self._work, args=(calls,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self, calls: "SimpleQueue[_Running | None]") -> None:
        while (running := calls.get()) is not None and not self._closed:
            if running.call.token not in self._running:
                continue
            running.step()
            answer = self._store.carry_out(running.call.operation, running.step)
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._answered, running, answer)

    def _answered(self, running: _Running, answer: StoreAnswer | StoreFailure) -> None:
        if self._running.pop(running.call.token, None) is not None and not self._closed:
            self._give(store_event(running.call.token, answer))

    def _watch(self, running: _Running) -> None:
        if self._closed or running.call.token not in self._running:
            return
        if running.steps != running.seen:
            running.seen = running.steps
            self._loop.call_later(self._limit_s, self._watch, running)
        else:
            self._answered(running, StoreFailure(FailureKind.UNAVAILABLE, f"no answer within {self._limit_s:g} s"))
