"""Which folders have names that are not durable, and the fsyncs that make them so.

Several syncs that need the same folder share one fsync. None of them ends before an fsync that began after its names
were there.
"""

import os
from dataclasses import dataclass
from threading import Condition
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class _Folder:
    """``changes`` counts the changes of names. The first ``durable`` of them are durable."""

    changes: int = 0
    durable: int = 0
    is_syncing: bool = False
    failure: OSError | None = None


class FolderSync(NamedTuple):
    """An open folder, whose first ``changes`` changes must become durable."""

    descriptor: int
    folder: _Folder
    changes: int


class FolderSyncs:
    """The thread of the disk calls all methods but ``run``, which any thread may call. Folders are full paths."""

    def __init__(self) -> None:
        self._folders: dict[str, _Folder] = {}
        self._turn = Condition()

    def changed(self, path: str) -> None:
        """A name in the folder was created, renamed or deleted."""
        with self._turn:
            self._folders.setdefault(path, _Folder()).changes += 1

    def moved(self, source: str, target: str) -> None:
        """The folder has another path, and so have those in it."""
        for path in [path for path in self._folders if path == source or path.startswith(source + "/")]:
            self._folders[target + path[len(source) :]] = self._folders.pop(path)

    def forget(self, path: str) -> None:
        """The folder is gone, with those in it."""
        for gone in [other for other in self._folders if other == path or other.startswith(path + "/")]:
            del self._folders[gone]

    def opened(self, path: str) -> FolderSync | None:
        """Opens the folder if any of its names is not durable. Raises OSError."""
        folder = self._folders.get(path)
        if folder is None:
            return None
        with self._turn:
            changes = folder.changes
            if folder.durable >= changes:
                return None
        return FolderSync(os.open(path, os.O_RDONLY | os.O_CLOEXEC), folder, changes)

    def run(self, wanted: FolderSync) -> None:
        """Blocks until the names are durable. Raises OSError, also if an earlier fsync of the folder has failed: what
        that one should have written is lost, and a later one would not say so."""
        folder = wanted.folder
        with self._turn:
            while folder.is_syncing and folder.durable < wanted.changes:
                self._turn.wait()
            if folder.failure is not None:
                raise folder.failure
            if folder.durable >= wanted.changes:
                return
            folder.is_syncing = True
            covered = folder.changes
        failure = None
        try:
            os.fsync(wanted.descriptor)
        except OSError as error:
            failure = error
        with self._turn:
            folder.is_syncing = False
            if failure is None:
                folder.durable = covered
            else:
                folder.failure = failure
            self._turn.notify_all()
        if failure is not None:
            raise failure
