"""The log of a node: one JSON object in each line of stderr. A traceback never spreads over several lines."""

import json
import sys
import time
from datetime import UTC, datetime
from typing import TextIO


class LogLines:
    """``event`` names what happened, and ``facts`` describe it."""

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
            # The reader of the log is gone. The node does not need it.
            return
