"""Rolling bounces, and replayed or forged requests."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from bench.fleet.behaviours.protocol import Request
from chaos.faults.node_requests import NodeRequest
from chaos.sim.links import Connection
from chaos.sim.machine import Machine
from reference_broker.metadata.identifiers import claimed_node, node_name
from reference_broker.wire.tags import Tag
from scenarios.model import Fault

if TYPE_CHECKING:
    from chaos.sim.network import Network


POLL_EVERY_US = 50_000
"""The interval at which a bounce checks whether a node has shut down, or is ready again."""


def rolling_bounce(
    fault: Fault,
    machines: Sequence[Machine],
    reconfigure: Callable[[int, tuple[tuple[str, str], ...]], None],
    fired: Callable[[Fault, Machine, int], None],
    is_over: Callable[[], bool],
) -> Iterator[int]:
    """End one node after the other with SIGTERM, and start each with other settings. Yield how many microseconds to
    wait before the next step.

    ``reconfigure`` sets the settings of a node's next incarnations. ``fired`` is called when a node gets its SIGTERM.
    Once the bounce ``is_over``, no further node gets one.
    """
    away_us = int(max(fault.restart_after_s, 0.0) * 1_000_000)
    for number, machine in enumerate(machines, 1):
        # Another fault killed one: an operator waits.
        while not (is_over() or all(machine.ready for machine in machines)):
            yield POLL_EVERY_US
        if is_over():
            return
        reconfigure(machine.node_id, fault.config)
        fired(fault, machine, number)
        incarnation = machine.incarnation
        machine.terminate()
        while machine.alive and machine.incarnation == incarnation:
            yield POLL_EVERY_US
        yield away_us
        machine.start()
        while not machine.ready:
            yield POLL_EVERY_US
        yield int(fault.between_s * 1_000_000)


STAYS_US = 3_000_000
"""The connection is closed after this time, with or without responses."""


class Intruder:
    """Sends a node requests that no node sends now: old ones of this run, or forged ones (``faults.node_requests``).

    Implements chaos.sim.links.Caller, for one connection to one node.

    ``arrived`` is called once, when the first request reaches the node. ``over`` is called once, with the number of
    responses.
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
        self._responses = 0
        self._connection = network.connect(self, network.address(node_id))
        assert self._connection is not None, f"there is no node {node_id}"
        self._connection.link.agenda.after(STAYS_US, self._leave)

    def accepted(self, connection: Connection) -> None:
        for number, node_request in enumerate(self._requests):
            sender = claimed_node(node_request.client_id)
            assert sender is not None, f"{node_request.client_id} is no node"
            tag = Tag(node_request.api_key, node_request.api_version, node_name(sender), role="peer")
            action = Request(
                node_request.api_key, node_request.api_version, node_request.client_id, node_request.body, STAYS_US
            )
            self._network.request(connection, action, number, tag, self._reached)

    def _reached(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            arrived()

    def refused(self, connection: Connection) -> None:
        self.lost(connection, "refused")

    def responded(self, connection: Connection, correlation: int, body: object) -> None:  # noqa: ARG002
        self._responses += 1
        if self._responses == len(self._requests):
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
            over(self._responses)
