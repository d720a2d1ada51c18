"""Carries out Sync effects: opens the files in the event loop's thread, and syncs them in other threads."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from reference_broker.core.events import Sync, Synced, SyncFailed
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.process import is_out_of_descriptors

THREADS: Final = 4
DESCRIPTORS_PER_FILE: Final = 2
"""One for the file, and one for a folder with a new name."""
RETRY_AFTER_S: Final = 0.1
"""The pause before the retry of a sync that found no free descriptor."""

OpenedT = TypeVar("OpenedT")


class SyncedDisk(Protocol[OpenedT]):
    """The part of ``FileDisk`` that syncs need."""

    def open_for_sync(self, paths: Sequence[str]) -> OpenedT: ...

    def synchronise(self, opened: OpenedT, /) -> None:
        """Called in another thread."""
        ...

    def spare_descriptors(self) -> None:
        """Close files that can be opened again."""
        ...


class _Piece(NamedTuple):
    """Some files of a Sync."""

    sync: Sync
    start: int
    """The number of the first one."""


class FileSyncs(Generic[OpenedT]):
    """A sync of many files runs in pieces, at most THREADS of them at once. So ``max_descriptors`` bounds the number of
    descriptors.

    A sync that finds no free descriptor has not failed, because nothing is lost. It is retried until there is one.
    """

    def __init__(
        self,
        disk: SyncedDisk[OpenedT],
        loop: asyncio.AbstractEventLoop,
        log: LogLines,
        give: Callable[[Synced | SyncFailed], None],
        max_descriptors: int,
    ) -> None:
        self.delay_s = 0.0
        """The delay of each sync (a fault: a slow disk)."""
        self.delayed = 0
        self.files_per_piece = max(1, max_descriptors // (THREADS * DESCRIPTORS_PER_FILE))
        self._disk = disk
        self._loop = loop
        self._log = log
        self._give = give
        self._threads = ThreadPoolExecutor(THREADS, "sync")
        self._waiting: deque[_Piece] = deque()
        self._running = 0
        self._resting = False
        self._closed = False

    def start(self, sync: Sync) -> None:
        if self.delay_s:
            self.delayed += 1
            self._loop.call_later(self.delay_s, self._add, _Piece(sync, 0))
        else:
            self._add(_Piece(sync, 0))

    def close(self) -> None:
        """Wait for what runs, and start nothing more. No event is given after it."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _add(self, piece: _Piece) -> None:
        self._waiting.append(piece)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._running < THREADS and not self._resting and not self._closed:
            self._begin(self._waiting.popleft())

    def _begin(self, piece: _Piece) -> None:
        paths = piece.sync.paths[piece.start : piece.start + self.files_per_piece]
        try:
            opened = self._opened(paths)
        except OSError as failure:
            if is_out_of_descriptors(failure):
                self._rest(piece)
            else:
                self._loop.call_soon(self._fail, piece.sync, failure)
            return
        self._running += 1
        future = self._threads.submit(self._disk.synchronise, opened)
        future.add_done_callback(lambda done: self._ended(piece, done))

    def _opened(self, paths: Sequence[str]) -> OpenedT:
        try:
            return self._disk.open_for_sync(paths)
        except OSError as failure:
            if not is_out_of_descriptors(failure):
                raise
        self._disk.spare_descriptors()
        return self._disk.open_for_sync(paths)

    def _rest(self, piece: _Piece) -> None:
        self._log.limited(
            "warn", "sync_waits", reason="the process has no free descriptor", files=len(piece.sync.paths)
        )
        self._waiting.appendleft(piece)
        self._resting = True
        self._loop.call_later(RETRY_AFTER_S, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._go_on()

    def _ended(self, piece: _Piece, done: "Future[None]") -> None:
        """Run in the thread of the sync."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._done, piece, done.exception())

    def _done(self, piece: _Piece, failure: BaseException | None) -> None:
        self._running -= 1
        following = piece.start + self.files_per_piece
        if failure is not None:
            self._fail(piece.sync, failure)
        elif following < len(piece.sync.paths):
            self._waiting.appendleft(_Piece(piece.sync, following))
        elif not self._closed:
            self._give(Synced(piece.sync.token))
        self._go_on()

    def _fail(self, sync: Sync, failure: BaseException) -> None:
        if not self._closed:
            self._give(SyncFailed(sync.token, str(failure)))
