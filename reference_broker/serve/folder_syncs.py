"""Which folders have names that are not durable, and the fsyncs that make them so.

Several syncs that need the same folder share one fsync. None of them ends before an fsync that began after its names
were there.
"""

import os
from threading import Condition
from typing import NamedTuple

from reference_broker.ports.folder_changes import FolderChanges, KnownFolder


class FolderSync(NamedTuple):
    """An open folder, whose first ``changes`` changes must become durable."""

    descriptor: int
    folder: KnownFolder
    changes: int


class FolderSyncs:
    """The thread of the disk calls all methods but ``run``, which any thread may call. Folders are full paths."""

    def __init__(self) -> None:
        self._folders = FolderChanges()
        self._turn = Condition()
        self.moved = self._folders.moved
        self.forget = self._folders.forget

    def changed(self, path: str) -> None:
        """A name in the folder was created, renamed or deleted."""
        with self._turn:
            self._folders.changed(path)

    def opened(self, path: str) -> FolderSync | None:
        """Opens the folder if any of its names may not be durable. A folder that is gone has none. Raises OSError."""
        folder = self._folders.of(path)
        with self._turn:
            changes = folder.changes
            if folder.durable >= changes:
                return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._folders.forget(path)
            return None
        return FolderSync(descriptor, folder, changes)

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
