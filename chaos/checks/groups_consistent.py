from typing import TYPE_CHECKING

from chaos.checks.check import Check

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class GroupsConsistent(Check):
    """groups-consistent: a coordinator's state of its groups and their offsets does not contradict itself.

    Asks the coordinator itself (``GroupCoordinator.validate``), in the thorough comparison only.

    That shares the judge with what it judges. It can hide no breach of a promise to clients, because it only adds to
    the checks of what clients see: one-group-leader, commits-fenced, commit-regression and no-committed-lost.
    """

    guarantee = "groups-consistent"

    def whole(self, at_us: int, incarnation: int, node: "Node") -> None:  # noqa: ARG002
        try:
            node.broker.groups.validate()
        except AssertionError as wrong:
            self.violated(at_us, f"node {node.broker.node_id}: {wrong}")
