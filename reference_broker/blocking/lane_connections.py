"""The connections of a blocking driver, one for each lane. A request is answered on its own connection or fails.

This file and ``transport`` are the only ones of the client that do I/O. Each new connection asks for ApiVersions first,
so that drafts go only to nodes that announce them.
"""

import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.blocking.transport import Connection, Sent, TransportError
from reference_broker.client.draft_versions import (
    API_VERSIONS,
    API_VERSIONS_REQUEST,
    API_VERSIONS_VERSION,
    announced_in,
    may_be_sent,
)
from reference_broker.client.group_requests import GroupRequest
from reference_broker.client.metadata_cache import NodeAddress


class NoDraftError(Exception):
    """The node does not announce the draft that the request is written in; nothing was sent."""


@dataclass(slots=True)
class _Lane:
    address: tuple[str, int]
    connection: Connection
    announced: frozenset[str]
    sent: Sent | None = None
    deadline: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``body`` is None if no answer came, or none that can be read."""

    lane: str
    body: object | None


@dataclass(slots=True)
class LaneConnections:
    """``learned(node, body)`` is called for each new connection, with the node's answer to ApiVersions."""

    client_id: str
    connect_timeout_us: int
    learned: Callable[[NodeAddress, object], None]
    _lanes: dict[str, _Lane] = field(default_factory=dict)

    def send(self, lane: str, request: GroupRequest) -> None:
        """Sends a request. Connects first if the lane has no connection, or one to another node.

        :raises TransportError: it could not be sent.
        :raises NoDraftError: the node does not announce the draft.
        """
        assert request.to is not None, "a request to nobody"
        try:
            self._send(self._connected(lane, request.to), request)
        except TransportError:
            self.close(lane)
            raise

    def _send(self, held: _Lane, request: GroupRequest) -> None:
        assert held.sent is None, "two requests in flight on one lane"
        if not may_be_sent(request.api_key, request.api_version, held.announced):
            raise NoDraftError
        held.deadline = time.monotonic() + request.timeout_us / 1e6
        held.sent = held.connection.send(
            request.api_key, request.api_version, self.client_id, request.body, request.timeout_us
        )

    def _connected(self, lane: str, node: NodeAddress) -> _Lane:
        held = self._lanes.get(lane)
        if held is not None and held.address == (node.host, node.port):
            return held
        self.close(lane)
        connection = Connection.open(node.host, node.port, self.connect_timeout_us)
        try:
            reply = connection.call(
                API_VERSIONS, API_VERSIONS_VERSION, self.client_id, API_VERSIONS_REQUEST, self.connect_timeout_us
            )
        except TransportError:
            connection.close()
            raise
        self.learned(node, reply.body)
        held = self._lanes[lane] = _Lane((node.host, node.port), connection, announced_in(reply.body))
        return held

    def receive(self, until: float) -> list[Outcome]:
        """Returns the requests that have ended. Waits for the first one until that time of the monotonic clock."""
        waiting = {name: each for name, each in self._lanes.items() if each.sent is not None}
        until = min((each.deadline for each in waiting.values() if each.deadline < until), default=until)
        timeout = max(until - time.monotonic(), 0.0)
        sockets = [each.connection.sock for each in waiting.values()]
        ready, _, _ = select.select(sockets, [], [], timeout)
        now = time.monotonic()
        outcomes = []
        for name, held in waiting.items():
            if held.connection.sock in ready:
                outcomes.append(Outcome(name, self._received(name, held)))
            elif now >= held.deadline:
                self.close(name)
                outcomes.append(Outcome(name, None))
        return outcomes

    def _received(self, name: str, held: _Lane) -> object | None:
        sent, held.sent = held.sent, None
        assert sent is not None, "an answer to no request"
        try:
            return held.connection.receive(sent, held.deadline).body
        except TransportError:
            self.close(name)
            return None

    def close(self, lane: str) -> None:
        """Closes the lane's connection. A request in flight gets no answer."""
        held = self._lanes.pop(lane, None)
        if held is not None:
            held.connection.close()

    def close_all(self) -> None:
        for lane in list(self._lanes):
            self.close(lane)
