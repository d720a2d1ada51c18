"""The tombstone horizon marker of a log (H-1, H-2, H-4 to H-7).

It is in ``tombstone-horizon-checkpoint``, which is no file of Kafka's.

The cleaner removes a tombstone some time after the records that it deleted. A replica or a consumer that has read those
records and fetches later never gets the deletion. The marker shows it that.
"""

from collections.abc import Sequence

from reference_broker.client.consumer import remembered_after
from reference_broker.log.checkpoints import Checkpoint
from reference_broker.ports.disk import Disk

FILE_NAME = "tombstone-horizon-checkpoint"
NO_LIMIT = 2**63 - 1


class TombstoneHorizon:
    """``offset`` is the marker: every tombstone at or above it is in the log. One that a newer record of its key has
    replaced counts as if it were there, since a reader comes to that record.

    ``limit``: tombstones at or above it stay here. It is the marker that a follower's leader has sent (H-2). A leader
    has none. ``remembered`` is the marker below which a follower fills its log again, and 0 in the normal mode.
    """

    __slots__ = ("_checkpoint", "_is_there", "_prepared", "limit", "offset", "remembered")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._checkpoint = Checkpoint(disk, f"{directory}/{FILE_NAME}")
        self._is_there = False
        self.offset = self.remembered = self._prepared = 0
        self.limit = NO_LIMIT

    def load(self, names: Sequence[str], cleaned_offset: int) -> None:
        """Read the file, given the names in the folder. A log that was cleaned before there was such a file may lack
        any tombstone of its clean part. Raise DiskError."""
        rows = self._checkpoint.read_and_settle(names)
        self._is_there = rows is not None and len(rows) == 2 and all(row.isdecimal() for row in rows)
        if rows is not None and self._is_there:
            self.offset, self.remembered = int(rows[0]), int(rows[1])
        else:
            self.offset = cleaned_offset
        self._prepared = self.offset

    def prepare(self, offset: int) -> tuple[str, ...]:
        """Tombstones below ``offset`` are about to go. Returns the paths that must be durable before ``settle``. The
        first pass over a log writes the file in any case: without it a start would have to take all for gone."""
        self._prepared = max(offset, self.offset)
        if offset <= self.offset and self._is_there:
            return ()
        return (self._checkpoint.prepare(_rows(self._prepared, self.remembered)),)

    def settle(self) -> None:
        """Publish the prepared marker, which is durable now. The tombstones go now."""
        if self._prepared > self.offset or not self._is_there:
            self._checkpoint.settle()
            self.offset, self._is_there = self._prepared, True

    def must_empty(self, position: int, leader_horizon: int) -> bool:
        """Return whether a follower whose log ends at ``position`` must empty it, because of its leader's marker
        (H-4, H-6). ``begin`` follows once it is empty. Raise DiskError."""
        remembered = remembered_after(position, leader_horizon)
        if remembered > self.remembered:  # Decision horizon-passed
            return True
        if remembered < self.remembered and position < self.remembered:  # Decision remembered-horizon
            # Another replica leads. A killed follower must not take the old marker for one that has not moved.
            self._put(self.offset, remembered)
        self.remembered, self.limit = remembered, leader_horizon
        return False

    def begin(self, leader_horizon: int) -> None:
        """The log is empty, and is filled from a leader that lacks tombstones below ``leader_horizon`` (H-5). Waits for
        the disk: a follower that is killed must not begin again for the same marker."""
        self._put(leader_horizon, leader_horizon)
        self.offset = self.remembered = self.limit = leader_horizon

    def _put(self, offset: int, remembered: int) -> None:
        self._checkpoint.put(_rows(offset, remembered))
        self._is_there = True

    def follow(self) -> None:
        """A follower removes nothing more until its leader has sent its marker."""
        self.limit = 0

    def lead(self) -> None:
        self.limit = NO_LIMIT


def _rows(offset: int, remembered: int) -> list[str]:
    return [str(offset), str(remembered)]
