"""What a membership tells its driver, how it is set up, and the states it walks through."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from reference_broker.client.group_requests import GroupVersions
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error

EAGER_PROTOCOLS: Final = ("range", "roundrobin")
COOPERATIVE_PROTOCOLS: Final = ("cooperative-sticky",)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """How one member takes part. Durations in microseconds.

    ``protocols``: assignors' names, the most wanted first; all eager or all cooperative (KIP-429). ``instance_id``:
    makes it a static member (KIP-345), which does not leave on purpose. ``session_timeout_us``: heartbeats must come
    within; ``rebalance_timeout_us``: how long the others wait for this member to join again.
    """

    group_id: str
    topics: tuple[str, ...]
    protocols: tuple[str, ...] = EAGER_PROTOCOLS
    instance_id: str | None = None
    session_timeout_us: int = 45_000_000
    rebalance_timeout_us: int = 300_000_000
    heartbeat_interval_us: int = 3_000_000
    backoff_us: int = 100_000
    request_timeout_us: int = 5_000_000
    """For all but JoinGroup, which may take the rebalance timeout longer."""
    versions: GroupVersions = field(default_factory=GroupVersions)

    @property
    def cooperative(self) -> bool:
        """Whether partitions are given up only once they are assigned to somebody else."""
        return all(each in COOPERATIVE_PROTOCOLS for each in self.protocols)


class MemberState(Enum):
    """Where a member is. RELEASING: what was revoked is still to be let go, ``release`` ends it."""

    OUT = "out"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    STABLE = "stable"
    RELEASING = "releasing"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Joined:
    """A generation began for this member: its SyncGroup was answered."""

    generation: int
    member_id: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Assigned:
    """Partitions that are new to it (maybe none); fetch their committed offsets before reading them."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """Partitions to give up: commit what was read of them, then call ``release``."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Partitions that may have another owner already: stop, commit nothing."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Left:
    """The member is out of the group, or as far as it can say so."""

    generation: int


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot be a member: a fatal error (fenced, no protocol in common, group full, ...)."""

    error: Error | int


GroupEvent: TypeAlias = Joined | Assigned | Revoked | Lost | Left | Failed
