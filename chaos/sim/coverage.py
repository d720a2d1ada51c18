"""Counts which faults struck which role in which state: what a search has tried, and what it has not."""

from typing import Any, TypeAlias

from chaos.sim.machine import Machine

Point: TypeAlias = tuple[str, str, str]
"""The kind of a fault, with the role and the state of the node that it struck."""


def state_of(machine: Machine) -> str:
    """Returns one word for what the node is doing. If several fit, it is the first of those below, the rarest."""
    node: Any = machine.node
    if node is None:
        return "down"
    if not node.listening:
        return "starting"
    if machine.paused:
        return "paused"
    replica = node.broker.replica
    if replica.quorum.leader_id < 0:
        return "electing"
    if replica.loader.in_transaction:
        return "transaction"
    if replica.quorum.is_leader and not replica.controller.is_active:
        return "activating"
    if replica.quorum.high_watermark < 0 or replica.loader.last_offset + 1 < replica.quorum.high_watermark:
        return "catching-up"
    return "serving" if node.ready else "joining"
