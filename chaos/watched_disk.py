"""A disk between the node and its real one, so that a fault can strike at byte k of a write."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from reference_broker.ports.disk import Buffer, Disk, UndoFailed


class Strike(NamedTuple):
    """The first ``kept`` bytes are written, then ``act`` is called. It may never return, or may raise DiskError. With
    ``flips`` the lowest bit of the byte behind them is written wrong, which nobody notices."""

    kept: int
    act: Callable[[], None]
    flips: bool = False


BeforeWrite: TypeAlias = Callable[[str, int, int], Strike | None]
"""Takes path, position and size of the write in bytes. Returns what strikes the write, or None."""


class WatchedDisk:
    """Implements ports.disk.Disk over another disk. A write that fails leaves the file as it was, as the port promises,
    unless it fails with UndoFailed."""

    def __init__(self, inner: Disk, before_write: BeforeWrite) -> None:
        self.inner = inner
        self._before_write = before_write
        self.list = inner.list
        self.exists = inner.exists
        self.size = inner.size
        self.read = inner.read
        self.truncate = inner.truncate
        self.rename = inner.rename
        self.delete = inner.delete
        self.make_durable = inner.make_durable

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        existed = self.inner.exists(path)
        position = self.inner.size(path) if existed else 0
        strike = self._before_write(path, position, sum(len(each) for each in buffers))
        if strike is None:
            return self.inner.append(path, buffers)
        data = _written(b"".join(buffers), strike)
        self.inner.append(path, [data[: strike.kept]])
        try:
            strike.act()
        except UndoFailed:
            raise
        except OSError:
            if existed:
                self.inner.truncate(path, position)
            else:
                self.inner.delete(path)
            raise
        self.inner.append(path, [data[strike.kept :]])
        return position

    def write(self, path: str, data: Buffer) -> None:
        strike = self._before_write(path, 0, len(data))
        if strike is None:
            self.inner.write(path, data)
            return
        before = self.inner.read(path, 0, self.inner.size(path)) if self.inner.exists(path) else None
        data = _written(bytes(data), strike)
        self.inner.write(path, data[: strike.kept])
        try:
            strike.act()
        except OSError:
            if before is None:
                self.inner.delete(path)
            else:
                self.inner.write(path, before)
            raise
        self.inner.write(path, data)


def _written(data: bytes, strike: Strike) -> bytes:
    """What really gets into the file."""
    if not strike.flips or strike.kept >= len(data):
        return data
    bad = bytearray(data)
    bad[strike.kept] ^= 1
    return bytes(bad)
