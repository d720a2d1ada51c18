"""What checks are made from: the cluster's settings, and the views of its nodes that several checks share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.checks.history import Place
from chaos.checks.quorum_view import QuorumView
from chaos.checks.replica_view import ReplicaView


@dataclass(frozen=True, slots=True)
class Settings:
    """What the checks must know of the cluster.

    The times in microseconds say how long no fault must have touched a node before it is judged: ``settled_us`` before
    its leader must stay, ``session_us`` before a broker must stay unfenced, ``in_sync_us`` before a follower must stay
    in sync. With ``tombstone_horizon`` replicas heed the marker of their leader (H-1 to H-7).
    """

    first_session_epoch: int = 1
    settled_us: int = 6_000_000
    session_us: int = 12_000_000
    in_sync_us: int = 45_000_000
    tombstone_horizon: bool = False
    subscribed: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    """by group: the partitions that its members share"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """``alone`` means that the check runs inside one node's process and sees no other node. ``tier`` holds the objects
    of the remote tier, by their keys."""

    settings: Settings
    quorum: QuorumView
    replicas: ReplicaView
    alone: bool = False
    tier: Mapping[str, bytes] = field(default_factory=dict)
