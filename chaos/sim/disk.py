"""The simulated disk: files in memory that know which of their bytes and names are durable.

A killed process loses nothing, because the page cache stays. A ``power_loss`` keeps what was synced. Of the rest it
keeps what the seed says: names are kept or lost one by one (``disk_names``), and an unsynced end is torn at any byte,
or has its size and reads as zeros, or both. A truncation or rewrite that was not synced may be undone.

After a failed sync the kernel calls the pages clean that it could not write. They can be read as long as the process
lives, no later sync writes them, and they are as good as lost (``fail_sync``). What is written later is ordinary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from chaos.sim.disk_names import File, FolderSync, Names
from reference_broker.ports.disk import Buffer, DiskError
from reference_broker.ports.folder_changes import FolderChanges

ZEROED = 0.25
"""How often an unsynced end that has kept its size has lost its last bytes, which read as zeros."""
UNDONE = 0.5
"""How often an unsynced truncation or rewrite is undone."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What one sync makes durable when it ends: each file up to its size, and the changes of names in the folders, both
    as they were when the sync began."""

    files: tuple[tuple[File, int, int], ...]
    folders: tuple[FolderSync, ...]
    change: int


class SimDisk:
    """Implements ports.disk.Disk.

    More than ``capacity_bytes`` raises DiskError (-1 means no bound). A new file stays then, without content, and a
    ``write`` leaves what fits, as on a real disk. If ``broken``, every access to content raises
    DiskError.
    """

    def __init__(self, random: Random) -> None:
        self.capacity_bytes = -1
        self.broken = False
        self.used_bytes = 0
        self.damaged: list[tuple[str, bytes]] = []
        """What ``flip`` made of files."""
        self._random = random
        self._names = Names()

    def list(self, directory: str) -> Sequence[str]:
        return self._names.list(directory)

    def exists(self, path: str) -> bool:
        return self._names.exists(path)

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        file = self._names.files.get(path)
        data = b"".join(buffers) if len(buffers) != 1 else buffers[0]
        self._check(path, 0)
        if file is None:
            file = self._names.create(path)
        self._check(path, len(data))
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
            file.rewritten(size)
            del file.content[size:]
        else:
            self._check(path, added)
            file.content.extend(bytes(added))
        self.used_bytes += added

    def write(self, path: str, data: Buffer) -> None:
        file = self._names.files.get(path)
        self._check(path, 0)
        if file is None:
            file = self._names.create(path)
        file.rewritten(0)
        self.used_bytes -= len(file.content)
        room = len(data) if self.capacity_bytes < 0 else max(self.capacity_bytes - self.used_bytes, 0)
        file.content = bytearray(data[:room])
        self.used_bytes += len(file.content)
        self._check(path, len(data) - len(file.content))

    def rename(self, source: str, target: str) -> None:
        names = self._names
        if source in names.files:
            if target in names.folders:
                self.delete(target)
            replaced = names.rename_file(source, target)
            if replaced is not None:
                self.used_bytes -= len(replaced.content)
        elif source in names.folders:
            self.delete(target)
            names.rename_folder(source, target)
        else:
            raise DiskError(f"{source}: no such file")

    def delete(self, path: str) -> None:
        names = self._names
        for each in [path] if path in names.files else list(names.below(path)):
            self.used_bytes -= len(names.unlink(each).content)

    def make_durable(self, path: str) -> None:
        self.finish_sync(self.begin_sync((path,)))

    def begin_sync(self, paths: Sequence[str]) -> Synced:
        """Remembers what ``finish_sync`` makes durable. Of a path that is gone, the folders are synced."""
        names = self._names
        files = [names.files[path] for path in paths if path in names.files]
        for file in files:
            file.cut = len(file.content)
        return Synced(
            tuple((file, len(file.content), file.rewrites) for file in files), names.syncs(paths), names.last_change
        )

    def finish_sync(self, synced: Synced) -> None:
        """Raises DiskError if the disk is broken; then nothing became durable (``fail_begun``)."""
        if self.broken:
            self.fail_begun(synced)
            raise DiskError("sync: input/output error")
        for file, size, rewrites in synced.files:
            file.durable = max(file.durable, min(size, file.cut, len(file.content)))
            if file.rewrites == rewrites:
                file.saved = None
        for folder in synced.folders:
            self._names.synced(folder, synced.change)

    def process_started(self) -> None:
        """Another process uses the disk from now on. It does not know which names the one before left unsynced."""
        self._names.process = FolderChanges()

    def fail_sync(self, paths: Sequence[str]) -> None:
        """A sync of these files fails: what is not durable of them now never becomes so. Names may still become
        durable."""
        for path in paths:
            if path in self._names.files:
                file = self._names.files[path]
                file.sync_failed(len(file.content))

    def fail_begun(self, synced: Synced) -> None:
        """The sync that ``begin_sync`` has begun fails, as ``fail_sync`` says."""
        for file, size, _ in synced.files:
            file.sync_failed(min(size, file.cut, len(file.content)))

    def process_ended(self) -> Sequence[str]:
        """The driver gives back the pages that could not be written, at its end or when the next process starts
        (``FileDisk.distrust_cache``), so that this one reads what the disk has.
        Returns the files that have other content now."""
        lost = []
        for path, file in sorted(self._names.files.items()):
            if file.failed:
                before = bytes(file.content)
                self._read_again(file)
                if file.content != before:
                    lost.append(path)
        self._measure()
        return lost

    def power_loss(self) -> None:
        """Loses of what is not durable what the seed says."""
        random = self._random
        luck = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        self._names.power_loss(lambda: random.random() < luck)
        for path in sorted(self._names.files):
            self._tear(self._names.files[path])
        self._measure()

    def flip(self, path: str, bit: int) -> None:
        """Damages the file: its bit with this number, counted from its start, is another one from now on."""
        content = self._file(path).content
        content[bit // 8] ^= 1 << bit % 8
        self.damaged.append((path, bytes(content)))

    def all_files(self) -> Sequence[tuple[str, bytes]]:
        """Each path with its content, sorted."""
        return [(path, bytes(file.content)) for path, file in sorted(self._names.files.items())]

    def _read_again(self, file: File) -> None:
        """Where a sync failed, the file has what the disk has: a part of what was written, and then zeros or what was
        there before. It is shorter if nothing behind the failure became durable."""
        random = self._random
        for start, end in file.failed:
            written = random.randint(start, end)
            if end == len(file.content) and file.durable <= start and random.random() >= ZEROED:
                del file.content[written:]
            else:
                old = file.saved if file.saved is not None and random.random() < UNDONE else b""
                file.content[written:end] = old[written:end].ljust(end - written, b"\0")
            if file.durable >= start:
                file.durable = max(file.durable, min(end, len(file.content)))
        file.failed = []

    def _tear(self, file: File) -> None:
        self._read_again(file)
        random = self._random
        if file.saved is not None and random.random() < UNDONE:
            file.content = bytearray(file.saved)
        else:
            unsynced = len(file.content) - file.durable
            if unsynced:
                size = file.durable + random.randint(0, unsynced)
                del file.content[size:]
                if random.random() < ZEROED:
                    written = random.randint(file.durable, size)
                    file.content[written:] = bytes(size - written)
        file.durable = len(file.content)
        file.saved = None

    def unmount(self) -> Names:
        """Takes all files away, and returns them. The disk is empty then."""
        names, self._names = self._names, Names()
        self.used_bytes = 0
        return names

    def mount(self, names: Names) -> None:
        """Puts back what ``unmount`` returned, instead of what was written since."""
        self._names = names
        self._measure()

    def _measure(self) -> None:
        self.used_bytes = sum(len(file.content) for file in self._names.files.values())

    def _file(self, path: str) -> File:
        try:
            return self._names.files[path]
        except KeyError:
            raise DiskError(f"{path}: no such file") from None

    def _check(self, path: str, added: int) -> None:
        if self.broken:
            raise DiskError(f"{path}: input/output error")
        if self.capacity_bytes >= 0 and self.used_bytes + added > self.capacity_bytes:
            raise DiskError(f"{path}: no space left on device")
