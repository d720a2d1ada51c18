"""What a node is at this moment, for rules and faults that name a role instead of a number."""

from typing import Any

from scenarios.model import NodeChoice


def role_of(node: Any, is_voter: bool) -> str:
    """``leader`` (it is the active controller, or leads the quorum and will be), ``follower`` or ``observer``.

    ``node``: a core.node.Node, or None while it is being built (then it leads nothing).
    """
    if not is_voter:
        return "observer"
    return "leader" if node is not None and _leads(node) else "follower"


def plays(role: str, wanted: NodeChoice, node_id: int) -> bool:
    """Whether a node with this number and role is one that ``wanted`` names; a role ``""`` is not known yet."""
    if isinstance(wanted, int):
        return wanted == node_id
    return wanted == "any" or wanted == role


def _leads(node: Any) -> bool:
    broker = getattr(node, "broker", None)
    controller = getattr(broker, "controller", None)
    quorum = getattr(broker, "quorum", None)
    return bool(getattr(controller, "is_active", False) or getattr(quorum, "is_leader", False))
