"""The disk port: what the deterministic part may ask of a disk.

Reads and appends are synchronous (the page cache). Bytes and names are made durable by the effect ``Sync``, which the
event ``Synced`` answers, so that a slow disk delays only those that wait for it. A sync of a path covers the content of
the file, as it is when the sync begins, and every change of a name in the file's folder and in the folders above it. So
a sync of a path that is gone makes its deletion durable.

There are three implementations. ``reference_broker.serve.disk.FileDisk`` uses real files. ``chaos.sim.disk.SimDisk`` is
virtual, and loses unsynced bytes and names on power loss. ``MemoryDisk`` serves tests. One conformance suite runs
against all of them (``chaos/tests/test_disk_conformance.py``).
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(OSError):
    """An operation failed for good: the disk is full, there was an I/O error, or a file is missing. The message names
    the path and the cause."""


class UndoFailed(OSError):  # noqa: N818 - says what happened
    """An append failed, and so did the cut that should have undone it; or a cut could not be made durable. What the
    file's end holds, or will hold after a power loss, is unknown.

    It is no DiskError, since nobody can go on after it: the node ends, as Kafka does when its last log directory fails.
    Other replicas take over, and the next start cuts the rest off.
    """


class Disk(Protocol):
    """Files below one root, named by ``/``-separated relative paths. Parent folders are made when needed.

    Every change takes effect at once, and is durable only after a sync that began later. Until then a power loss may
    keep or undo each change by itself; only the changes of one name stay in order.

    Every method raises DiskError for a full disk, an I/O error and, unless it says otherwise, a missing file.
    """

    def list(self, directory: str) -> Sequence[str]:
        """Returns the names of the files and folders directly below ``directory``, sorted. If it does not exist, there
        are none."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Returns the size of the file in bytes. Bytes that are not durable yet count too."""
        ...

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        """Appends all buffers, and creates the file if needed. Returns the size before the append, in bytes.

        On DiskError the file keeps its old size: an implementation cuts off a partial append. A file that was to be
        created may be there, without content. Raises UndoFailed if the cut failed.
        """
        ...

    def read(self, path: str, position: int, length: int) -> bytes:
        """Returns ``length`` bytes from ``position``, and fewer only at the end of the file."""
        ...

    def truncate(self, path: str, size: int) -> None: ...

    def write(self, path: str, data: Buffer) -> None:
        """Replaces the whole content, and creates the file if needed. It is not atomic: after a DiskError the file may
        hold any part of ``data``. To replace a file safely, write a new one, sync it, and rename it."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames a file or a folder atomically, and replaces ``target``."""
        ...

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with all that is in it. A missing path is no error."""
        ...

    def make_durable(self, path: str) -> None:
        """Syncs the path while the caller waits. It is for rare changes, without which the next one must not be made
        in the same event. Everything else takes the effect ``Sync``."""
        ...
