"""Types that the quorum shares with its users."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

METADATA_TOPIC_ID = (1).to_bytes(16, "big")
"""The topic ID of ``__cluster_metadata``, which Kafka fixes (Uuid.METADATA_TOPIC_ID)."""


class OffsetAndEpoch(NamedTuple):
    """An end offset, and the epoch of the record before it."""

    offset: int
    """Exclusive."""
    epoch: int
    """The epoch of the last record below the offset."""

    @property
    def age(self) -> tuple[int, int]:
        """Order positions as Kafka's OffsetAndEpoch does: by the epoch, then by the offset. A longer log has the
        greater one."""
        return self.epoch, self.offset


@dataclass(frozen=True, slots=True)
class Provenance:
    """Describes the last record of a batch or of an image: its offset, its epoch and the timestamp of its batch. All
    are -1 for an empty log."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1


NOWHERE = Provenance()
"""The provenance of something that holds no record yet."""


NO_NODE = -1
UNKNOWN_OFFSET = -1
MAX_EPOCH = 2**31 - 3
"""The greatest epoch that a node takes from another one. Epochs are int32 on the wire. A node that took the greatest
number could not write the epoch after it, and would end at each election. Kafka has no such limit."""


class NotLeader(Exception):  # noqa: N818 - says what is, as Kafka's NotLeaderException
    """Raised by an append on a node that cannot append. Nothing was written. Only the leader appends, and only after it
    has written the first record of its epoch."""


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """A replica as the leader sees it; -1 means not known. Times are wall-clock milliseconds. The leader reports the
    current time for itself."""

    replica_id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The content of a DescribeQuorum response."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]
    """Observers that sent the leader a request in the last five minutes."""


class QuorumListener(Protocol):
    """The quorum calls it after each change. The listener may append at once."""

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """``leader_id`` is -1 if no leader of ``epoch`` is known. ``epoch`` is synced to disk."""
        ...

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        """Called when this node leads. The epoch's first record is at ``start_offset`` and is not committed yet."""
        ...

    def leadership_lost(self, epoch: int) -> None:
        """A leadership that ``leadership_won`` announced has ended. From now on ``append`` raises NotLeader."""
        ...

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Every record below it is committed, and is in this node's log or in the snapshot at the log's start."""
        ...

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        """A downloaded snapshot has replaced the whole log."""
        ...


@dataclass(frozen=True, slots=True)
class Installed:
    """The snapshot is verified and synced, and the log now starts at its end."""

    id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Rediscover:
    """The leader does not have this snapshot, or has other bytes for it. The follower must fetch from the leader again,
    which names the snapshot to download (S-10)."""


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The node reported another leader or another epoch."""

    leader_id: int
    """-1 if it knows no leader."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The download failed: the leader could not be reached or cannot serve the snapshot now, a response did not fit, or
    this node could not write the file or does not need it any more."""


DownloadOutcome: TypeAlias = Installed | Rediscover | LeaderChanged | Failed


class Download(Protocol):
    """The transfer of one snapshot at a time (``snapshots.download.SnapshotDownload``)."""

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002 - Kafka's word for the name of a snapshot
        progress: Callable[[], None],
        outcome: Callable[[DownloadOutcome], None],
    ) -> None:
        """Start a download. It calls ``progress`` for each piece that arrives, and then ``outcome`` once, unless it is
        cancelled before."""
        ...

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002 - Kafka's word
        """Return how long to wait before this snapshot is fetched from this leader, or 0. It is more after a download
        whose bytes were damaged or could not be written."""
        ...

    def cancel(self) -> None:
        """End the download without a further callback. The bytes received so far are kept for a later resume."""
        ...
