"""The open files of the whole node. When there are too many, the least recently used one is closed."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from reference_broker.serve.process import is_out_of_descriptors

T = TypeVar("T")


@dataclass(slots=True)
class OpenFile:
    """``size_bytes`` is the size of the file. It stays right because only this node writes in its data folder."""

    descriptor: int
    size_bytes: int


class OpenFiles:
    """The table is ordered by last use. The first entry is the next one to close."""

    def __init__(self, open_file: Callable[[str, bool], OpenFile], limit: int) -> None:
        """``open_file(path, create)`` opens a file. ``limit`` is the greatest number of open files, at least 1."""
        self._open = open_file
        self._limit = max(1, limit)
        self._files: dict[str, OpenFile] = {}

    def holds(self, path: str) -> bool:
        return path in self._files

    def get(self, path: str, create: bool = False) -> OpenFile:
        """Opens the file if it is not open. Raises DiskError if there is none, unless it is to be created."""
        file = self._files.pop(path, None)
        if file is None:
            file = self._opened(path, create)
        self._files[path] = file
        return file

    def forget(self, path: str) -> None:
        """Closes a file, or all files in a folder, before it is renamed or deleted."""
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
        """Does something that needs a descriptor. If there is none, because sockets took them, open files close."""
        while True:
            try:
                return work()
            except OSError as failure:
                if not is_out_of_descriptors(failure) or not self._files:
                    raise
            self._close_oldest()

    def _close_oldest(self) -> None:
        os.close(self._files.pop(next(iter(self._files))).descriptor)
