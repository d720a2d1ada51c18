"""Makes files of a local object store durable: obstore has no way to ask for it."""

import os
from pathlib import Path


def make_durable(path: Path, root: Path) -> None:
    """Syncs the file or folder, and each folder above it up to ``root``. Raises OSError."""
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == root:
            return
