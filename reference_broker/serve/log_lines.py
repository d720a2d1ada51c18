"""The node's log: one JSON object a line on stderr, never a traceback over many lines."""

import json
import sys
import time
from datetime import UTC, datetime
from typing import TextIO


class LogLines:
    """``event`` names what happened; the rest are its facts."""

    def __init__(self, node_id: int, stream: TextIO | None = None) -> None:
        self._node_id = node_id
        self._stream = sys.stderr if stream is None else stream

    def info(self, event: str, **facts: object) -> None:
        self._write("info", event, facts)

    def warn(self, event: str, **facts: object) -> None:
        self._write("warn", event, facts)

    def error(self, event: str, **facts: object) -> None:
        self._write("error", event, facts)

    def flush(self) -> None:
        self._stream.flush()

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": level, "node": self._node_id, "event": event, **facts}
        try:
            self._stream.write(json.dumps(line, default=str) + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            # Whoever read the log has gone; the node's work does not depend on it.
            return
