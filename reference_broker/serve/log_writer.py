"""Writes log lines to a descriptor in a thread of its own, so that no reader and no disk can stop the node."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING_BYTES = 1 << 20
"""How many bytes of lines may wait to be written. A line that would go beyond is dropped and counted."""
AT_ONCE_BYTES = 1 << 16
"""How many bytes one write takes at most."""


class LogWriter:
    """Takes lines from any thread and never blocks.

    A line is dropped if too many wait, or if the descriptor refuses it (a full disk, a closed pipe). ``dropped_line``
    makes the line that tells how many were dropped. It is written before the next line that gets through.
    """

    def __init__(
        self, descriptor: int, dropped_line: Callable[[int], bytes], max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.dropped = 0
        """How many lines were dropped and not told yet."""
        self._descriptor = descriptor
        self._dropped_line = dropped_line
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._writing = False
        self._thread: threading.Thread | None = None
        self._in_a_line = False
        """True if a write failed in the middle of a line. The next one begins a new line."""

    def write(self, line: bytes) -> None:
        """``line`` includes its newline."""
        with self._changed:
            if self._waiting_bytes + len(line) > self._max_waiting_bytes:
                self.dropped += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Waits until all lines are written or dropped, but not longer than ``limit_s``. Returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, limit_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting))
                self._writing = True
                dropped, self.dropped = self.dropped, 0
                lines = self._taken()
            if dropped and self._put([self._dropped_line(dropped)]):
                lost = dropped + len(lines)
            else:
                lost = self._put(lines)
            with self._changed:
                self.dropped += lost

    def _taken(self) -> list[bytes]:
        lines = []
        size_bytes = 0
        while self._waiting and size_bytes < AT_ONCE_BYTES:
            lines.append(self._waiting.popleft())
            size_bytes += len(lines[-1])
        self._waiting_bytes -= size_bytes
        return lines

    def _put(self, lines: list[bytes]) -> int:
        """Writes these lines, and returns how many of them were not written whole."""
        text = memoryview(b"\n" * self._in_a_line + b"".join(lines))
        self._in_a_line = False
        position = 0
        while position < len(text):
            try:
                position += os.write(self._descriptor, text[position:])
            except BlockingIOError:  # Whoever started us made the descriptor non-blocking.
                select.select([], [self._descriptor], [], 1.0)
            except OSError:
                self._in_a_line = position > 0 and text[position - 1] != ord("\n")
                return bytes(text[position:]).count(b"\n")
        return 0
