"""Connections between clients and nodes: requests of clients and nodes on their way to nodes, and the replies, as
values.

A seeded share of the messages goes through the codec both ways and must come out equal. This keeps the simulator
consistent with the wire format, while most messages cost no coding.

``PeerChannel`` is a node's channel to another node. It dials on demand and sends in order. When it breaks, all its
pending requests end.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from bench.fleet.behaviours.protocol import Address
from bench.fleet.behaviours.protocol import Request as ClientRequest
from chaos.faults.node_requests import Recorded
from chaos.sim.codec_check import ReplyStream, reply_bytes, same_after_codec_reply, same_after_codec_request
from chaos.sim.links import CLIENTS, Caller, Connection, Link, Links
from chaos.sim.machine import Machine
from reference_broker.core.events import Closed, Opened, PeerDown, PeerReply, PeerUp, Reply, Request, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.tags import Tag

Reached: TypeAlias = Callable[[], None]
"""Called when a request reaches a running node."""
CODED_SHARE = 0.02

DIAL_AGAIN_US = 1_000_000
"""TCP dials an unresponsive machine again after 1 s, then after 2 s more, 4 s more and so on."""


def tag_of(action: ClientRequest) -> Tag:
    client_id, body = action.client_id, action.body
    if isinstance(body, FetchRequest):
        role = "client" if body.replica_id < 0 else "peer"
        return Tag(action.api_key, action.api_version, client_id, body.session_id, body.session_epoch, role=role)
    return Tag(action.api_key, action.api_version, client_id)


class Network:
    """``machines`` is by node number, and a node's address is ``(f"node-{n}", 9092)``. ``coded_share`` of the messages,
    drawn from ``codec``, goes through the codec."""

    def __init__(
        self, machines: Sequence[Machine], links: Links, codec: Random, coded_share: float = CODED_SHARE
    ) -> None:
        self.machines = machines
        self.links = links
        self._by_address: dict[Address, Machine] = {}
        self._codec = codec
        self._coded_share = coded_share
        self._connections: dict[int, Connection] = {}
        self._channels: dict[tuple[int, int, Channel], PeerChannel] = {}
        self._silent: dict[int, list[Connection]] = {}
        self._last = 0
        self.recorded: Recorded | None = None
        """Set if a fault needs the requests between nodes."""
        for machine in machines:
            self.add(machine)

    def address(self, node: int) -> Address:
        return Address(f"node-{node}", 9092)

    def add(self, machine: Machine) -> None:
        """Add a machine. One that is not among ``machines`` belongs to another cluster: only clients reach it."""
        self._by_address[self.address(machine.node_id)] = machine
        machine.network = self

    # From clients and nodes

    def connect(self, caller: Caller, address: Address, source: int = CLIENTS) -> Connection | None:
        """Begin to open a connection. ``source`` is the number of the node that dials.

        Return None if there is no such host.
        """
        machine = self._by_address.get(address)
        if machine is None:
            return None
        self._last += 1
        connection = Connection(self._last, caller, machine, self.links.between(source, machine.node_id), -1)
        connection.send_up(self._arrive_open, connection)
        return connection

    def request(
        self,
        connection: Connection,
        action: ClientRequest,
        correlation: int,
        tag: Tag | None = None,
        reached: Reached | None = None,
    ) -> None:
        """Send a request. ``tag`` is that of a node's request; a client's follows from its request."""
        body = action.body
        if self._codec.random() < self._coded_share:
            body = same_after_codec_request(action, correlation)
        event = Request(
            connection.number,
            correlation,
            action.api_key,
            action.api_version,
            action.client_id,
            body,
            tag_of(action) if tag is None else tag,
        )
        connection.send_up(self._arrive_request, connection, event, reached)

    def client_closed(self, connection: Connection) -> None:
        connection.send_up(self._arrive_close, connection)

    def send(self, machine: Machine, send: Send) -> None:
        if self.recorded is not None:
            at_us = machine.agenda.now_us
            self.recorded.add(at_us, send.peer, send.api_key, send.api_version, send.client_id, send.body)
        key = (machine.node_id, send.peer, send.channel)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = PeerChannel(machine, send.peer, send.channel, self)
        channel.send(send)

    # At nodes

    def _arrive_open(self, connection: Connection, again_us: int = DIAL_AGAIN_US) -> None:
        machine = connection.node
        if not connection.client_open:
            return
        if machine.silent:
            link = connection.link
            link.agenda.after(again_us, link.deliver, link.up, self._arrive_open, (connection, 2 * again_us))
            return
        if connection.link.refuses or not machine.accepts:
            connection.send_down(connection.client.refused, connection)
            return
        connection.incarnation = machine.incarnation
        connection.node_open = True
        self._connections[connection.number] = connection
        machine.deliver(connection.incarnation, Opened(connection.number, connection.client.name))
        connection.send_down(connection.client.accepted, connection)

    def _arrive_request(
        self, connection: Connection, event: Request, reached: Callable[[], None] | None = None
    ) -> None:
        if not connection.node_open:
            return
        if connection.link.up.breaks_frames:
            self.reset(connection)
            return
        if reached is not None and connection.node.alive and connection.node.incarnation == connection.incarnation:
            reached()
        if connection.busy:
            connection.waiting.append(event)
        else:
            connection.busy = True
            connection.node.deliver(connection.incarnation, event)

    def _next_request(self, connection: Connection) -> None:
        """Deliver the connection's next request to the node, if the node has responded to the previous one. A live
        driver waits for that response too."""
        if connection.node_open and connection.waiting and not connection.busy:
            connection.busy = True
            connection.node.deliver(connection.incarnation, connection.waiting.popleft())

    def _arrive_close(self, connection: Connection) -> None:
        if connection.node_open:
            connection.node_open = False
            self._connections.pop(connection.number, None)
            connection.node.deliver(connection.incarnation, Closed(connection.number))

    # From nodes (chaos.sim.machine.Network)

    def reply(self, reply: Reply) -> None:
        connection = self._connections.get(reply.connection)
        if connection is None or not connection.node_open or connection.discards:
            return
        connection.busy = False
        if connection.waiting:
            connection.link.agenda.after(0, self._next_request, connection)
        body = reply.body
        if body is None:
            return
        if connection.link.down.breaks_frames:
            self.reset(connection)
            return
        if connection.garbled is not None:
            self._send_bytes(connection, reply, reply_bytes(reply))
            return
        if self._codec.random() < self._coded_share:
            body = same_after_codec_reply(reply)
        connection.send_down(connection.client.responded, connection, reply.correlation_id, body)

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        """Send damaged bytes in place of the response. From then on the receiver reads the connection's bytes."""
        connection = self._connections.get(reply.connection)
        if connection is not None and connection.node_open and not connection.discards:
            connection.garbled = connection.garbled or ReplyStream()
            self._send_bytes(connection, reply, frame)
            self.reply(reply._replace(body=None))

    def _send_bytes(self, connection: Connection, reply: Reply, frame: bytes) -> None:
        connection.send_down(self._arrive_bytes, connection, reply, frame)

    def _arrive_bytes(self, connection: Connection, reply: Reply, frame: bytes) -> None:
        """Decode what arrives. A receiver closes the connection when it cannot read a response."""
        if not connection.client_open or connection.garbled is None:
            return
        try:
            for correlation, body in connection.garbled.arrived(reply, frame):
                connection.client.responded(connection, correlation, body)
        except ProtocolError:
            self.reset(connection)

    def close(self, number: int) -> None:
        """Close the connection from the node's side, after what was sent before."""
        connection = self._connections.pop(number, None)
        if connection is not None and connection.node_open:
            connection.node_open = False
            connection.send_down(connection.client.lost, connection, "closed")
            connection.link.agenda.after(0, connection.node.deliver, connection.incarnation, Closed(number))

    def discard(self, number: int) -> None:
        """End the connection and drop everything in flight to the client. The machine notifies the node."""
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.discards = True
            connection.node_open = False
            connection.send_down(connection.client.lost, connection, "reset")

    def node_gone(self, machine: Machine, silent: bool) -> None:
        """End the connections of a node whose process ended.

        The kernel resets the connections that the process had open. A machine that is off or out of reach (``silent``)
        sends nothing: the other ends stay open and run into timeouts, until the machine is back and resets connections
        that it does not know.
        """
        inward = [connection for connection in self._connections.values() if connection.node is machine]
        channels = [key for key in self._channels if key[0] == machine.node_id]
        outward = [channel.abandoned() for channel in map(self._channels.pop, channels)]
        if not silent:
            for connection in inward:
                self.discard(connection.number)
            for left in outward:
                if left is not None:
                    self.client_closed(left)
            return
        for connection in inward:
            del self._connections[connection.number]
            connection.node_open = False
        self._silent[machine.node_id] = [*inward, *(connection for connection in outward if connection is not None)]

    def node_back(self, machine: Machine) -> None:
        """Called when a silent machine is reached again."""
        for connection in self._silent.pop(machine.node_id, ()):
            if connection.node is machine:
                connection.send_down(connection.client.lost, connection, "reset")
            else:
                connection.send_up(self._arrive_close, connection)

    # Faults of links

    def reset(self, connection: Connection) -> None:
        """Notify both sides that the connection is gone."""
        if connection.number in self._connections:
            self.discard(connection.number)
            connection.send_up(connection.node.deliver, connection.incarnation, Closed(connection.number))

    def reset_all(self, link: Link) -> None:
        for connection in [
            open_connection for open_connection in self._connections.values() if open_connection.link is link
        ]:
            self.reset(connection)


NO_SUCH_NODE_AFTER_US = 1


class PeerChannel:
    """A channel of one incarnation of ``machine``. Implements chaos.sim.links.Caller."""

    def __init__(self, machine: Machine, peer: int, channel: Channel, network: Network) -> None:
        self.name = f"node-{machine.node_id}"
        self._machine = machine
        self._incarnation = machine.incarnation
        self._peer = peer
        self._channel = channel
        self._network = network
        self._connection: Connection | None = None
        self._up = False
        self._unsent: list[Send] = []
        self._deadlines: dict[int, int] = {}
        self._checked_at_us = -1

    def send(self, send: Send) -> None:
        """Send a request. One PeerReply completes it, or one PeerDown ends it with all others of the channel."""
        agenda = self._machine.agenda
        if self._connection is None:
            self._connection = self._network.connect(self, self._network.address(self._peer), self._machine.node_id)
            if self._connection is None:
                agenda.after(NO_SUCH_NODE_AFTER_US, self._deliver, PeerDown(self._peer, self._channel))
                return
        deadline_us = agenda.now_us + send.timeout_ms * 1000
        self._deadlines[send.token] = deadline_us
        if not 0 <= self._checked_at_us <= deadline_us:
            self._checked_at_us = deadline_us
            agenda.at(deadline_us, self._check_deadlines, deadline_us)
        if self._up:
            self._request(self._connection, send)
        else:
            self._unsent.append(send)

    def _request(self, connection: Connection, send: Send) -> None:
        action = ClientRequest(send.api_key, send.api_version, send.client_id, send.body, send.timeout_ms * 1000)
        self._network.request(connection, action, send.token, send.tag)

    def abandoned(self) -> Connection | None:
        """Called when the node ended. Returns the connection that it leaves, if any."""
        connection, self._connection = self._connection, None
        if connection is None or not connection.client_open:
            return None
        connection.client_open = False
        return connection

    # chaos.sim.links.Caller

    def accepted(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._up = True
        unsent, self._unsent = self._unsent, []
        for send in unsent:
            self._request(connection, send)
        self._deliver(PeerUp(self._peer, self._channel))  # This comes last because it may lead to another Send.

    def refused(self, connection: Connection) -> None:
        self.lost(connection, "refused")

    def responded(self, connection: Connection, correlation: int, body: object) -> None:
        if connection is self._connection and self._deadlines.pop(correlation, None) is not None:
            self._deliver(PeerReply(self._peer, self._channel, correlation, body))

    def lost(self, connection: Connection, reason: str) -> None:  # noqa: ARG002
        connection.client_open = False
        if connection is self._connection:
            self._down()

    # Time

    def _check_deadlines(self, at_us: int) -> None:
        """End the channel if a request has passed its deadline. Only one check is planned at a time, at the earliest
        deadline."""
        if at_us != self._checked_at_us:
            return
        self._checked_at_us = -1
        agenda, connection = self._machine.agenda, self._connection
        if connection is None or not self._deadlines:
            return
        earliest_us = min(self._deadlines.values())
        if earliest_us <= agenda.now_us and not self._machine.paused:
            connection.client_open = False
            self._network.client_closed(connection)
            self._down()
            return
        # When a stopped process goes on, it first takes what the kernel has received, and then checks its deadlines.
        next_us = max(earliest_us, self._machine.paused_until_us + 1)
        self._checked_at_us = next_us
        agenda.at(next_us, self._check_deadlines, next_us)

    def _down(self) -> None:
        self._connection = None
        self._up = False
        self._unsent.clear()
        self._deadlines.clear()
        self._deliver(PeerDown(self._peer, self._channel))

    def _deliver(self, event: PeerUp | PeerReply | PeerDown) -> None:
        self._machine.deliver(self._incarnation, event)
