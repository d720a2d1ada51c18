"""What a check gets where a test makes it by itself: a cluster of one node."""

from typing import Any

from chaos.checks.check import Settings, Surroundings
from chaos.checks.fault_times import Trouble
from chaos.checks.quorum_view import QuorumView
from chaos.checks.replica_view import ReplicaView


def around(*, alone: bool = False, **settings: Any) -> Surroundings:
    """Returns surroundings with these settings."""
    return Surroundings(
        Settings(**settings), QuorumView(1, 0, Trouble()), ReplicaView(Trouble(), expected=False), alone
    )
