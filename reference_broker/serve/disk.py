"""The disk port on real files: below one data directory, which a lock reserves for one process.

A table keeps the descriptors of files open. Names of files become durable with an fsync of their folder, which several
syncs share: none of them ends before an fsync that began after its names were there.
"""

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Condition
from typing import NamedTuple, TypeVar

from reference_broker.log.checkpoints import RECOVERY_POINT_FILE, decoded_rows
from reference_broker.log.quarantine import is_segment
from reference_broker.log.segment import NAME_DIGITS
from reference_broker.ports.disk import Buffer, DiskError, FolderChanges, KnownFolder, UndoFailed
from reference_broker.serve.process import StartError, is_out_of_descriptors


class DataFolder:
    """Only one process can use the folder: a lock (flock on ``.lock``) lasts until ``release`` or the process's end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failure:
            raise StartError(
                f"Cannot write to the data directory {path} ({failure.strerror}): give --data a directory of your own."
            ) from failure
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(self._lock)
            raise StartError(
                f"The data directory {path} is in use by another process: stop that node or give another --data."
            ) from failure

    def release(self) -> None:
        os.close(self._lock)


T = TypeVar("T")


@dataclass(slots=True)
class OpenFile:
    """A file of the data folder."""

    descriptor: int
    size_bytes: int
    """The size of the file, which only this node changes."""


class OpenFiles:
    """The open files of the whole node, ordered by last use. If there are too many, the first one is closed."""

    def __init__(self, open_file: Callable[[str, bool], OpenFile], limit: int) -> None:
        """``open_file(path, create)`` opens a file. ``limit`` is the greatest number of open files, at least 1."""
        self._open = open_file
        self._limit = max(1, limit)
        self._files: dict[str, OpenFile] = {}

    def holds(self, path: str) -> bool:
        return path in self._files

    def get(self, path: str, create: bool = False) -> OpenFile:
        """Return the open file, and open it if needed. Raise DiskError if there is none, unless it is to be
        created."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._opened(path, create)
        self._files[path] = file
        return file

    def forget(self, path: str) -> None:
        """Close a file, or all files in a folder, before it is renamed or deleted."""
        file = self._files.pop(path, None)
        if file is not None:
            os.close(file.descriptor)
            return
        below = path + "/"
        for name in [name for name in self._files if name.startswith(below)]:
            os.close(self._files.pop(name).descriptor)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()

    def _opened(self, path: str, create: bool) -> OpenFile:
        while len(self._files) >= self._limit:
            self._close_oldest()
        return self.with_room(lambda: self._open(path, create))

    def with_room(self, work: Callable[[], T]) -> T:
        """Do something that needs a descriptor. If none is free, because sockets took them, close open files."""
        while True:
            try:
                return work()
            except OSError as failure:
                if not is_out_of_descriptors(failure) or not self._files:
                    raise
            self._close_oldest()

    def _close_oldest(self) -> None:
        os.close(self._files.pop(next(iter(self._files))).descriptor)


class FolderSync(NamedTuple):
    """A sync of an open folder."""

    descriptor: int
    folder: KnownFolder
    changes: int
    """Number of changes of names, the first ones, that must become durable."""


class FolderSyncs:
    """Which folders have names that are not durable, and the fsyncs that make them so. Folders are full paths.

    The thread of the disk calls all methods but ``run``, which any thread may call.
    """

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
        """Open the folder if any of its names may not be durable. Return None for a folder that is gone. Raise
        OSError."""
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
        """Block until the names are durable. Raise OSError, also if an earlier fsync of the folder has failed: its
        changes are lost, and a later fsync would not report that."""
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


LOCK_NAME = ".lock"
_BUFFERS_PER_WRITE = 512  # Below Linux's IOV_MAX of 1024.


@dataclass(frozen=True, slots=True)
class OpenedForSync:
    """Descriptors of what one sync makes durable, those of files by full path."""

    files: dict[str, int] = field(default_factory=dict)
    folders: list[FolderSync] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        for folder in self.folders:
            os.close(folder.descriptor)


class FileDisk:
    """``ports.disk.Disk`` over files. One thread calls all methods but ``synchronise``.

    Appends go straight to the page cache, and a cut-short append is undone. Descriptors are kept in a
    least-recently-used table of ``max_open_files``. Names become durable with the next sync of a path in their folder.
    """

    def __init__(self, root: str | Path, max_open_files: int) -> None:
        self._root = os.path.abspath(root)
        self._files = OpenFiles(self._open, max_open_files)
        self._folders = FolderSyncs()
        self.folder_delay_s = 0.0
        """The delay of each sync of a folder (a fault: a slow disk)."""
        self.folders_delayed = 0
        self._unwritten: dict[str, None] = {}
        """Full paths of files with pages that the kernel could not write."""

    def list(self, directory: str) -> Sequence[str]:
        try:
            names = self._files.with_room(lambda: os.listdir(self._full(directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as failure:
            raise _failed("list", directory, failure) from failure
        # The driver's own lock file is not part of the node's data.
        return sorted(name for name in names if directory or name != LOCK_NAME)

    def exists(self, path: str) -> bool:
        if self._files.holds(path):
            return True
        try:
            os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as failure:
            # ``os.path.exists`` would return False, and a node whose files are missing starts empty.
            raise _failed("look for", path, failure) from failure
        return True

    def size(self, path: str) -> int:
        return self._files.get(path).size_bytes

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        file = self._files.get(path, create=True)
        position = file.size_bytes
        try:
            if len(buffers) == 1:
                written, wanted = os.write(file.descriptor, buffers[0]), len(buffers[0])
                while written < wanted:
                    written += os.write(file.descriptor, memoryview(buffers[0])[written:])
            else:
                written = _write_all(file.descriptor, buffers)
        except OSError as failure:
            self._undo(path, file)
            raise _failed("append to", path, failure) from failure
        file.size_bytes = position + written
        return position

    def read(self, path: str, position: int, length: int) -> bytes:
        file = self._files.get(path)
        try:
            data = os.pread(file.descriptor, length, position)
            if len(data) < length and position + len(data) < file.size_bytes:
                return _read_rest(file, data, position, length)
        except OSError as failure:
            raise _failed("read", path, failure) from failure
        return data

    def truncate(self, path: str, size: int) -> None:
        file = self._files.get(path)
        try:
            os.ftruncate(file.descriptor, size)
        except OSError as failure:
            raise _failed("truncate", path, failure) from failure
        file.size_bytes = size

    def write(self, path: str, data: Buffer) -> None:
        file = self._files.get(path, create=True)
        try:
            os.ftruncate(file.descriptor, 0)
            file.size_bytes = 0
            file.size_bytes = _write_all(file.descriptor, [data])
        except OSError as failure:
            file.size_bytes = os.fstat(file.descriptor).st_size
            raise _failed("write", path, failure) from failure

    def rename(self, source: str, target: str) -> None:
        self._files.forget(source)
        self._files.forget(target)
        full_source, full_target = self._full(source), self._full(target)
        try:
            is_folder = stat.S_ISDIR(os.stat(full_source).st_mode)
            if os.path.isdir(full_target):
                self._files.with_room(lambda: shutil.rmtree(full_target))
                self._folders.forget(full_target)
            self._make_folder(os.path.dirname(full_target))
            os.replace(full_source, full_target)
            if is_folder:
                self._folders.moved(full_source, full_target)
            self._folders.changed(os.path.dirname(full_target))
            self._name_gone(full_source)
        except OSError as failure:
            raise _failed("rename", f"{source} to {target}", failure) from failure

    def delete(self, path: str) -> None:
        self._files.forget(path)
        full = self._full(path)
        try:
            try:
                os.unlink(full)
            except (IsADirectoryError, PermissionError):  # Darwin returns EPERM for a folder.
                if not os.path.isdir(full):
                    raise
                self._files.with_room(lambda: shutil.rmtree(full))
                self._folders.forget(full)
            self._name_gone(full)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as failure:
            raise _failed("delete", path, failure) from failure

    def make_durable(self, path: str) -> None:
        try:
            self.synchronise(self._files.with_room(lambda: self.open_for_sync((path,))))
        except OSError as failure:
            raise _failed("sync", path, failure) from failure

    def open_for_sync(self, paths: Sequence[str]) -> OpenedForSync:
        """Open the files, and the folders whose names must be synced. ``synchronise`` closes the descriptors.

        If a file is gone, only its folders are synced. Called by the thread that calls the port.
        """
        opened = OpenedForSync()
        folders: dict[str, None] = {}
        try:
            for path in paths:
                full = self._full(path)
                with suppress(FileNotFoundError):
                    opened.files[full] = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
                while len(full) > len(self._root):
                    full = os.path.dirname(full)
                    folders[full] = None
            for folder in folders:
                wanted = self._folders.opened(folder)
                if wanted is not None:
                    opened.folders.append(wanted)
        except OSError as failure:
            opened.close()
            raise _failed("open for a sync", paths[0], failure) from failure
        return opened

    def synchronise(self, opened: OpenedForSync) -> None:
        """Make durable all bytes written, and all names changed, before the opening. Blocks; any thread may call it.
        Raise OSError."""
        try:
            for path, descriptor in opened.files.items():
                self._sync_file(path, descriptor)
            for folder in opened.folders:
                if self.folder_delay_s:
                    self.folders_delayed += 1
                    time.sleep(self.folder_delay_s)
                self._folders.run(folder)
        finally:
            opened.close()

    def _sync_file(self, path: str, descriptor: int) -> None:
        try:
            _sync_data(descriptor)
        except OSError:
            self._unwritten[path] = None
            raise

    def spare_descriptors(self) -> None:
        """Close the open files. They are reopened when they are needed."""
        self._files.close()

    def distrust_cache(self) -> None:
        """Drop the pages of all files that the previous process may not have synced, so that a start reads what the
        disk has. Dirty pages stay. A process that was killed right after a failed sync did not drop them itself
        (``close``).
        """
        for folder, _, names in os.walk(self._root):
            bases = sorted(name for name in names if is_segment(name))
            synced = _synced_segments(f"{folder}/{RECOVERY_POINT_FILE}", bases)
            for name in sorted({*names}.difference(synced, (LOCK_NAME,))):
                with suppress(OSError):
                    _drop_pages(f"{folder}/{name}")

    def close(self) -> None:
        """Close the files.

        After a failed sync Linux marks the pages clean that it could not write. They could be read until they are
        evicted, and a later sync would succeed without them. So they are dropped here: the next start must not rely
        on what only the page cache has.
        """
        self._files.close()
        for path in self._unwritten:
            with suppress(OSError):
                _drop_pages(path)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _open(self, path: str, create: bool) -> OpenFile:
        full = self._full(path)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(full, flags)
            except FileNotFoundError:
                if not create:
                    raise
                self._make_folder(os.path.dirname(full))
                descriptor = os.open(full, flags | os.O_CREAT, 0o644)
                self._folders.changed(os.path.dirname(full))
            return OpenFile(descriptor, os.fstat(descriptor).st_size)
        except OSError as failure:
            raise _failed("open", path, failure) from failure

    def _make_folder(self, folder: str) -> None:
        """Create the folder and its parents, from the root down."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make_folder(parent)
        os.mkdir(folder)
        self._folders.changed(parent)

    def _name_gone(self, full: str) -> None:
        """Record the change of the folder, and remove folders that are empty now: a folder exists only while it has
        content, as in the simulated disk."""
        folder = os.path.dirname(full)
        self._folders.changed(folder)
        while len(folder) > len(self._root):
            try:
                os.rmdir(folder)
            except OSError:
                return
            self._folders.forget(folder)
            folder = os.path.dirname(folder)
            self._folders.changed(folder)

    def _undo(self, path: str, file: OpenFile) -> None:
        """Truncate what a failed append left."""
        try:
            os.ftruncate(file.descriptor, file.size_bytes)
        except OSError as failure:
            # The file's end is unknown now, so the next user must get it from the file system.
            self._files.forget(path)
            raise UndoFailed(*_failed("undo a partial append to", path, failure).args) from failure


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> int:
    total = 0
    for start in range(0, len(buffers), _BUFFERS_PER_WRITE):
        views = [memoryview(buffer) for buffer in buffers[start : start + _BUFFERS_PER_WRITE] if len(buffer)]
        while views:
            written = os.writev(descriptor, views)
            total += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
    return total


def _read_rest(file: OpenFile, data: bytes, position: int, length: int) -> bytes:
    """A read may be cut short by a signal or by Linux's limit of 2 GiB for one call."""
    parts = [data]
    have = len(data)
    while have < length and parts[-1]:
        parts.append(os.pread(file.descriptor, length - have, position + have))
        have += len(parts[-1])
    return b"".join(parts)


def _synced_segments(checkpoint: str, names: Sequence[str]) -> Sequence[str]:
    """Return those of a log's segments that end at or before its recovery point."""
    try:
        rows = decoded_rows(Path(checkpoint).read_bytes()) or ["0"]
    except OSError:
        return ()
    point = int(rows[0]) if rows[0].isdecimal() else 0
    return [name for name, behind in pairwise(names) if int(behind[:NAME_DIGITS]) <= point]


def _drop_pages(path: str) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _sync_data(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _failed(action: str, path: str, failure: OSError) -> DiskError:
    number = failure.errno or errno.EIO
    return DiskError(number, f"cannot {action} {path}: {os.strerror(number)}")
