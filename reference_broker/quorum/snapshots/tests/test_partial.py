"""A piece of a download that cannot be written whole."""

from collections.abc import Sequence

import pytest

from reference_broker.ports.disk import Buffer, DiskError, MemoryDisk, UndoFailed
from reference_broker.quorum.snapshots.partial import Partial
from reference_broker.quorum.values import OffsetAndEpoch

FULL, UNDO_FAILED = DiskError("no space left"), UndoFailed("cannot cut")


class FailingDisk(MemoryDisk):
    """``appending`` is raised when the progress file is appended to, and ``cutting`` when a file is truncated."""

    appending: OSError | None = None
    cutting: OSError | None = None

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        if self.appending is not None and path.endswith("progress"):
            raise self.appending
        return super().append(path, buffers)

    def truncate(self, path: str, size: int) -> None:
        if self.cutting is not None:
            raise self.cutting
        super().truncate(path, size)


@pytest.mark.parametrize(
    ("appending", "cutting", "expected"),
    [(FULL, None, DiskError), (FULL, DiskError("input/output error"), UndoFailed), (UNDO_FAILED, FULL, UndoFailed)],
    ids=["the disk is full", "the piece cannot be cut off", "the progress is unknown"],
)
def test_piece_that_cannot_be_undone_ends_download(
    appending: OSError, cutting: OSError | None, expected: type[OSError]
) -> None:
    disk = FailingDisk()
    partial = Partial(disk, 1, OffsetAndEpoch(7, 1), 100)
    partial.begin()
    partial.append(b"first")
    disk.appending, disk.cutting = appending, cutting
    with pytest.raises(expected):
        partial.append(b"second")
    assert partial.length == 5
    if expected is DiskError:
        assert bytes(disk.files[partial.paths[0]]) == b"first"
