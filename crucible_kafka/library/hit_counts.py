"""Counts of a rule over all nodes: they are in files of one folder, which all nodes of a cluster share.

Nodes may be threads or processes, and one of them may be killed at any moment. So a number is claimed under a lock of
its file, which the system releases with the process, and the evidence of a hit is one line that is appended whole.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final

from crucible_kafka.library.plain_values import Plain

MATCHES: Final = "matches"
"""The file of a count: one byte for each matching request, which is the node's ID."""
ACTS: Final = "acts"
"""The same for each time that a node took it on itself to act, which a line in the file of hits must follow."""


class HitCounts:
    """The counts of one rule."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def claim(self, what: str, node: int, most: int | None = None) -> int | None:
        """Return the next number of this count, from 1 on. With ``most`` given out, or without the folder (the rule was
        removed), return None."""
        try:
            descriptor = os.open(self._folder / what, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            given = os.fstat(descriptor).st_size
            if most is not None and given >= most:
                return None
            os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, bytes([node]))
            return given + 1
        finally:
            os.close(descriptor)

    def give_back(self, node: int, number: int = 1) -> None:
        """Take back claims of this node to act, after which it did not act, so that another request can be the one."""
        try:
            descriptor = os.open(self._folder / ACTS, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            claims = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            left = claims.replace(bytes([node]), b"", number)
            os.pwrite(descriptor, left, 0)
            os.ftruncate(descriptor, len(left))
        finally:
            os.close(descriptor)

    def settle(self, node: int) -> None:
        """Take back the claims of a node that has ended before it acted on them."""
        try:
            claimed = (self._folder / ACTS).read_bytes().count(bytes([node]))
        except OSError:
            return
        unused = claimed - sum(hit["node"] == node for hit in self.hits())
        if unused > 0:
            self.give_back(node, unused)

    def note_hit(self, hit: Plain) -> None:
        """Record that the rule acted."""
        try:
            descriptor = os.open(self._folder / "hits", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.write(descriptor, json.dumps(hit).encode() + b"\n")
        finally:
            os.close(descriptor)

    def hits(self) -> list[dict[str, Any]]:
        """Return the hits so far, in their order."""
        try:
            lines = (self._folder / "hits").read_bytes().split(b"\n")
        except OSError:
            return []
        return [json.loads(line) for line in lines[:-1]]
