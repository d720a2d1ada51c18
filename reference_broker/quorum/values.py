"""What the quorum tells others and asks of them: roles, descriptions, its listener, the download of snapshots."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch

NO_NODE = -1
UNKNOWN_OFFSET = -1


class Role(Enum):
    """Names as in Kafka's QuorumState (KIP-595; PROSPECTIVE: KIP-996). Observers are UNATTACHED or FOLLOWER."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


class NotLeader(Exception):  # noqa: N818 - says what is, as Kafka's NotLeaderException
    """Only the leader appends, from the moment on when its epoch's first record stands; nothing was written."""


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """As the leader sees it; -1: not known. Times are wall-clock milliseconds; of the leader itself: now."""

    replica_id: int
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The content of a DescribeQuorum answer. ``observers``: those heard of in the last five minutes."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]


class QuorumListener(Protocol):
    """Told after the change; may append at once."""

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """-1: nobody is known to lead ``epoch``, which is durable."""
        ...

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        """This node leads; the epoch's first record stands at ``start_offset`` and is not committed yet."""
        ...

    def leadership_lost(self, epoch: int) -> None:
        """From now on ``append`` raises NotLeader. Follows each ``leadership_won`` that ends."""
        ...

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Everything below is committed and stands in this node's log, or in the snapshot at its start."""
        ...

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        """A downloaded snapshot took the place of the whole log."""
        ...


@dataclass(frozen=True, slots=True)
class Installed:
    """The snapshot stands, verified and durable, and the log starts at its end."""

    id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Rediscover:
    """The leader has no such snapshot, or not these bytes: ask it anew which one to take (S-10)."""


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The one who was asked told of another leader (-1: of none that it knows) or another epoch."""

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The leader could not be reached or cannot answer now."""


Outcome: TypeAlias = Installed | Rediscover | LeaderChanged | Failed


class Download(Protocol):
    """The transfer of one snapshot at a time (``snapshots.download.SnapshotDownload``)."""

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002 - Kafka's word for the name of a snapshot
        progress: Callable[[], None],
        outcome: Callable[[Outcome], None],
    ) -> None:
        """``progress`` at each piece that arrives; then ``outcome`` once, unless cancelled."""
        ...

    def cancel(self) -> None:
        """What was transferred stays for another time; no callback follows."""
        ...
