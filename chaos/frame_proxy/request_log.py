"""What passed through the proxy, so that a person can read it: one entry for each answered or lost request."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

KEPT: Final = 10_000
"""So many of the newest entries can be asked for. A log file has all of them."""
AT_ONCE: Final = 1_000


class Entry(msgspec.Struct, omit_defaults=True):
    """``number`` counts all entries from 1 on. ``at_us`` is when the request came, since the proxy's start.

    ``what`` is ``answered``, ``unanswered`` (a produce request with acks=0), ``struck`` (a rule has taken the answer),
    ``lost`` (the connection ended first), or the name of something else that happened; ``detail`` says more then.
    ``took_us`` is the time from the request to the node's answer.
    """

    number: int
    at_us: int
    what: str
    node: int
    connection: int
    api: str = ""
    version: int = -1
    client_id: str = ""
    correlation_id: int = 0
    session_id: int = 0
    session_epoch: int = -1
    request_bytes: int = 0
    answer_bytes: int = 0
    error: str = ""
    took_us: int = 0
    detail: str = ""


class RequestLog:
    """Keeps the newest entries, and writes all to ``file`` if there is one. All is done in one thread."""

    def __init__(self, file: Path | None = None) -> None:
        self._kept: deque[Entry] = deque(maxlen=KEPT)
        self._last = 0
        self._encoder = msgspec.json.Encoder()
        self._out: IO[bytes] | None = None if file is None else file.open("ab")

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def add(self, entry: Entry) -> None:
        self._kept.append(entry)
        if self._out is not None:
            self._out.write(self._encoder.encode(entry) + b"\n")

    def since(self, number: int) -> Sequence[Entry]:
        """Returns the oldest AT_ONCE of the kept entries with a greater number."""
        found = [each for each in self._kept if each.number > number]
        return found[:AT_ONCE]

    def flush(self) -> None:
        if self._out is not None:
            self._out.flush()

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None
