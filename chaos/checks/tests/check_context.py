"""The context of a check that a test makes by itself (a cluster of one node), and trace rows for it."""

import json
from typing import Any

from chaos.checks.check import CheckContext, Settings
from chaos.checks.fault_times import FaultTimes
from chaos.checks.quorum.quorum_view import QuorumView
from chaos.checks.replication.replica_view import ReplicaView
from chaos.hooks.trace import NO_FRAME
from reports.rows import TraceRow


def check_context(*, alone: bool = False, **settings: Any) -> CheckContext:
    """Return a context with these settings."""
    return CheckContext(
        Settings(**settings), QuorumView(1, 0, FaultTimes()), ReplicaView(FaultTimes(), expected=False), alone
    )


def note_row(at_us: int, node: int, what: str, **fields: int | str) -> TraceRow:
    """Return the trace row of a node's note, or of an image that it published."""
    return TraceRow(node, 0, 0, at_us, what, *NO_FRAME, json.dumps(fields))
