"""Sends a node requests that no node sends now: old ones of this run, or forged ones (``chaos.node_requests``)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bench.fleet.behaviours.protocol import Request
from chaos.node_requests import NodeRequest
from chaos.sim.links import Connection
from reference_broker.metadata.node_names import claimed_node, node_name
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from chaos.sim.network import Network

STAYS_US = 3_000_000
"""The connection is closed after this time, whatever was answered."""


class Intruder:
    """Implements chaos.sim.links.Caller, for one connection to one node.

    ``arrived`` is called once, when the first request reaches the node. ``over`` is called once, with the number of
    answers.
    """

    name = "intruder"

    def __init__(
        self,
        network: "Network",
        node_id: int,
        requests: Sequence[NodeRequest],
        arrived: Callable[[], None],
        over: Callable[[int], None],
    ) -> None:
        self._network = network
        self._requests = requests
        self._arrived: Callable[[], None] | None = arrived
        self._over: Callable[[int], None] | None = over
        self._answers = 0
        self._connection = network.connect(self, network.address(node_id))
        assert self._connection is not None, f"there is no node {node_id}"
        self._connection.link.agenda.after(STAYS_US, self._leave)

    def accepted(self, connection: Connection) -> None:
        for number, asked in enumerate(self._requests):
            sender = claimed_node(asked.client_id)
            assert sender is not None, f"{asked.client_id} is no node"
            tag = Tag(asked.api_key, asked.api_version, node_name(sender), role="peer")
            action = Request(asked.api_key, asked.api_version, asked.client_id, asked.body, STAYS_US)
            self._network.request(connection, action, number, tag, self._reached)

    def _reached(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived()

    def refused(self, connection: Connection) -> None:
        self.lost(connection, "refused")

    def answered(self, connection: Connection, correlation: int, body: object) -> None:  # noqa: ARG002
        self._answers += 1
        if self._answers == len(self._requests):
            self._leave()

    def lost(self, connection: Connection, reason: str) -> None:  # noqa: ARG002
        connection.client_open = False
        self._end()

    def _leave(self) -> None:
        connection = self._connection
        if connection is not None and connection.client_open:
            connection.client_open = False
            self._network.client_closed(connection)
        self._end()

    def _end(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(self._answers)
