"""The data folder of a node. It is created, checked and locked before anything is read from it."""

import fcntl
import os
from pathlib import Path

from reference_broker.serve.disk import LOCK_NAME
from reference_broker.serve.process import StartError


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
