"""Log texts for refusals that only a person can put right, and for what a node that is not ready waits for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reference_broker.wire.errors import Error, ErrorCode, known_error

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FIXES: Mapping[int, str] = {
    ErrorCode.inconsistent_cluster_id: "it belongs to another cluster: give every node the same crucible.cluster.id, "
    "or this one another data directory",
    ErrorCode.inconsistent_voter_set: "it knows other voters: give every node the same IDs in controller.quorum.voters",
    ErrorCode.invalid_voter_key: "it is another voter than this node takes it for: correct its address in "
    "controller.quorum.voters",
    ErrorCode.duplicate_broker_registration: "it takes this node's earlier process for alive until "
    "broker.session.timeout.ms has passed since its last heartbeat: wait (if this goes on, another broker has this "
    "node's ID: give each node an ID of its own)",
    ErrorCode.invalid_registration: "it refuses this broker's registration: both must be of one version of Crucible",
    ErrorCode.unsupported_version: "it speaks or uses newer versions: both must be of one version of Crucible",
}


def refusal(body: object) -> Error | None:
    """An error of the answer as a whole, or of its only partition, that asking again will not change."""
    code = _code(body)
    if code == ErrorCode.none:
        topics = getattr(body, "topics", None)
        partitions = getattr(topics[0], "partitions", None) if topics else None
        code = _code(partitions[0]) if partitions else code
    return known_error(code) if code in FIXES else None


def _code(part: Any) -> int:
    return int(getattr(part, "error_code", ErrorCode.none))


def waits_for(node: "Node") -> str:
    """Why the node does not serve clients yet, and who can change that."""
    if not node.listening:
        return "its logs are being recovered"
    quorum = node.broker.quorum
    if quorum.leader_id < 0:
        voters = ", ".join(str(voter) for voter in quorum.voters)
        return (
            f"no leader is known: a majority of the voters {voters} must run, and be reached at their addresses in "
            "controller.quorum.voters"
        )
    if not node.broker.replica.lifecycle.is_registered:
        return f"the controller, node {quorum.leader_id}, must register it, which takes a majority of the voters"
    return "its partitions are being opened, or the controller has not let it in"
