"""The log of a node: one JSON object in each line of stderr, written by a thread of its own.

No reader and no full disk can stop the node: lines are then dropped, counted and reported.
"""

import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

STDERR = 2
FLUSH_LIMIT_S = 1.0
"""The longest wait at the end of the process for a log that is not read."""
BURST_LINES = 100
"""The number of lines of one limited event that may be written at once."""
LINES_PER_SECOND = 10
"""The rate of lines of one limited event in the long run."""
SELDOM_S = 10
"""The least time between two lines about repeated requests of peers while this node is not ready."""


@dataclass(slots=True)
class _Allowance:
    """The token bucket of one limited event."""

    lines: float
    """The number of lines that may be written now."""
    at_s: float
    omitted: int = 0
    """The number of lines omitted since the last one."""


class LogLines:
    """The log of a node. ``event`` names what happened, and ``facts`` describe it.

    No method blocks or raises. ``limited`` is for events that peers can cause as often as they like.
    """

    def __init__(self, node_id: int, stream: TextIO | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._node_id = node_id
        self._stream = stream
        self._now_s = now_s
        self._writer = LogWriter(STDERR, self._dropped_line)
        self._allowances: dict[str, _Allowance] = {}

    def info(self, event: str, **facts: object) -> None:
        self._write("info", event, facts)

    def warn(self, event: str, **facts: object) -> None:
        self._write("warn", event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write("error", event, facts)

    def limited(self, level: str, event: str, **facts: object) -> None:
        """Write the line unless there were too many of this event. The next line has the number of omitted ones."""
        if self._is_allowed(event, BURST_LINES, LINES_PER_SECOND, facts):
            self._write(level, event, facts)

    def seldom(self, level: str, event: str, reason: str, **facts: object) -> None:
        """Write the first line of this event and reason, and at most one in SELDOM_S after it."""
        facts["reason"] = reason
        if self._is_allowed(f"{event}: {reason}", 1, 1 / SELDOM_S, facts):
            self._write(level, event, facts)

    def _is_allowed(self, what: str, burst: int, lines_per_second: float, facts: dict[str, object]) -> bool:
        """Return whether a line may be written. Adds to ``facts`` the number of lines omitted before it."""
        now_s = self._now_s()
        allowance = self._allowances.get(what)
        if allowance is None:
            allowance = self._allowances[what] = _Allowance(burst, now_s)
        allowance.lines = min(burst, allowance.lines + (now_s - allowance.at_s) * lines_per_second)
        allowance.at_s = now_s
        if allowance.lines < 1:
            allowance.omitted += 1
            return False
        allowance.lines -= 1
        if allowance.omitted:
            facts["omitted"] = allowance.omitted
            allowance.omitted = 0
        return True

    def flush(self) -> None:
        """Wait until everything is written, at most FLUSH_LIMIT_S."""
        self._writer.flush(FLUSH_LIMIT_S)

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        line = self._line(level, event, facts)
        if self._stream is None:
            self._writer.write(line.encode())
        else:
            self._stream.write(line)

    def _line(self, level: str, event: str, facts: dict[str, object]) -> str:
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": level, "node": self._node_id, "event": event, **facts}
        return json.dumps(line, default=str) + "\n"

    def _dropped_line(self, count: int) -> bytes:
        return self._line("warn", "log_lines_dropped", {"count": count}).encode()


def report_on_stderr(sentence: str) -> None:
    """Write one sentence to stderr, for the person who started the process. Wait for a reader at most FLUSH_LIMIT_S."""
    writer = LogWriter(STDERR, lambda _: b"")
    writer.write(f"{sentence}\n".encode())
    writer.flush(FLUSH_LIMIT_S)


MAX_WAITING_BYTES = 1 << 20
"""The bytes of lines that may wait to be written. A line that would exceed this is dropped and counted."""
MAX_WRITE_BYTES = 1 << 16
"""The largest size of one write."""


class LogWriter:
    """Writes log lines to a descriptor in a thread of its own. Takes lines from any thread and never blocks.

    A line is dropped if too many wait, or if the descriptor refuses it (a full disk, a closed pipe). ``dropped_line``
    makes the line that reports the number of dropped ones. It is written before the next line that gets through.
    """

    def __init__(
        self, descriptor: int, dropped_line: Callable[[int], bytes], max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.dropped = 0
        """The number of dropped lines that are not reported yet."""
        self._descriptor = descriptor
        self._dropped_line = dropped_line
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._writing = False
        self._thread: threading.Thread | None = None
        self._in_a_line = False
        """True if a write failed in the middle of a line. The next write begins a new line."""

    def write(self, line: bytes) -> None:
        """Queue a line, which includes its newline."""
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
        """Wait until all lines are written or dropped, at most ``limit_s``. Return whether they are."""
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
        while self._waiting and size_bytes < MAX_WRITE_BYTES:
            lines.append(self._waiting.popleft())
            size_bytes += len(lines[-1])
        self._waiting_bytes -= size_bytes
        return lines

    def _put(self, lines: list[bytes]) -> int:
        """Write these lines, and return the number of those that were not written whole."""
        text = memoryview(b"\n" * self._in_a_line + b"".join(lines))
        self._in_a_line = False
        position = 0
        while position < len(text):
            try:
                position += os.write(self._descriptor, text[position:])
            except BlockingIOError:  # Our parent made the descriptor non-blocking.
                select.select([], [self._descriptor], [], 1.0)
            except OSError:
                self._in_a_line = position > 0 and text[position - 1] != ord("\n")
                return bytes(text[position:]).count(b"\n")
        return 0


MAX_SHOWN_CHARACTERS = 2000
"""The limit for one argument of the exception."""
MAX_SHOWN_PLACES = 6


def describe_bug(bug: Exception) -> str:
    """Describe a bug in one line: the exception, the last frames that it passed, and what the node was doing
    (notes)."""
    places = []
    trace = bug.__traceback__
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    notes = "".join(f", {note}" for note in getattr(bug, "__notes__", ()))
    return f"{type(bug).__name__}: {_shown_arguments(bug)} at {' > '.join(places[-MAX_SHOWN_PLACES:])}{notes}"


def _shown_arguments(bug: Exception) -> str:
    """Return the exception's arguments, with objects shown by their class only.

    A KeyError has the key itself. The repr of a cached partition would contain its session, the session's partitions,
    their logs and their watchers: hundreds of megabytes, made by a node that should end at once.
    """
    if isinstance(bug, OSError):
        return str(bug)[:MAX_SHOWN_CHARACTERS]
    return ", ".join(
        str(one)[:MAX_SHOWN_CHARACTERS] if isinstance(one, str | int) else type(one).__name__ for one in bug.args
    )
