"""A node's channel to another node. It dials on demand and sends in order. When it breaks, all waiting requests end."""

from typing import TYPE_CHECKING

from bench.fleet.behaviours.protocol import Request
from chaos.sim.links import Connection
from reference_broker.core.effects import Send
from reference_broker.core.events import PeerDown, PeerReply, PeerUp
from reference_broker.ports.channels import Channel

if TYPE_CHECKING:
    from chaos.sim.machine import Machine
    from chaos.sim.network import Network

NO_SUCH_NODE_AFTER_US = 1


class PeerChannel:
    """A channel of one incarnation of ``machine``. Implements chaos.sim.links.Caller."""

    def __init__(self, machine: "Machine", peer: int, channel: Channel, network: "Network") -> None:
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
        """Sends a request. One PeerReply answers it, or one PeerDown ends it with all others of the channel."""
        agenda = self._machine.agenda
        if self._connection is None:
            self._connection = self._network.connect(self, self._network.address(self._peer), self._machine.node_id)
            if self._connection is None:
                agenda.after(NO_SUCH_NODE_AFTER_US, self._give, PeerDown(self._peer, self._channel))
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
        action = Request(send.api_key, send.api_version, send.client_id, send.body, send.timeout_ms * 1000)
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
        self._give(PeerUp(self._peer, self._channel))  # This comes last because it may lead to another Send.

    def refused(self, connection: Connection) -> None:
        self.lost(connection, "refused")

    def answered(self, connection: Connection, correlation: int, body: object) -> None:
        if connection is self._connection and self._deadlines.pop(correlation, None) is not None:
            self._give(PeerReply(self._peer, self._channel, correlation, body))

    def lost(self, connection: Connection, reason: str) -> None:  # noqa: ARG002
        connection.client_open = False
        if connection is self._connection:
            self._down()

    # Time

    def _check_deadlines(self, at_us: int) -> None:
        """Ends the channel if a request has passed its deadline. Only one check is planned at a time, at the earliest
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
        self._give(PeerDown(self._peer, self._channel))

    def _give(self, event: PeerUp | PeerReply | PeerDown) -> None:
        self._machine.give(self._incarnation, event)
