"""A membership's configuration, its states, and the events that it emits to its driver."""

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
    """How one member takes part in its group. Durations are microseconds.

    ``protocols`` lists assignors' names, the most wanted first. They are all eager or all cooperative (KIP-429).
    ``instance_id`` makes it a static member (KIP-345), which sends no LeaveGroup. The coordinator removes the member if
    no heartbeat comes within ``session_timeout_us``. In a rebalance it waits for ``rebalance_timeout_us`` for the
    member to join again.
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
    """How long an answer is waited for. For JoinGroup the rebalance timeout is added."""
    versions: GroupVersions = field(default_factory=GroupVersions)

    @property
    def cooperative(self) -> bool:
        """Whether partitions are given up only once they are assigned to somebody else."""
        return all(each in COOPERATIVE_PROTOCOLS for each in self.protocols)


class MemberState(Enum):
    """The state of a member. In RELEASING it waits until ``release`` says that revoked partitions were given up."""

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
    """A generation began for this member, because its SyncGroup was answered."""

    generation: int
    member_id: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions that are new to the member (maybe none). Fetch their committed offsets before reading them."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The partitions to give up. Commit what was read of them, then call ``release``."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The partitions that may have another owner already. Stop reading them and commit nothing."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Left:
    """The member has left the group, as far as it can know."""

    generation: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The member met a fatal error (fenced, no protocol in common, group full, ...) and cannot stay in the group."""

    error: Error | int


GroupEvent: TypeAlias = Joined | Assigned | Revoked | Lost | Left | Failed
