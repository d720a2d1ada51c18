"""The names on a simulated disk, and which of them a power loss may take.

A folder's names are data of the folder, as POSIX says: a created, renamed or unlinked name is durable only once the
folder was synced. Until then a power loss keeps or loses each change by itself. Two rules limit that, and journalling
file systems keep them, too: a rename is atomic, and the changes of one name stay in order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias


@dataclass(slots=True, eq=False)
class File:
    """One file.

    ``durable`` <= len(content). ``cut`` is the least size since the last sync began. ``saved`` is the durable content
    that a truncation or a rewrite replaced, until that is synced. ``rewrites`` counts truncations and rewrites. If
    ``sync_failed``, what is not durable is lost although it can still be read.
    """

    content: bytearray = field(default_factory=bytearray)
    durable: int = 0
    cut: int = 0
    saved: bytes | None = None
    rewrites: int = 0
    sync_failed: bool = False


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


Node: TypeAlias = File | Folder


class Names:
    """A tree of folders, with tables of all paths. Folders are made when needed, and go with their last name."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: dict[str, Folder] = {"": Folder()}
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
        self._change(self._made(parent), (name, file))
        return file

    def rename_file(self, source: str, target: str) -> File | None:
        """Returns the file that ``target`` was before."""
        replaced = self.files.get(target)
        file = self.files.pop(source)
        old_parent, _, old_name = source.rpartition("/")
        new_parent, _, new_name = target.rpartition("/")
        old, new = self.folders[old_parent], self._made(new_parent)
        self.files[target] = file
        self._renamed(old, old_name, new, new_name, file)
        self._drop_empty(old_parent)
        return replaced

    def rename_folder(self, source: str, target: str) -> None:
        """The target must not exist."""
        old_parent, _, old_name = source.rpartition("/")
        new_parent, _, new_name = target.rpartition("/")
        new = self._made(new_parent)
        _move(self.files, source, target)
        _move(self.folders, source, target)
        self._renamed(self.folders[old_parent], old_name, new, new_name, self.folders[target])
        self._drop_empty(old_parent)

    def unlink(self, path: str) -> File:
        parent, _, name = path.rpartition("/")
        file = self.files.pop(path)
        self._change(self.folders[parent], (name, None))
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

    def above(self, path: str) -> Iterator[Folder]:
        """The folders that hold a path, as far as they exist."""
        while path:
            path = path.rpartition("/")[0]
            folder = self.folders.get(path)
            if folder is not None:
                yield folder

    def synced(self, folder: Folder, up_to: int) -> None:
        """Changes up to that number are durable."""
        if folder.changes:
            self._keep(folder, lambda change: change.number <= up_to)

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

    def _made(self, path: str) -> Folder:
        folder = self.folders.get(path)
        if folder is None:
            parent, _, name = path.rpartition("/")
            folder = self.folders[path] = Folder()
            self._change(self._made(parent), (name, folder))
        return folder

    def _renamed(self, old: Folder, old_name: str, new: Folder, new_name: str, node: Node) -> None:
        if old is new:
            self._change(old, (old_name, None), (new_name, node))
            return
        # The broker renames within one folder only. Between two folders all names are durable at once.
        for folder, change in ((new, (new_name, node)), (old, (old_name, None))):
            self._change(folder, change)
            self.synced(folder, self.last_change)

    def _change(self, folder: Folder, *sets: "tuple[str, Node | None]") -> None:
        for name, node in sets:
            if node is None:
                del folder.names[name]
            else:
                folder.names[name] = node
        self.last_change += 1
        folder.changes.append(NameChange(self.last_change, sets))
        self._unsynced[folder] = None

    def _drop_empty(self, path: str) -> None:
        while path and not self.folders[path].names:
            del self.folders[path]
            path, _, name = path.rpartition("/")
            self._change(self.folders[path], (name, None))


def _move(table: dict[str, Any], source: str, target: str) -> None:
    for path in [path for path in table if path == source or path.startswith(source + "/")]:
        table[target + path[len(source) :]] = table.pop(path)
