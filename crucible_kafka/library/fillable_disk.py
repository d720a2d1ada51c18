"""A disk that can be full: it refuses whatever needs space, and everything else works."""

from collections.abc import Callable, Sequence

from reference_broker.ports.disk import Buffer, Disk, DiskError


class FillableDisk:
    """Implements ``ports.disk.Disk`` on another one."""

    def __init__(self, disk: Disk, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full
        self._append, self._write = disk.append, disk.write
        self.list = disk.list
        self.exists = disk.exists
        self.size = disk.size
        self.read = disk.read
        self.truncate = disk.truncate
        self.rename = disk.rename
        self.delete = disk.delete
        self.make_durable = disk.make_durable

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._check(path)
        return self._append(path, buffers)

    def write(self, path: str, data: Buffer) -> None:
        self._check(path)
        self._write(path, data)

    def _check(self, path: str) -> None:
        if self._is_full():
            raise DiskError(f"{path}: no space left on device (a fault of the test)")
