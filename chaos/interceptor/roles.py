"""Roles of a node at this moment: rules and faults may name a role instead of a node's number."""

from typing import Any

from scenarios.model import NodeChoice, Scenario
from scenarios.vocabulary import PARTITION_ROLES


def role_of(node: Any, is_voter: bool, topic: str = "") -> str:
    """Return ``leader``, ``follower`` or ``observer``. A leader is the active controller, or leads the quorum and will
    be the active controller.

    With a ``topic``, a space and ``partition_leader`` or ``partition_follower`` follow if the node has a replica of
    that topic's first partition. ``node`` is a core.node.Node, or None while it is being built.
    """
    role = "observer" if not is_voter else "leader" if _leads(node) else "follower"
    of_partition = _partition_role(node, topic) if topic else ""
    return f"{role} {of_partition}" if of_partition else role


def is_role(role: str, required: str) -> bool:
    """Return whether ``required`` is among the roles that ``role_of`` returned."""
    return required == role or required in role.split()


def plays(role: str, choice: NodeChoice, node_id: int) -> bool:
    """Return whether ``choice`` names a node with this number and role. ``role`` is empty while it is not known."""
    if isinstance(choice, int):
        return choice == node_id
    return choice == "any" or is_role(role, choice)


def described(role: str, topic: str) -> str:
    """Return a role in words. ``topic`` is the hot one. Empty stays empty."""
    words = {
        "leader": "the controller",
        "follower": "a follower of the controller",
        "observer": "an observer",
        "partition_leader": f"the leader of {topic}-0",
        "partition_follower": f"a follower of {topic}-0",
    }
    return words.get(role, "")


def topic_of_roles(scenario: Scenario) -> str:
    """Return the hot topic if a fault targets a role in a partition, else an empty name."""
    choices = [choice for fault in scenario.faults for choice in (fault.node, fault.match.role, *(fault.link or ()))]
    return scenario.load.hot.name if any(choice in PARTITION_ROLES for choice in choices) else ""


def _partition_role(node: Any, topic: str) -> str:
    """Return the node's role in the first partition, according to the node itself; empty without a replica."""
    broker = getattr(node, "broker", None)
    if broker is None:
        return ""
    if (topic, 0) in broker.partitions.by_name:
        return "partition_leader"
    described = broker.metadata.topics.get(topic)
    replicas = described.partitions[0].replicas if described is not None else ()
    return "partition_follower" if broker.node_id in replicas else ""


def _leads(node: Any) -> bool:
    broker = getattr(node, "broker", None)
    controller = getattr(broker, "controller", None)
    quorum = getattr(broker, "quorum", None)
    return bool(getattr(controller, "is_active", False) or getattr(quorum, "is_leader", False))
