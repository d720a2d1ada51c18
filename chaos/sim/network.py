"""All connections of a run: brings clients' requests to nodes and answers back, as values.

A seeded share of the messages goes through the codec both ways and must come out equal, so that the two worlds cannot
drift apart while most messages cost no coding.
"""

from random import Random
from typing import TYPE_CHECKING

from bench.fleet.behaviours.protocol import Address
from bench.fleet.behaviours.protocol import Request as ClientRequest
from chaos.sim.codec_check import same_after_codec_reply, same_after_codec_request
from chaos.sim.links import Connection, Link
from chaos.sim.machine import Machine
from reference_broker.core.effects import Reply
from reference_broker.core.events import Closed, Opened, Request
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from chaos.sim.client import Client

CODED_SHARE = 0.02


def tag_of(client_id: str, action: ClientRequest) -> Tag:
    body = action.body
    if isinstance(body, FetchRequest):
        role = "client" if body.replica_id < 0 else "peer"
        return Tag(action.api_key, action.api_version, client_id, body.session_id, body.session_epoch, role=role)
    return Tag(action.api_key, action.api_version, client_id)


class Network:
    """``machines`` and ``links`` by node number; a node's address is ``(f"node-{n}", 9092)``."""

    def __init__(self, machines: list[Machine], links: list[Link], codec: Random) -> None:
        self.machines = machines
        self.links = links
        self._codec = codec
        self._connections: dict[int, Connection] = {}
        self._last = 0

    def address(self, node: int) -> Address:
        return Address(f"node-{node}", 9092)

    # From clients

    def connect(self, client: "Client", address: Address) -> Connection | None:
        """Begins to open a connection; None if there is no such host."""
        for machine, link in zip(self.machines, self.links, strict=True):
            if self.address(machine.node_id) == address:
                self._last += 1
                connection = Connection(self._last, client, machine, link, -1)
                connection.send_up(self._arrive_open, connection)
                return connection
        return None

    def request(self, connection: Connection, action: ClientRequest, correlation: int) -> None:
        body = action.body
        if self._codec.random() < CODED_SHARE:
            body = same_after_codec_request(action, correlation)
        tag = tag_of(action.client_id, action)
        event = Request(connection.number, correlation, action.api_key, action.api_version, action.client_id, body, tag)
        connection.send_up(self._arrive_request, connection, event)

    def client_closed(self, connection: Connection) -> None:
        connection.send_up(self._arrive_close, connection)

    # At nodes

    def _arrive_open(self, connection: Connection) -> None:
        machine: Machine = connection.node
        if not connection.client_open:
            return
        if connection.link.refuses or not machine.accepts:
            connection.send_down(connection.client.refused, connection)
            return
        connection.incarnation = machine.incarnation
        connection.node_open = True
        self._connections[connection.number] = connection
        machine.give(connection.incarnation, Opened(connection.number, connection.client.name))
        connection.send_down(connection.client.accepted, connection)

    def _arrive_request(self, connection: Connection, event: Request) -> None:
        if not connection.node_open:
            return
        if connection.link.up.breaks_frames:
            self.reset(connection)
            return
        connection.node.give(connection.incarnation, event)

    def _arrive_close(self, connection: Connection) -> None:
        if connection.node_open:
            connection.node_open = False
            self._connections.pop(connection.number, None)
            connection.node.give(connection.incarnation, Closed(connection.number))

    # From nodes (chaos.sim.machine.Network)

    def reply(self, reply: Reply) -> None:
        connection = self._connections.get(reply.connection)
        if connection is None or not connection.node_open or connection.discards or reply.body is None:
            return
        if connection.link.down.breaks_frames:
            self.reset(connection)
            return
        body = reply.body
        if self._codec.random() < CODED_SHARE:
            body = same_after_codec_reply(reply)
        connection.send_down(connection.client.answered, connection, reply.correlation_id, body)

    def close(self, number: int) -> None:
        """The node closes it, after what was sent before."""
        connection = self._connections.pop(number, None)
        if connection is not None and connection.node_open:
            connection.node_open = False
            connection.send_down(connection.client.lost, connection, "closed")
            connection.node.give(connection.incarnation, Closed(number))

    def discard(self, number: int) -> None:
        """What is under way to the client is lost with the connection. The machine tells the node."""
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.discards = True
            connection.node_open = False
            connection.send_down(connection.client.lost, connection, "reset")

    def node_gone(self, machine: Machine) -> None:
        """Its process ended: the kernel resets what it had open (after a power loss the peers only learn later)."""
        for connection in [each for each in self._connections.values() if each.node is machine]:
            self.discard(connection.number)

    # Faults of links

    def reset(self, connection: Connection) -> None:
        """Both sides learn that the connection is gone."""
        if connection.number in self._connections:
            self.discard(connection.number)
            connection.send_up(connection.node.give, connection.incarnation, Closed(connection.number))

    def reset_all(self, node: int) -> None:
        for connection in [each for each in self._connections.values() if each.node.node_id == node]:
            self.reset(connection)
