"""The data folder of a node. It is created, checked and locked before anything is read from it."""

import fcntl
import os
import resource
from pathlib import Path

from reference_broker.serve.disk import LOCK_NAME
from reference_broker.serve.errors import StartError


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


def raise_open_files_limit() -> int:
    """Raises the soft limit of open files to the hard one, but not above 65,536. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
