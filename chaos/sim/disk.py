"""The simulated disk: files in memory, with a record of which bytes and names are durable.

A killed process loses nothing, because the page cache survives. A ``power_loss`` keeps synced data. The seed determines
the rest: an unsynced end of a file is torn at any byte, or keeps its size and reads as zeros, or both. A truncation or
rewrite that was not synced may be undone.

Names are data of their folder, as in POSIX: a created, renamed or unlinked name is durable only once the folder was
synced. Until then a power loss keeps or loses each change independently, within two rules that journalling file systems
guarantee as well: a rename is atomic, and the changes of one name keep their order.

After a failed sync the kernel marks the pages that it could not write as clean. They can be read until the process
ends, but no later sync writes them, so they are lost (``fail_sync``). Later writes are not affected.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol, TypeAlias

from reference_broker.ports.disk import Buffer, DiskError, FolderChanges, KnownFolder


@dataclass(slots=True, eq=False)
class File:
    """One file."""

    content: bytearray = field(default_factory=bytearray)
    durable: int = 0
    """number of bytes from the start that survive a power loss; never more than the content"""
    cut: int = 0
    """the smallest size since the last sync began"""
    saved: bytes | None = None
    """the durable content that a truncation or a rewrite replaced, until that is synced"""
    rewrites: int = 0
    """number of truncations and rewrites"""
    failed: list[tuple[int, int]] = field(default_factory=list)
    """ranges (start, end) that a failed sync covered. They can be read but are not on the disk, even below ``durable``
    after a later sync has succeeded."""

    @property
    def written_durable(self) -> int:
        """Number of durable bytes from the start on, up to the first that a failed sync left unwritten."""
        return min([self.durable, *(start for start, _ in self.failed)])

    def sync_failed(self, size: int) -> None:
        """A sync of the first ``size`` bytes has failed. Bytes that are appended later are ordinary ones."""
        start = self.durable
        if start < size:
            met = [span for span in self.failed if span[1] >= start]
            apart = [span for span in self.failed if span[1] < start]
            self.failed = [*apart, (min([start, *(low for low, _ in met)]), max([size, *(high for _, high in met)]))]

    def rewritten(self, size: int) -> None:
        """Prepare the replacement of the bytes from ``size`` on. Durable ones among them may reappear."""
        if self.saved is None and self.durable > size:
            saved = self.content[: self.durable]
            for start, end in self.failed:
                saved[start:end] = bytes(len(saved[start:end]))
            self.saved = bytes(saved)
        self.durable = min(self.durable, size)
        self.cut = min(self.cut, size)
        self.rewrites += 1
        self.failed = [(start, min(end, size)) for start, end in self.failed if start < size]


class NameChange(NamedTuple):
    """One change of a folder."""

    number: int
    sets: tuple[tuple[str, "Node | None"], ...]
    """the new file or folder of each name; None if the name is removed"""


@dataclass(slots=True, eq=False)
class Folder:
    """One folder."""

    names: "dict[str, Node]" = field(default_factory=dict)
    """the entries that processes see"""
    durable: "dict[str, Node]" = field(default_factory=dict)
    """the entries that remain after any power loss"""
    changes: list[NameChange] = field(default_factory=list)
    """changes that lead from ``durable`` to ``names``, in order"""


@dataclass(slots=True, eq=False)
class FolderSync:
    """A running sync of one folder."""

    folder: Folder
    known: KnownFolder
    """the entries and changes that the process knows"""
    changes: int
    """number of those changes that it covers, from the first on"""


Node: TypeAlias = File | Folder


class Names:
    """A tree of folders, with tables of all paths. Folders are created when needed, and removed with their last name.

    ``process`` has the changes of folders that the running process knows. A sync covers the folders that it knows to
    have changed, as with real files.
    """

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: dict[str, Folder] = {"": Folder()}
        self.process = FolderChanges()
        self.last_change = 0
        self._unsynced: dict[Folder, None] = {}

    def list(self, directory: str) -> list[str]:
        folder = self.folders.get(directory.strip("/"))
        return [] if folder is None else sorted(folder.names)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def create(self, path: str) -> File:
        parent, _, name = path.rpartition("/")
        file = self.files[path] = File()
        self._make(parent)
        self._change(parent, (name, file))
        return file

    def rename_file(self, source: str, target: str) -> File | None:
        """Return the file that ``target`` was before."""
        replaced = self.files.get(target)
        file = self.files.pop(source)
        old_parent, _, old_name = source.rpartition("/")
        new_parent, _, new_name = target.rpartition("/")
        self._make(new_parent)
        self.files[target] = file
        self._renamed(old_parent, old_name, new_parent, new_name, file)
        self._drop_empty(old_parent)
        return replaced

    def rename_folder(self, source: str, target: str) -> None:
        """The target must not exist."""
        old_parent, _, old_name = source.rpartition("/")
        new_parent, _, new_name = target.rpartition("/")
        self._make(new_parent)
        _move(self.files, source, target)
        _move(self.folders, source, target)
        self.process.moved(source, target)
        self._renamed(old_parent, old_name, new_parent, new_name, self.folders[target])
        self._drop_empty(old_parent)

    def unlink(self, path: str) -> File:
        parent, _, name = path.rpartition("/")
        file = self.files.pop(path)
        self._change(parent, (name, None))
        self._drop_empty(parent)
        return file

    def below(self, path: str) -> Iterator[str]:
        """The paths of the files in a folder and in the folders in it."""
        folder = self.folders.get(path)
        if folder is not None:
            for name, node in list(folder.names.items()):
                inner = f"{path}/{name}" if path else name
                if isinstance(node, File):
                    yield inner
                else:
                    yield from self.below(inner)

    def durable(self, path: str) -> File | None:
        """Return the file that the path names after any power loss, or one that it replaces; None if it may be gone."""
        node: Node | None = self.folders[""]
        for name in path.split("/"):
            if not isinstance(node, Folder):
                return None
            removed = any((name, None) in change.sets for change in node.changes)
            node = None if removed else node.durable.get(name)
        return node if isinstance(node, File) else None

    def survives(self, path: str) -> bool:
        """Return whether any power loss leaves the file, perhaps under the name that it or its folder had before a
        rename."""
        node: Node = self.files[path]
        while path:
            path = path.rpartition("/")[0]
            if not self._keeps(self.folders[path], node):
                return False
            node = self.folders[path]
        return True

    @staticmethod
    def _keeps(folder: Folder, node: "Node") -> bool:
        """Return whether any power loss leaves the node in the folder, perhaps under an earlier name."""
        names = [name for name, known in folder.durable.items() if known is node]
        # A rename takes one name away and gives the other in one change.
        removals = [change for change in folder.changes if any((name, None) in change.sets for name in names)]
        return bool(names) and all(any(target is node for _, target in change.sets) for change in removals)

    def syncs(self, paths: Sequence[str]) -> tuple[FolderSync, ...]:
        """The necessary syncs of the folders that contain the paths, as far as the process knows."""
        above: dict[str, None] = {}
        for path in paths:
            while path:
                path = path.rpartition("/")[0]
                above[path] = None
        syncs = []
        for path in above:
            folder = self.folders.get(path)
            if folder is not None:
                known = self.process.of(path)
                if known.durable < known.changes:
                    syncs.append(FolderSync(folder, known, known.changes))
        return tuple(syncs)

    def synced(self, sync: FolderSync, up_to: int) -> None:
        """The sync has ended. Changes up to the number ``up_to`` were made before it began."""
        sync.known.durable = max(sync.known.durable, sync.changes)
        self._keep_up_to(sync.folder, up_to)

    def _keep_up_to(self, folder: Folder, number: int) -> None:
        if folder.changes:
            self._keep(folder, lambda change: change.number <= number)

    def fork(self) -> "Names":
        """Return a tree of its own with the same files, names and unsynced changes, as another process finds it."""
        copies: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            known = copies.get(node)
            if known is not None:
                return known
            if isinstance(node, File):
                file = copies[node] = File(
                    bytearray(node.content), node.durable, node.cut, node.saved, node.rewrites, list(node.failed)
                )
                return file
            folder = copies[node] = Folder()
            folder.names = {name: copy(child) for name, child in node.names.items()}
            folder.durable = {name: copy(child) for name, child in node.durable.items()}
            folder.changes = [
                NameChange(number, tuple((name, None if child is None else copy(child)) for name, child in sets))
                for number, sets in node.changes
            ]
            return folder

        fork = Names()
        fork.folders = {
            path: folder for path, original in self.folders.items() if isinstance(folder := copy(original), Folder)
        }
        fork.files = {path: file for path, original in self.files.items() if isinstance(file := copy(original), File)}
        fork.last_change = self.last_change
        fork._unsynced = {folder: None for original in self._unsynced if isinstance(folder := copy(original), Folder)}
        return fork

    def power_loss(self, survives: Callable[[], bool]) -> None:
        """Keep each unsynced change for which ``survives`` returns true, with the earlier changes of the same names."""
        for folder in list(self._unsynced):
            self._keep(folder, lambda _: survives())
            folder.changes.clear()
        self._unsynced.clear()
        root = self.folders[""]
        self.files, self.folders = {}, {}
        self._found(root, "")
        self.folders[""] = root

    def _found(self, folder: Folder, path: str) -> bool:
        """Take up what the durable names show. False if there is no file."""
        folder.names = {}
        for name, node in folder.durable.items():
            inner = f"{path}/{name}" if path else name
            if isinstance(node, File):
                self.files[inner] = node
                folder.names[name] = node
            elif self._found(node, inner):
                folder.names[name] = node
        folder.durable = dict(folder.names)
        if folder.names:
            self.folders[path] = folder
        return bool(folder.names)

    def _keep(self, folder: Folder, chosen: Callable[[NameChange], bool]) -> None:
        """Make the chosen changes durable."""
        surviving: list[NameChange] = []
        left: list[NameChange] = []
        names: set[str] = set()
        for change in reversed(folder.changes):
            if chosen(change) or any(name in names for name, _ in change.sets):
                surviving.append(change)
                names.update(name for name, _ in change.sets)
            else:
                left.append(change)
        for change in reversed(surviving):
            for name, node in change.sets:
                self._make_durable(folder, name, node)
        folder.changes = left[::-1]
        if not left:
            self._unsynced.pop(folder, None)

    def _make_durable(self, folder: Folder, name: str, node: "Node | None") -> None:
        gone = folder.durable.pop(name, None)
        if node is not None:
            folder.durable[name] = node
        elif isinstance(gone, Folder):
            self._unsynced.pop(gone, None)

    def _make(self, path: str) -> None:
        if path not in self.folders:
            parent, _, name = path.rpartition("/")
            self._make(parent)
            folder = self.folders[path] = Folder()
            self._change(parent, (name, folder))

    def _renamed(self, old: str, old_name: str, new: str, new_name: str, node: Node) -> None:
        if old == new:
            self._change(old, (old_name, None), (new_name, node))
            return
        # The broker renames within one folder only. Between two folders all names are durable at once.
        for path, change in ((new, (new_name, node)), (old, (old_name, None))):
            self._change(path, change)
            self._keep_up_to(self.folders[path], self.last_change)

    def _change(self, path: str, *sets: "tuple[str, Node | None]") -> None:
        folder = self.folders[path]
        for name, node in sets:
            if node is None:
                del folder.names[name]
            else:
                folder.names[name] = node
        self.last_change += 1
        folder.changes.append(NameChange(self.last_change, sets))
        self._unsynced[folder] = None
        self.process.changed(path)

    def _drop_empty(self, path: str) -> None:
        while path and not self.folders[path].names:
            del self.folders[path]
            self.process.forget(path)
            path, _, name = path.rpartition("/")
            self._change(path, (name, None))


def _move(table: dict[str, Any], source: str, target: str) -> None:
    for path in [path for path in table if path == source or path.startswith(source + "/")]:
        table[target + path[len(source) :]] = table.pop(path)


ZEROED = 0.25
"""Probability that an unsynced end that has kept its size has lost its last bytes, which read as zeros."""
UNDONE = 0.5
"""Probability that an unsynced truncation or rewrite is undone."""


class Losses(Protocol):
    """Decides what a power loss keeps of what was not synced. Every outcome is one that a real disk may have."""

    def keeps_change(self) -> bool:
        """Return whether the next change of a name is kept."""
        ...

    def undoes_rewrite(self) -> bool:
        """Return whether the next file gets the durable content back that a truncation or rewrite has replaced."""
        ...

    def kept_size(self, durable: int, size: int) -> int:
        """Return the size that the next file keeps, from its durable one to the one that it had."""
        ...

    def written_size(self, durable: int, size: int) -> int:
        """Return up to where the kept bytes are those that were written. The others read as zeros."""
        ...


class DrawnLosses:
    """Losses that a generator draws: each change independently, with the same probability."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._luck = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))

    def keeps_change(self) -> bool:
        return self._random.random() < self._luck

    def undoes_rewrite(self) -> bool:
        return self._random.random() < UNDONE

    def kept_size(self, durable: int, size: int) -> int:
        return durable + self._random.randint(0, size - durable)

    def written_size(self, durable: int, size: int) -> int:
        return self._random.randint(durable, size) if self._random.random() < ZEROED else size


@dataclass(frozen=True, slots=True)
class Synced:
    """The state that a sync makes durable when it ends: each file up to its size, and the changes of names in the
    folders, as of the start of the sync."""

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
        """Files that ``flip`` has damaged, with their bytes."""
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
        for file in [path] if path in names.files else list(names.below(path)):
            self.used_bytes -= len(names.unlink(file).content)

    def make_durable(self, path: str) -> None:
        self.finish_sync(self.begin_sync((path,)))

    def begin_sync(self, paths: Sequence[str]) -> Synced:
        """Remember what ``finish_sync`` makes durable. Of a path that is gone, the folders are synced."""
        names = self._names
        files = [names.files[path] for path in paths if path in names.files]
        for file in files:
            file.cut = len(file.content)
        return Synced(
            tuple((file, len(file.content), file.rewrites) for file in files), names.syncs(paths), names.last_change
        )

    def finish_sync(self, synced: Synced) -> None:
        """Raise DiskError if the disk is broken; then nothing became durable (``fail_begun``)."""
        if self.broken:
            self.fail_begun(synced)
            raise DiskError("sync: input/output error")
        for file, size, rewrites in synced.files:
            file.durable = max(file.durable, min(size, file.cut, len(file.content)))
            if file.rewrites == rewrites:
                file.saved = None
        for folder in synced.folders:
            self._names.synced(folder, synced.change)

    def durable(self, path: str) -> bytes | None:
        """Return the bytes that a power loss now leaves of the file in any case, or None if it may lose its name.

        If another file has taken the name and the folder is not synced since, the bytes are those of the earlier one.
        """
        file = self._names.durable(path)
        if file is None:
            return None
        durable_bytes = file.content[: file.durable]
        for start, end in file.failed:
            durable_bytes[start:end] = bytes(len(durable_bytes[start:end]))
        return bytes(durable_bytes)

    def survives(self, path: str) -> bool:
        """Return whether any power loss leaves the whole file, under this name or the one that it had before a
        rename."""
        file = self._names.files.get(path)
        is_whole = file is not None and file.written_durable >= len(file.content)
        return is_whole and self._names.survives(path)

    def may_return(self, path: str) -> bool:
        """Return whether a power loss may leave a file of this name, though it may be deleted: one that is durable, or
        whose creation is not synced but kept by chance."""
        parent, _, name = path.rpartition("/")
        folder = self._names.folders.get(parent)
        return folder is not None and (
            name in folder.durable
            or any(changed == name and node is not None for change in folder.changes for changed, node in change.sets)
        )

    def durable_size(self, path: str) -> int | None:
        """Return the number of bytes from the file's start on that any power loss leaves as they were written, or None
        if it may take the name."""
        file = self._names.durable(path)
        return None if file is None else file.written_durable

    def process_started(self) -> None:
        """Record that another process uses the disk from now on. It does not know which names its predecessor left
        unsynced."""
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

    def power_loss(self, losses: Losses | None = None) -> None:
        """Lose the non-durable data that ``losses`` selects, or else the seed."""
        losses = DrawnLosses(self._random) if losses is None else losses
        self._names.power_loss(losses.keeps_change)
        for path in sorted(self._names.files):
            self._tear(self._names.files[path], losses)
        self._measure()

    def fork(self) -> "SimDisk":
        """Return a copy of the disk with the same durable data. Running syncs do not end there."""
        fork = SimDisk(Random(0))
        fork.mount(self._names.fork())
        return fork

    def flip(self, path: str, bit: int) -> None:
        """Flip the bit of the file with this number, counted from its start."""
        content = self._file(path).content
        content[bit // 8] ^= 1 << bit % 8
        self.damaged.append((path, bytes(content)))

    def all_files(self) -> Sequence[tuple[str, bytes]]:
        """Each path with its content, sorted."""
        return [(path, bytes(file.content)) for path, file in sorted(self._names.files.items())]

    def _read_again(self, file: File) -> None:
        """Read a file from the disk after a failed sync: a part of what was written, and then zeros or what was
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

    def _tear(self, file: File, losses: Losses) -> None:
        self._read_again(file)
        if file.saved is not None and losses.undoes_rewrite():
            file.content = bytearray(file.saved)
        elif len(file.content) > file.durable:
            size = losses.kept_size(file.durable, len(file.content))
            del file.content[size:]
            written = losses.written_size(file.durable, size)
            file.content[written:] = bytes(size - written)
        file.durable = len(file.content)
        file.saved = None

    def unmount(self) -> Names:
        """Remove all files, and return them."""
        names, self._names = self._names, Names()
        self.used_bytes = 0
        return names

    def mount(self, names: Names) -> None:
        """Put back what ``unmount`` returned, instead of what was written since."""
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


def damaged_paths(disk: object) -> list[str]:
    """Return the names that files of a node had when faults flipped bits in them, at rest or while they were written
    (``WatchedDisk.flipped``). Of a real disk nothing is known."""
    inner = getattr(disk, "inner", disk)
    at_rest = [path for path, _ in inner.damaged] if isinstance(inner, SimDisk) else []
    return [*getattr(disk, "flipped", ()), *at_rest]
