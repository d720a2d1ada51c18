"""The simulated disk: files in memory that know which of their bytes are durable.

A killed process loses nothing, because the page cache stays. A ``power_loss`` keeps the durable bytes of each file and
a torn part of the rest, cut at a seeded byte. Creation, rename, truncation and deletion are durable at once, as the
port says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from reference_broker.ports.disk import Buffer, DiskError


@dataclass(slots=True, eq=False)
class _File:
    """One file. ``durable`` <= len(content). ``cut`` is the least size since the last sync began."""

    content: bytearray = field(default_factory=bytearray)
    durable: int = 0
    cut: int = 0


Files: TypeAlias = dict[str, _File]
"""All files of a disk, by path."""


@dataclass(frozen=True, slots=True)
class SyncedBytes:
    """What one sync makes durable when it ends: each file up to its size when the sync began."""

    files: tuple[tuple[_File, int], ...]


class SimDisk:
    """Implements ports.disk.Disk.

    More than ``capacity_bytes`` raises DiskError (-1 means no bound). If ``broken``, every access to content raises
    DiskError.
    """

    def __init__(self, random: Random) -> None:
        self.capacity_bytes = -1
        self.broken = False
        self.used_bytes = 0
        self._random = random
        self._files: Files = {}

    def list(self, directory: str) -> Sequence[str]:
        prefix = _prefix(directory)
        names = {path[len(prefix) :].split("/", 1)[0]: None for path in self._files if path.startswith(prefix)}
        return sorted(names)

    def exists(self, path: str) -> bool:
        prefix = path + "/"
        return path in self._files or any(each.startswith(prefix) for each in self._files)

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        file = self._files.get(path)
        data = b"".join(buffers) if len(buffers) != 1 else buffers[0]
        self._check(path, len(data))
        if file is None:
            file = self._files[path] = _File()
        before = len(file.content)
        file.content += data
        self.used_bytes += len(data)
        return before

    def read(self, path: str, position: int, length: int) -> bytes:
        file = self._file(path)
        self._check(path, 0)
        with memoryview(file.content) as view:
            return bytes(view[position : position + length])

    def truncate(self, path: str, size: int) -> None:
        file = self._file(path)
        added = size - len(file.content)
        if added < 0:
            del file.content[size:]
        else:
            self._check(path, added)
            file.content.extend(bytes(added))
        self.used_bytes += added
        file.durable = min(file.durable, size)
        file.cut = min(file.cut, size)

    def write(self, path: str, data: Buffer) -> None:
        old = self._files.get(path)
        added = len(data) - (len(old.content) if old else 0)
        self._check(path, added)
        self.used_bytes += added
        self._files[path] = _File(bytearray(data))

    def rename(self, source: str, target: str) -> None:
        if source in self._files:
            self._drop(target)
            self._files[target] = self._files.pop(source)
            return
        prefix = source + "/"
        moved = [path for path in self._files if path.startswith(prefix)]
        if not moved:
            raise DiskError(f"{source}: no such file")
        self.delete(target)
        for path in moved:
            self._files[f"{target}/{path[len(prefix) :]}"] = self._files.pop(path)

    def delete(self, path: str) -> None:
        prefix = path + "/"
        for each in [each for each in self._files if each == path or each.startswith(prefix)]:
            self._drop(each)

    def begin_sync(self, paths: Sequence[str]) -> SyncedBytes:
        """Remembers the sizes that ``finish_sync`` makes durable. A path that is gone needs no sync."""
        files = [self._files[path] for path in paths if path in self._files]
        for file in files:
            file.cut = len(file.content)
        return SyncedBytes(tuple((file, len(file.content)) for file in files))

    def finish_sync(self, synced: SyncedBytes) -> None:
        """Raises DiskError if the disk is broken; then nothing became durable."""
        if self.broken:
            raise DiskError("sync: input/output error")
        for file, size in synced.files:
            file.durable = max(file.durable, min(size, file.cut, len(file.content)))

    def power_loss(self) -> int:
        """Loses what is not durable, but for a torn part of each file. Returns the number of bytes lost."""
        lost = 0
        for path in sorted(self._files):
            file = self._files[path]
            unsynced = len(file.content) - file.durable
            if unsynced:
                kept = self._random.randint(0, unsynced)
                lost += unsynced - kept
                del file.content[file.durable + kept :]
            file.durable = len(file.content)
        self.used_bytes -= lost
        return lost

    def unmount(self) -> Files:
        """Takes all files away, and returns them. The disk is empty then."""
        files, self._files = self._files, {}
        self.used_bytes = 0
        return files

    def mount(self, files: Files) -> None:
        """Puts back what ``unmount`` returned, instead of what was written since."""
        self._files = files
        self.used_bytes = sum(len(file.content) for file in files.values())

    def _file(self, path: str) -> _File:
        try:
            return self._files[path]
        except KeyError:
            raise DiskError(f"{path}: no such file") from None

    def _check(self, path: str, added: int) -> None:
        if self.broken:
            raise DiskError(f"{path}: input/output error")
        if self.capacity_bytes >= 0 and self.used_bytes + added > self.capacity_bytes:
            raise DiskError(f"{path}: no space left on device")

    def _drop(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            self.used_bytes -= len(file.content)


def _prefix(directory: str) -> str:
    stripped = directory.strip("/")
    return "" if stripped in ("", ".") else stripped + "/"
