"""The disk port: the operations of a disk that the deterministic part uses, and what all disks have in common.

Reads and appends are synchronous (the page cache). Bytes and names are made durable by the effect ``Sync``, which the
event ``Synced`` completes, so that a slow disk delays only those that wait for it. A sync of a path covers the content
of the file, as it is when the sync begins, and every change of a name in the file's folder and in the folders above it.
So a sync of a path that is gone makes its deletion durable.

There are three implementations. ``reference_broker.serve.disk.FileDisk`` uses real files. ``chaos.sim.disk.SimDisk`` is
virtual, and loses unsynced bytes and names on power loss. ``MemoryDisk`` serves tests. One conformance suite runs
against all of them (``chaos/tests/test_disk_conformance.py``).

The real and the simulated disk both use ``FolderChanges`` to decide which folders a sync covers. A process that was
killed may have left changes that it did not sync. So a folder of which this process knows nothing counts as changed
until its first sync.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
        """Return the names of the files and folders directly below ``directory``, sorted. If it does not exist, there
        are none."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Return the size of the file in bytes. Bytes that are not durable yet count too."""
        ...

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        """Append all buffers, and create the file if needed. Return the size before the append, in bytes.

        On DiskError the file keeps its old size: an implementation cuts off a partial append. A file that was to be
        created may be there, without content. Raise UndoFailed if the cut failed.
        """
        ...

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return ``length`` bytes from ``position``, and fewer only at the end of the file."""
        ...

    def truncate(self, path: str, size: int) -> None: ...

    def write(self, path: str, data: Buffer) -> None:
        """Replace the whole content, and create the file if needed. It is not atomic: after a DiskError the file may
        hold any part of ``data``. To replace a file safely, write a new one, sync it, and rename it."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder atomically, and replace ``target``."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it. A missing path is ignored."""
        ...

    def make_durable(self, path: str) -> None:
        """Sync the path while the caller waits. It is for rare changes, without which the next one must not be made
        in the same event. Everything else takes the effect ``Sync``."""
        ...


@dataclass(slots=True, eq=False)
class KnownFolder:
    """A folder whose names were changed."""

    changes: int = 1
    """Number of changes of names. The first one stands for all that earlier processes did."""
    durable: int = 0
    """Number of these changes that are durable, the first ones."""
    is_syncing: bool = False
    failure: OSError | None = None


class FolderChanges:
    """Folders are named by their paths, of whatever kind the disk uses."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, KnownFolder] = {}

    def of(self, path: str) -> KnownFolder:
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = KnownFolder()
        return known

    def changed(self, path: str) -> None:
        """A name in the folder was created, renamed or deleted."""
        self.of(path).changes += 1

    def moved(self, source: str, target: str) -> None:
        """The folder has another path, and so have those in it."""
        for path in self._at_or_below(source):
            self._known[target + path[len(source) :]] = self._known.pop(path)

    def forget(self, path: str) -> None:
        """The folder is gone, with those in it."""
        for gone in self._at_or_below(path):
            del self._known[gone]

    def _at_or_below(self, path: str) -> list[str]:
        return [known for known in self._known if known == path or known.startswith(path + "/")]


@dataclass(slots=True)
class MemoryDisk:
    """A disk in memory, for tests."""

    files: dict[str, bytearray] = field(default_factory=dict)
    """The content by path."""
    fail_after: int | None = None
    """Number of changes that still succeed before each one raises DiskError; None for no failure."""
    appends: int = 0
    """Number of appends so far."""
    reads: int = 0
    """Number of reads so far."""

    def copy(self) -> "MemoryDisk":
        return MemoryDisk({path: bytearray(content) for path, content in self.files.items()})

    def list(self, directory: str) -> Sequence[str]:
        start = f"{directory}/" if directory else ""
        return sorted({path[len(start) :].split("/", 1)[0] for path in self.files if path.startswith(start)})

    def exists(self, path: str) -> bool:
        return path in self.files or any(file.startswith(f"{path}/") for file in self.files)

    def size(self, path: str) -> int:
        return len(self._file(path))

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._change(path)
        self.appends += 1
        content = self.files.setdefault(path, bytearray())
        size = len(content)
        for buffer in buffers:
            content += buffer
        return size

    def read(self, path: str, position: int, length: int) -> bytes:
        self.reads += 1
        with memoryview(self._file(path)) as content:
            return bytes(content[position : position + length])

    def truncate(self, path: str, size: int) -> None:
        content = self._file(path)
        self._change(path)
        del content[size:]

    def write(self, path: str, data: Buffer) -> None:
        self._change(path)
        self.files[path] = bytearray(data)

    def rename(self, source: str, target: str) -> None:
        self._change(source)
        moved = [path for path in self.files if path == source or path.startswith(f"{source}/")]
        if not moved:
            raise DiskError(f"{source}: no such file")
        for path in moved:
            self.files[target + path[len(source) :]] = self.files.pop(path)

    def delete(self, path: str) -> None:
        self._change(path)
        for gone in [file for file in self.files if file == path or file.startswith(f"{path}/")]:
            del self.files[gone]

    def make_durable(self, path: str) -> None:
        """There is no power loss here."""

    def _file(self, path: str) -> bytearray:
        content = self.files.get(path)
        if content is None:
            raise DiskError(f"{path}: no such file")
        return content

    def _change(self, path: str) -> None:
        if self.fail_after is None:
            return
        if self.fail_after == 0:
            raise DiskError(f"{path}: made to fail")
        self.fail_after -= 1
