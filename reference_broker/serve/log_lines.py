"""The log of a node: one JSON object in each line of stderr. A traceback never spreads over several lines."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from reference_broker.serve.log_writer import LogWriter

STDERR = 2
FLUSH_LIMIT_S = 1.0
"""How long the end of the process waits for a log that is not read."""
BURST_LINES = 100
"""How many lines of one limited event the log takes at once."""
LINES_PER_SECOND = 10
"""How many lines of one limited event the log takes in the long run."""
SELDOM_S = 10
"""At most one line in this time says what peers do again and again while this node is not ready."""


@dataclass(slots=True)
class _Allowance:
    """How many more lines of an event may be written, and how many were left out since the last one."""

    lines: float
    at_s: float
    left_out: int = 0


class LogLines:
    """``event`` names what happened, and ``facts`` describe it.

    Nothing here blocks or raises (``log_writer``). ``limited`` is for what peers can cause as often as they like.
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
        """Writes the line unless there were too many of this event. The next line tells how many were left out."""
        if self._is_allowed(event, BURST_LINES, LINES_PER_SECOND, facts):
            self._write(level, event, facts)

    def seldom(self, level: str, event: str, reason: str, **facts: object) -> None:
        """Writes the first line of this event and reason, and at most one in SELDOM_S after it."""
        facts["reason"] = reason
        if self._is_allowed(f"{event}: {reason}", 1, 1 / SELDOM_S, facts):
            self._write(level, event, facts)

    def _is_allowed(self, what: str, burst: int, lines_per_second: float, facts: dict[str, object]) -> bool:
        """Whether a line may be written. Adds to ``facts`` how many were left out before it."""
        now_s = self._now_s()
        allowance = self._allowances.get(what)
        if allowance is None:
            allowance = self._allowances[what] = _Allowance(burst, now_s)
        allowance.lines = min(burst, allowance.lines + (now_s - allowance.at_s) * lines_per_second)
        allowance.at_s = now_s
        if allowance.lines < 1:
            allowance.left_out += 1
            return False
        allowance.lines -= 1
        if allowance.left_out:
            facts["left_out"] = allowance.left_out
            allowance.left_out = 0
        return True

    def flush(self) -> None:
        """Waits until everything is written, but not for long."""
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


def tell_on_stderr(sentence: str) -> None:
    """Tells one sentence to the person who started the process. Waits for a reader only for a moment."""
    writer = LogWriter(STDERR, lambda _: b"")
    writer.write(f"{sentence}\n".encode())
    writer.flush(FLUSH_LIMIT_S)
