"""The context of a check that a test makes by itself: a cluster of one node."""

from typing import Any

from chaos.checks.check import CheckContext, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.quorum_view import QuorumView
from chaos.checks.replica_view import ReplicaView


def check_context(*, alone: bool = False, **settings: Any) -> CheckContext:
    """Return a context with these settings."""
    return CheckContext(
        Settings(**settings), QuorumView(1, 0, FaultTimes()), ReplicaView(FaultTimes(), expected=False), alone
    )
