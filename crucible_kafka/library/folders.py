"""Temporary folders and reserved ports of a cluster.

A folder is locked for as long as its process lives. What a process that was killed left behind is removed by the next
cluster that starts on this machine.
"""

import fcntl
import os
import shutil
import socket
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "crucible-cluster-"
NEW_PREFIX: Final = "crucible-new-"
LOCK: Final = "lock"
MEMORY: Final = Path("/dev/shm")
MIN_FREE_BYTES: Final = 256 << 20
"""A folder in memory needs that much; in small containers /dev/shm has 64 MiB."""


class TemporaryFolder:
    """A folder that ends with ``remove``, with its object, or with the interpreter."""

    def __init__(self) -> None:
        root = _root()
        _sweep(root)
        made = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=root))
        lock = os.open(made / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.path = made.rename(root / made.name.replace(NEW_PREFIX, PREFIX))  # Locked before anybody can sweep it.
        self._end = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def remove(self) -> None:
        self._end()


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # A forked process has the object, but not the folder.
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            os.close(lock)


def _root() -> Path:
    """Return TMPDIR if it is set, else memory if there is enough, else the system's folder."""
    chosen = os.environ.get("TMPDIR")
    if chosen and Path(chosen).is_dir():
        return Path(chosen)
    with suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MIN_FREE_BYTES:
            return MEMORY
    return Path(tempfile.gettempdir())


def _sweep(root: Path) -> None:
    """Remove folders whose processes are gone."""
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


class ReservedPort:
    """A free port of the loopback interface that the system gave, kept for a node over its restarts.

    The socket is bound and never listens. With SO_REUSEADDR at both, the node's own socket may listen on the port, and
    the system gives it to nobody else.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.number}"

    def release(self) -> None:
        self._socket.close()
