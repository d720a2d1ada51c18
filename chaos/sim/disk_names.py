"""The names on a simulated disk, and which of them a power loss may take.

A folder's names are data of the folder, as POSIX says: a created, renamed or unlinked name is durable only once the
folder was synced. Until then a power loss keeps or loses each change by itself. Two rules limit that, and journalling
file systems keep them, too: a rename is atomic, and the changes of one name stay in order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from reference_broker.ports.folder_changes import FolderChanges, KnownFolder


@dataclass(slots=True, eq=False)
class File:
    """One file.

    ``durable`` <= len(content). ``cut`` is the least size since the last sync began. ``saved`` is the durable content
    that a truncation or a rewrite replaced, until that is synced. ``rewrites`` counts truncations and rewrites.
    ``failed`` has the ranges (start, end) that a failed sync covered. They can be read, but the disk does not have
    them, even where they are below ``durable`` because a later sync has succeeded.
    """

    content: bytearray = field(default_factory=bytearray)
    durable: int = 0
    cut: int = 0
    saved: bytes | None = None
    rewrites: int = 0
    failed: list[tuple[int, int]] = field(default_factory=list)

    def sync_failed(self, size: int) -> None:
        """A sync of the first ``size`` bytes has failed. Bytes that are appended later are ordinary ones."""
        start = self.durable
        if start < size:
            met = [each for each in self.failed if each[1] >= start]
            apart = [each for each in self.failed if each[1] < start]
            self.failed = [*apart, (min([start, *(low for low, _ in met)]), max([size, *(high for _, high in met)]))]

    def rewritten(self, size: int) -> None:
        """Bytes from ``size`` on are about to be replaced. What is durable of them may come back."""
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
    """One change of a folder. ``sets`` has a name and what it stands for from now on, or None for nothing."""

    number: int
    sets: tuple[tuple[str, "Node | None"], ...]


@dataclass(slots=True, eq=False)
class Folder:
    """``names`` is what can be seen, ``durable`` what a power loss leaves in any case. ``changes`` lie between them."""

    names: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)
    changes: list[NameChange] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class FolderSync:
    """The sync of one folder. It covers the first ``changes`` changes of which the process knows in ``known``."""

    folder: Folder
    known: KnownFolder
    changes: int


Node: TypeAlias = File | Folder


class Names:
    """A tree of folders, with tables of all paths. Folders are made when needed, and go with their last name.

    ``process`` is what the process that runs now knows of the folders. A sync covers those that it knows to have
    changed, as with real files, where nobody else can tell.
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
        """Returns the file that ``target`` was before."""
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

    def syncs(self, paths: Sequence[str]) -> tuple[FolderSync, ...]:
        """The syncs of the folders that hold the paths, as far as they exist and need one for all that the process
        knows."""
        above: dict[str, None] = {}
        for path in paths:
            while path:
                path = path.rpartition("/")[0]
                above[path] = None
        found = []
        for path in above:
            folder = self.folders.get(path)
            if folder is not None:
                known = self.process.of(path)
                if known.durable < known.changes:
                    found.append(FolderSync(folder, known, known.changes))
        return tuple(found)

    def synced(self, sync: FolderSync, up_to: int) -> None:
        """The sync has ended. Changes up to the number ``up_to`` were made before it began."""
        sync.known.durable = max(sync.known.durable, sync.changes)
        self._keep_up_to(sync.folder, up_to)

    def _keep_up_to(self, folder: Folder, number: int) -> None:
        if folder.changes:
            self._keep(folder, lambda change: change.number <= number)

    def power_loss(self, kept: Callable[[], bool]) -> None:
        """Keeps each unsynced change for which ``kept`` says so, with the earlier changes of the same names."""
        for folder in list(self._unsynced):
            self._keep(folder, lambda _: kept())
            folder.changes.clear()
        self._unsynced.clear()
        root = self.folders[""]
        self.files, self.folders = {}, {}
        self._found(root, "")
        self.folders[""] = root

    def _found(self, folder: Folder, path: str) -> bool:
        """Takes up what the durable names show. False if there is no file."""
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
        """Makes the chosen changes durable."""
        kept: list[NameChange] = []
        left: list[NameChange] = []
        names: set[str] = set()
        for change in reversed(folder.changes):
            if chosen(change) or any(name in names for name, _ in change.sets):
                kept.append(change)
                names.update(name for name, _ in change.sets)
            else:
                left.append(change)
        for change in reversed(kept):
            for name, node in change.sets:
                self._settle(folder, name, node)
        folder.changes = left[::-1]
        if not left:
            self._unsynced.pop(folder, None)

    def _settle(self, folder: Folder, name: str, node: "Node | None") -> None:
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
