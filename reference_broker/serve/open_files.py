"""One table of open files for the whole node, the least recently used closed first."""

import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class OpenFile:
    """``size_bytes`` is the file's true size: nobody else writes below the node's data folder."""

    descriptor: int
    size_bytes: int


class OpenFiles:
    """Dictionary order is order of use: the first entry is the one to close next."""

    def __init__(self, open_file: Callable[[str, bool], OpenFile], limit: int) -> None:
        """``open_file(path, create)``; ``limit``: open descriptors at most, >= 1."""
        self._open = open_file
        self._limit = max(1, limit)
        self._files: dict[str, OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    def holds(self, path: str) -> bool:
        return path in self._files

    def get(self, path: str) -> OpenFile:
        """Raises DiskError if there is no such file."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._opened(path, False)
        self._files[path] = file
        return file

    def get_or_create(self, path: str) -> OpenFile:
        file = self._files.pop(path, None)
        if file is None:
            file = self._opened(path, True)
        self._files[path] = file
        return file

    def forget(self, path: str) -> None:
        """Closes the file, or all files below the folder, before a rename or deletion."""
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
            oldest = next(iter(self._files))
            os.close(self._files.pop(oldest).descriptor)
        return self._open(path, create)
