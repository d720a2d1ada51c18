"""Which leader epoch began at which offset (KIP-101), kept in Kafka's ``leader-epoch-checkpoint`` file.

The file may lag behind the log after a power loss: the batches carry their epochs, so recovery adds what is missing.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise

from reference_broker.log.checkpoint import Checkpoint
from reference_broker.wire.fetch import EpochEndOffset

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED = -1


class LeaderEpochs:
    """``epochs`` and ``starts`` are parallel, and both rise strictly. ``saved`` says that the file holds them."""

    __slots__ = ("checkpoint", "epochs", "saved", "starts")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.epochs: list[int] = []
        self.starts: list[int] = []
        self.saved = True

    @property
    def latest(self) -> int:
        return self.epochs[-1] if self.epochs else UNDEFINED

    def note(self, epoch: int, start_offset: int) -> bool:
        """Notes in memory that ``epoch`` is in force from ``start_offset`` on. Returns True if that is news.

        An older epoch is ignored. Epochs that began at or after the offset held no batch, and go.
        """
        if epoch < 0 or epoch <= self.latest:
            return False
        keep = bisect_left(self.starts, start_offset)
        del self.epochs[keep:], self.starts[keep:]
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        return True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Does what ``note`` does, and writes the file. On DiskError nothing changes."""
        before = (self.epochs[:], self.starts[:])
        if not self.note(epoch, start_offset) and self.saved:
            return
        try:
            self.write()
        except OSError:
            self.epochs, self.starts = before
            raise

    def assume(self, epoch: int, start_offset: int) -> None:
        """Does what ``note`` does. The file follows with the next ``assign``, since a log has no files before its first
        batch."""
        if self.note(epoch, start_offset):
            self.saved = False

    def drop(self, offset: int) -> None:
        """In memory: forgets epochs that began at or after ``offset``, where nothing is written any more. The file
        follows with the next ``assign`` or ``save``."""
        keep = bisect_left(self.starts, offset)
        if keep < len(self.starts):
            del self.epochs[keep:], self.starts[keep:]
            self.saved = False

    def epoch_at(self, offset: int) -> int:
        """The epoch in force at an offset; -1 if unknown."""
        at = bisect_right(self.starts, offset) - 1
        return self.epochs[at] if at >= 0 else UNDEFINED

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The largest epoch <= ``epoch`` and where it ended. An epoch below the first known one ends where that one
        begins. (-1, -1) for an epoch that this log does not know of."""
        if epoch == UNDEFINED or not self.epochs or epoch > self.epochs[-1]:
            return EpochEndOffset(UNDEFINED, UNDEFINED)
        if epoch == self.epochs[-1]:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(self.epochs, epoch)
        floor = self.epochs[higher - 1] if higher > 0 else epoch
        return EpochEndOffset(floor, self.starts[higher])

    def learn(self, epoch: int, offset: int) -> None:
        """In memory: a batch of ``epoch`` stands at ``offset``. Batches come in order.

        Batches are right. The file may not be, since it was written for records that are gone by now, or that came
        back. So rows that contradict the batches go.
        """
        if self.epochs and epoch == self.epochs[-1] and offset >= self.starts[-1]:
            return
        at = bisect_right(self.starts, offset)
        in_force = self.epochs[at - 1] if at > 0 else UNDEFINED
        if epoch < 0 or epoch == in_force:
            return
        first = bisect_left(self.epochs, epoch, 0, at)
        if in_force < epoch:
            first = at - 1 if at > 0 and self.starts[at - 1] == offset else at
        elif self.epochs[first] == epoch:
            first += 1
        last = max(at, bisect_right(self.epochs, epoch))
        del self.epochs[first:last], self.starts[first:last]
        if first == 0 or self.epochs[first - 1] != epoch:
            self.epochs.insert(first, epoch)
            self.starts.insert(first, offset)

    def truncate_from_start(self, offset: int) -> None:
        """The log begins at ``offset`` now. The epoch in force there stays."""
        first = max(bisect_right(self.starts, offset) - 1, 0)
        if self.starts and (first > 0 or self.starts[0] < offset):
            del self.epochs[:first], self.starts[:first]
            self.starts[0] = max(self.starts[0], offset)
            self.saved = False
            self.save()

    def clear(self) -> None:
        if self.epochs:
            self.epochs, self.starts = [], []
            self.saved = False
            self.save()

    def save(self) -> None:
        """The file follows if it has to. After a DiskError it does so with the next ``assign`` or ``save``."""
        if not self.saved:
            self.write()

    def write(self) -> None:
        self.checkpoint.overwrite([f"{epoch} {start}" for epoch, start in zip(self.epochs, self.starts, strict=True)])
        self.saved = True

    def load(self, rows: list[str] | None) -> bool:
        """Takes the rows of the file. False, and no epoch, if they are missing or make no sense."""
        try:
            pairs = [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows or ())]
        except ValueError:
            pairs = []
        self.epochs = [epoch for epoch, _ in pairs]
        self.starts = [start for _, start in pairs]
        if rows is None or any(b[0] <= a[0] or b[1] <= a[1] for a, b in pairwise(pairs)):
            self.epochs, self.starts = [], []
        return bool(self.epochs)
