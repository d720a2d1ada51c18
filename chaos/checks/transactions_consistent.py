from typing import TYPE_CHECKING

from chaos.checks.check import Check
from reference_broker.core.events import Event

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class TransactionsConsistent(Check):
    """transactions-consistent: a coordinator's state of its transactional IDs does not contradict itself.

    Asks the coordinator itself after each event (``TransactionCoordinator.validate``).

    That shares the judge with what it judges. It can hide no breach of a promise to clients, because it only adds to
    the checks of what clients see.
    """

    guarantee = "transactions-consistent"

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        try:
            node.broker.transactions.validate()
        except AssertionError as wrong:
            self.violated(at_us, f"node {node.broker.node_id}: {wrong}")
