"""How long a follower waits after a download that asking again at once cannot mend."""

from dataclasses import dataclass

from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch

FIRST_WAIT_US = 100_000
LONGEST_WAIT_US = 10_000_000


@dataclass(slots=True)
class Troubles:
    """The downloads in a row that were damaged or could not be kept. The wait doubles with each.

    Damage is that of one snapshot on one leader: another snapshot, or the same one from another leader, may be whole.
    So it is tried at once. A disk that is full holds no snapshot at all.
    """

    times: int = 0
    _source: tuple[int, OffsetAndEpoch] | None = None
    _until_us: int = 0

    def damaged(self, leader: int, snapshot: OffsetAndEpoch, now_us: int) -> int:
        """Counts a damaged download. Returns the wait, in microseconds."""
        if self._source != (leader, snapshot):
            self.times = 0
        self._source = (leader, snapshot)
        return self._count(now_us)

    def not_written(self, now_us: int) -> int:
        """Counts a download that this node could not write. Returns the wait, in microseconds."""
        if self._source is not None:
            self.times = 0
        self._source = None
        return self._count(now_us)

    def over(self) -> None:
        """A download has succeeded."""
        self.times = self._until_us = 0

    def wait_us(self, leader: int, snapshot: OffsetAndEpoch, now_us: int) -> int:
        """How long to wait before this download begins, or 0."""
        if self._source not in (None, (leader, snapshot)):
            return 0
        return max(0, self._until_us - now_us)

    def _count(self, now_us: int) -> int:
        wait_us = min(FIRST_WAIT_US << min(self.times, 16), LONGEST_WAIT_US)
        self.times += 1
        self._until_us = now_us + wait_us
        return wait_us
