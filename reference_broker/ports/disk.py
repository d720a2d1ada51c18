"""The disk port: what the deterministic part may ask of a disk.

Reads and appends are synchronous (the page cache). Making bytes durable is not in this port: it is the
effect ``Sync``, answered by the event ``Synced``, so that a slow disk delays only those who wait for it.
Implementations: ``reference_broker.serve.disk.FileDisk`` (real files) and ``chaos.sim.disk.SimDisk``
(virtual; loses or tears unsynced bytes on power loss). One conformance suite runs against both
(``chaos/tests``).
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(OSError):
    """An operation failed for good: disk full, I/O error, missing file. Message names path and cause."""


class Disk(Protocol):
    """Files below one root, named by ``/``-separated relative paths; parents are made when needed.

    Creation, rename and deletion of a file take effect at once; its *content* is durable only up to the
    last completed sync. Every method raises DiskError for a missing file (unless it says otherwise), a
    full disk or an I/O error.
    """

    def list(self, directory: str) -> Sequence[str]:
        """Names (files and folders) directly below ``directory``, sorted; empty if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Bytes appended so far."""
        ...

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        """Appends all buffers, creating the file if needed; returns the size before the append (bytes).

        On DiskError the file keeps its old size: an implementation cuts off a partial append.
        """
        ...

    def read(self, path: str, position: int, length: int) -> bytes:
        """At most ``length`` bytes from ``position``; shorter only at the end of the file."""
        ...

    def truncate(self, path: str, size: int) -> None: ...

    def write(self, path: str, data: Buffer) -> None:
        """Replaces the whole content (creating the file); not atomic: write a new name, sync, rename."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces ``target``. Also renames folders."""
        ...

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with all that is in it. A missing path is no error."""
        ...
