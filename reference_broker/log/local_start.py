"""Where a tiered log's own records begin, in ``local-log-start-checkpoint`` (no file of Kafka's).

Records below that offset are in the remote tier only. The file keeps the leader epochs of those records too, since no
batch tells them any more. A log that never dropped a record of the tier has no such file.

A replica that begins anew at such an offset changes many files. So the file first says that this has begun, durably. A
start that finds it so deletes what is there: the replica asks its leader again.
"""

from collections.abc import Sequence

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.ports.disk import Disk

FILE_NAME = "local-log-start-checkpoint"
BEGUN = "begun"

EpochStart = tuple[int, int]
"""A leader epoch, and the offset at which it began."""


class LocalStart:
    """``offset`` is the one in the file, or 0. ``durable``: no power loss takes it back behind that offset. ``epochs``
    are those that began before it."""

    __slots__ = ("_checkpoint", "_disk", "_prepared", "durable", "epochs", "has_begun", "is_there", "offset")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._checkpoint = Checkpoint(disk, f"{directory}/{FILE_NAME}")
        self.offset = self.durable = self._prepared = 0
        self.epochs: Sequence[EpochStart] = ()
        self.has_begun = False
        """A replica was about to begin anew, and what is in its directory counts for nothing."""
        self.is_there = False

    def load(self, names: Sequence[str]) -> None:
        """Reads the file, given the names in the folder. Raises DiskError."""
        rows = self._checkpoint.read_and_settle(names)
        self.is_there = rows is not None
        if not rows:
            return
        self.has_begun = rows == [BEGUN]
        if not self.has_begun:
            self.offset = self.durable = self._prepared = int(rows[0])
            self.epochs = [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows[1:])]

    @property
    def is_durable(self) -> bool:
        return self.durable == self._prepared

    def prepare(self, offset: int, epochs: Sequence[EpochStart]) -> str:
        """Local records begin at ``offset`` once the path that is returned is synced."""
        self.is_there = True
        path = self._checkpoint.prepare(_rows(offset, epochs))
        self.offset = self._prepared = offset
        self.epochs = epochs
        return path

    def settle(self, synced: Sequence[str]) -> None:
        if self._checkpoint.new_path in synced:
            self._checkpoint.settle()
            self.durable = self._prepared

    def begin(self) -> None:
        """What is in the directory is about to go. Waits for the disk."""
        self._checkpoint.put([BEGUN])
        self.offset = self.durable = self._prepared = 0
        self.is_there = self.has_begun = True

    def finish(self, offset: int, epochs: Sequence[EpochStart]) -> None:
        """All other files are durable, and the log begins at ``offset``. Waits for the disk."""
        self._checkpoint.put(_rows(offset, epochs))
        self.offset = self.durable = self._prepared = offset
        self.epochs = epochs
        self.has_begun = False

    def forget(self) -> None:
        """The log has all of its records. Waits for the disk: the file must not come back when there are new ones."""
        if not self.is_there:
            return
        self._disk.delete(self._checkpoint.new_path)
        self._disk.delete(self._checkpoint.path)
        self._disk.make_durable(self._checkpoint.path)
        self.offset = self.durable = self._prepared = 0
        self.epochs = ()
        self.is_there = self.has_begun = False


def _rows(offset: int, epochs: Sequence[EpochStart]) -> list[str]:
    return [str(offset), *(f"{epoch} {start}" for epoch, start in epochs)]
