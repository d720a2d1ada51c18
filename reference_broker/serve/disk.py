"""The disk port on real files below one root folder."""

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from reference_broker.ports.disk import Buffer, DiskError
from reference_broker.serve.open_files import OpenFile, OpenFiles

Descriptors: TypeAlias = list[int]
LOCK_NAME = ".lock"
_BUFFERS_PER_WRITE = 512  # Below Linux's IOV_MAX of 1024.


class FileDisk:
    """``ports.disk.Disk`` over files. One thread calls all methods but ``synchronise``.

    Appends go straight to the page cache, and a cut-short append is undone. Descriptors are kept in a
    least-recently-used table of ``max_open_files``. The names of new files become durable with the next sync of a file
    in their folder.

    Two changes are made durable at once. One is the rename of a file, since order matters there: a new snapshot's name
    must precede the truncation that relies on it. The other is the deletion of a file in the root: a power loss must
    not bring back the mark of a clean shutdown.
    """

    def __init__(self, root: str | Path, max_open_files: int) -> None:
        self._root = os.path.abspath(root)
        self._files = OpenFiles(self._open, max_open_files)
        self._unsynced_folders: dict[str, None] = {}

    def list(self, directory: str) -> Sequence[str]:
        try:
            names = self._files.with_room(lambda: os.listdir(self._full(directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as failure:
            raise _failed("list", directory, failure) from failure
        # The driver's own lock file is no part of the node's data.
        return sorted(name for name in names if directory or name != LOCK_NAME)

    def exists(self, path: str) -> bool:
        return self._files.holds(path) or os.path.exists(self._full(path))

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
        full_target = self._full(target)
        try:
            is_folder = stat.S_ISDIR(os.stat(self._full(source)).st_mode)
            if os.path.isdir(full_target):
                shutil.rmtree(full_target)
            if not os.path.isdir(os.path.dirname(full_target)):
                self._make_folder(os.path.dirname(full_target))
            os.replace(self._full(source), full_target)
            if not is_folder:
                _sync_folder(os.path.dirname(full_target))
            self._drop_empty(os.path.dirname(self._full(source)))
        except OSError as failure:
            raise _failed("rename", f"{source} to {target}", failure) from failure

    def delete(self, path: str) -> None:
        self._files.forget(path)
        full = self._full(path)
        try:
            try:
                os.unlink(full)
            except (IsADirectoryError, PermissionError):  # Darwin answers EPERM for a folder.
                if not os.path.isdir(full):
                    raise
                shutil.rmtree(full)
            else:
                if os.path.dirname(full) == self._root:  # A mark of the whole node, which must not come back.
                    _sync_folder(self._root)
            self._drop_empty(os.path.dirname(full))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as failure:
            raise _failed("delete", path, failure) from failure

    def open_for_sync(self, paths: Sequence[str]) -> Descriptors:
        """Opens the files and the folders whose new names must be synced. ``synchronise`` closes the descriptors.

        A file that is gone has nothing to make durable. Called by the thread that calls the port.
        """
        descriptors: Descriptors = []
        try:
            for path in paths:
                try:
                    descriptors.append(os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC))
                except FileNotFoundError:
                    continue
                self._open_unsynced_folders(os.path.dirname(self._full(path)), descriptors)
        except OSError as failure:
            for descriptor in descriptors:
                os.close(descriptor)
            raise _failed("open for a sync", paths[0], failure) from failure
        return descriptors

    def synchronise(self, descriptors: Sequence[int]) -> None:
        """Makes all bytes written so far durable. Blocks; any thread may call it. Raises OSError."""
        try:
            for descriptor in descriptors:
                _sync_data(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def spare_descriptors(self) -> None:
        """Closes files that nobody uses right now. They are opened again when they are needed."""
        self._files.close()

    def close(self) -> None:
        self._files.close()

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
                self._unsynced_folders[os.path.dirname(full)] = None
            return OpenFile(descriptor, os.fstat(descriptor).st_size)
        except OSError as failure:
            raise _failed("open", path, failure) from failure

    def _make_folder(self, folder: str) -> None:
        """Makes the folder and its parents, from the root down. Each new name needs a later sync of its parent."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make_folder(parent)
        os.mkdir(folder)
        self._unsynced_folders[parent] = None

    def _drop_empty(self, folder: str) -> None:
        """Drops empty folders: a folder exists only while something is in it, as in the simulated disk."""
        while len(folder) > len(self._root):
            try:
                os.rmdir(folder)
            except OSError:
                return
            self._unsynced_folders.pop(folder, None)
            folder = os.path.dirname(folder)

    def _open_unsynced_folders(self, folder: str, descriptors: Descriptors) -> None:
        while len(folder) >= len(self._root):
            if folder in self._unsynced_folders:
                del self._unsynced_folders[folder]
                descriptors.append(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
            folder = os.path.dirname(folder)

    def _undo(self, path: str, file: OpenFile) -> None:
        """Cuts off what a failed append left."""
        try:
            os.ftruncate(file.descriptor, file.size_bytes)
        except OSError as failure:
            # The file's end is unknown now; forgetting it makes the next user ask the file system.
            self._files.forget(path)
            raise _failed("undo a partial append to", path, failure) from failure


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


def _sync_data(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(action: str, path: str, failure: OSError) -> DiskError:
    number = failure.errno or errno.EIO
    return DiskError(number, f"cannot {action} {path}: {os.strerror(number)}")
