"""The leader epochs of a log and their start offsets (KIP-101).

They are kept in Kafka's ``leader-epoch-checkpoint`` file, which becomes durable with the next sync of the log. After a
power loss the file may lag behind the log. The batches carry their epochs, so recovery adds what is missing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from reference_broker.log.checkpoints import Checkpoint
from reference_broker.wire.fetch import EpochEndOffset

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED = -1


class LeaderEpochFileCache:
    """The epoch ``epochs[i]`` began at offset ``starts[i]``. Both lists rise strictly. ``saved`` says that the file has
    the same content."""

    __slots__ = ("changed", "checkpoint", "epochs", "saved", "starts")

    def __init__(self, checkpoint: Checkpoint, changed: Callable[[str], None] = lambda _: None) -> None:
        self.checkpoint = checkpoint
        self.changed = changed
        """Is called with the path of the file that must be synced."""
        self.epochs: list[int] = []
        self.starts: list[int] = []
        self.saved = True

    @property
    def latest(self) -> int:
        return self.epochs[-1] if self.epochs else UNDEFINED

    def note(self, epoch: int, start_offset: int) -> bool:
        """Note in memory that ``epoch`` is in force from ``start_offset`` on. Return True if that is news.

        An epoch that is not newer than the latest is ignored. Epochs that began at or after ``start_offset`` hold no
        batch, so they are forgotten.
        """
        if epoch < 0 or epoch <= self.latest:
            return False
        keep = bisect_left(self.starts, start_offset)
        del self.epochs[keep:], self.starts[keep:]
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        return True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Do what ``note`` does, and write the file. On DiskError nothing changes."""
        before = (self.epochs[:], self.starts[:])
        if not self.note(epoch, start_offset) and self.saved:
            return
        try:
            self.write()
        except OSError:
            self.epochs, self.starts = before
            raise

    def assume(self, epoch: int, start_offset: int) -> None:
        """Do what ``note`` does. The file follows with the next ``assign``, since a log has no files before its first
        batch."""
        if self.note(epoch, start_offset):
            self.saved = False

    def drop(self, offset: int) -> None:
        """Forget in memory the epochs that began at or after ``offset``, where the log has no records any more. The
        file follows with the next ``assign`` or ``save``."""
        keep = bisect_left(self.starts, offset)
        if keep < len(self.starts):
            del self.epochs[keep:], self.starts[keep:]
            self.saved = False

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in force at an offset, or -1 if it is unknown."""
        at = bisect_right(self.starts, offset) - 1
        return self.epochs[at] if at >= 0 else UNDEFINED

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Return the largest known epoch <= ``epoch``, and its end offset. An epoch below the first known one ends
        where that one begins. The result is (-1, -1) for an epoch above the latest, or if no epoch is known."""
        if epoch == UNDEFINED or not self.epochs or epoch > self.epochs[-1]:  # Decision requested-epoch
            return EpochEndOffset(UNDEFINED, UNDEFINED)
        if epoch == self.epochs[-1]:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(self.epochs, epoch)
        floor = self.epochs[higher - 1] if higher > 0 else epoch
        return EpochEndOffset(floor, self.starts[higher])

    def learn(self, epoch: int, offset: int) -> None:
        """Note in memory that a batch of ``epoch`` is at ``offset``. Recovery calls it with each batch, in order.

        The batches are right. The rows from the file may be wrong, because a power loss can bring back an older file
        or take away the records that it was written for. So rows that contradict the batches are dropped.
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

    def reach_back(self, epoch: int, log_start_offset: int) -> None:
        """Let the epoch of the log's first batch begin where the log begins, if no older one is known. Recovery calls
        it after ``learn``.

        The cleaner may have removed the records between the two, and a power loss the row of their epoch. They may have
        had an older one. A follower with records of an older epoch there then truncates them and fetches again, which
        is safe. If the epoch began later, the follower would keep them.
        """
        if self.epochs and self.epochs[0] == epoch:
            self.starts[0] = min(self.starts[0], log_start_offset)

    def truncate_from_start(self, offset: int) -> None:
        """Forget the epochs that ended at or before ``offset``, where the log now begins. The epoch in force there
        begins at ``offset`` from now on."""
        first = max(bisect_right(self.starts, offset) - 1, 0)
        if self.starts and (first > 0 or self.starts[0] < offset):
            del self.epochs[:first], self.starts[:first]
            self.starts[0] = max(self.starts[0], offset)
            self.saved = False
            self.save()

    def put_before(self, offset: int, rows: Sequence[tuple[int, int]]) -> None:
        """Take the rows, (epoch, start offset), in the place of those that began before ``offset``. The file follows
        with the next ``save``."""
        keep = bisect_left(self.starts, offset)
        latest = rows[-1][0] if rows else UNDEFINED
        while keep < len(self.epochs) and self.epochs[keep] <= latest:
            keep += 1
        self.epochs[:keep] = [epoch for epoch, _ in rows]
        self.starts[:keep] = [start for _, start in rows]
        self.saved = False

    def before(self, offset: int) -> list[tuple[int, int]]:
        """Return (epoch, start offset) of those that began before ``offset``."""
        return [(epoch, start) for epoch, start in zip(self.epochs, self.starts, strict=True) if start < offset]

    def clear(self) -> None:
        if self.epochs:
            self.epochs, self.starts = [], []
            self.saved = False
            self.save()

    def save(self) -> None:
        """Write the file if its content differs. After a DiskError the next ``assign`` or ``save`` does so."""
        if not self.saved:
            self.write()

    def write(self) -> None:
        self.checkpoint.overwrite([f"{epoch} {start}" for epoch, start in zip(self.epochs, self.starts, strict=True)])
        self.changed(self.checkpoint.path)
        self.saved = True

    def load(self, rows: list[str] | None) -> bool:
        """Take the rows of the file. Return False, and know no epoch, if they are missing or make no sense."""
        try:
            pairs = [(int(epoch), int(start)) for epoch, start in (row.split() for row in rows or ())]
        except ValueError:
            pairs = []
        self.epochs = [epoch for epoch, _ in pairs]
        self.starts = [start for _, start in pairs]
        if rows is None or any(b[0] <= a[0] or b[1] <= a[1] for a, b in pairwise(pairs)):
            self.epochs, self.starts = [], []
        return bool(self.epochs)
