"""A disk with fault injection: a wrapper of the real disk that fails at an operation or at byte k of a write."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, NamedTuple, TypeAlias

from reference_broker.ports.disk import Buffer, Disk, UndoFailed


class WriteFault(NamedTuple):
    """A fault in the middle of a write."""

    kept: int
    """Number of bytes that are written before the fault."""
    act: Callable[[], None]
    """Called after those bytes. It may never return, or may raise DiskError."""
    flips: bool = False
    """Whether the lowest bit of the next byte is written wrong, without an error."""


BeforeWrite: TypeAlias = Callable[[str, int, int], WriteFault | None]
"""Takes path, position and size of the write in bytes. Returns the fault of the write, or None."""
Before: TypeAlias = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""Takes the names of an operation (``vocabulary.DISK_OPERATIONS``) and its paths, before it is done. It may never
return, or may raise DiskError."""


class WatchedDisk:
    """Implements ports.disk.Disk over another disk.

    A file that a failed append has made stays, without content. Where a ``write`` fails, the file holds what was
    written until then.
    """

    _is_watched: ClassVar[bool] = True

    def __init__(
        self,
        inner: Disk,
        before_write: BeforeWrite = lambda path, position, size: None,  # noqa: ARG005
        before: Before = lambda names, paths: None,  # noqa: ARG005
    ) -> None:
        self.inner = inner
        self.flipped: dict[str, None] = {}
        """paths of writes in which a fault has changed a bit"""
        self._before_write = before_write
        self._before = before

    @staticmethod
    def unwatched() -> AbstractContextManager[None]:
        """Inject no fault inside the block. Checks read the node's files there."""
        return _Unwatched()

    def list(self, directory: str) -> Sequence[str]:
        if self._is_watched:
            self._before(("open", "list"), (directory,))
        return self.inner.list(directory)

    def exists(self, path: str) -> bool:
        if self._is_watched:
            self._before(("stat",), (path,))
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        if self._is_watched:
            self._before(("open", "stat"), (path,))
        return self.inner.size(path)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._before(("open", "write"), (path,))
        position = self.inner.size(path) if self.inner.exists(path) else 0
        fault = self._before_write(path, position, sum(len(buffer) for buffer in buffers))
        if fault is None:
            return self.inner.append(path, buffers)
        data = self._written(path, b"".join(buffers), fault)
        self.inner.append(path, [data[: fault.kept]])
        try:
            fault.act()
        except UndoFailed:
            raise
        except OSError:
            self.inner.truncate(path, position)
            raise
        self.inner.append(path, [data[fault.kept :]])
        return position

    def read(self, path: str, position: int, length: int) -> bytes:
        if self._is_watched:
            self._before(("open", "read"), (path,))
        return self.inner.read(path, position, length)

    def truncate(self, path: str, size: int) -> None:
        self._before(("open", "truncate"), (path,))
        self.inner.truncate(path, size)

    def write(self, path: str, data: Buffer) -> None:
        self._before(("open", "write"), (path,))
        fault = self._before_write(path, 0, len(data))
        if fault is not None:
            data = self._written(path, bytes(data), fault)
            self.inner.write(path, data[: fault.kept])
            fault.act()
        self.inner.write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._before(("rename",), (source, target))
        self.inner.rename(source, target)

    def delete(self, path: str) -> None:
        self._before(("delete",), (path,))
        self.inner.delete(path)

    def make_durable(self, path: str) -> None:
        self._before(("open", "sync"), (path,))
        self.inner.make_durable(path)

    def _written(self, path: str, data: bytes, fault: WriteFault) -> bytes:
        """Return the bytes that are really written to the file."""
        if not fault.flips or fault.kept >= len(data):
            return data
        self.flipped[path] = None
        bad = bytearray(data)
        bad[fault.kept] ^= 1
        return bytes(bad)


class _Unwatched(AbstractContextManager[None]):
    """A class, because checks enter it more than once in an event, and ``@contextmanager`` costs thrice as much."""

    __slots__ = ("_was_watched",)

    def __enter__(self) -> None:
        self._was_watched, WatchedDisk._is_watched = WatchedDisk._is_watched, False

    def __exit__(self, *_: object) -> None:
        WatchedDisk._is_watched = self._was_watched
