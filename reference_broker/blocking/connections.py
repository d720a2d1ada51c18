"""The connections of one client, one for each of its channels.

Each new connection sends ApiVersions first, so that drafts go only to nodes that announce them. A request gets its
response on its own connection or fails.
"""

import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reference_broker.blocking.transport import Connection, EncodedRequest, TransportError
from reference_broker.client.api_versions import (
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
class _Channel:
    address: tuple[str, int]
    connection: Connection
    announced: frozenset[str]
    sent: EncodedRequest | None = None
    deadline: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a channel's request."""

    channel: str
    body: Any
    """The response. None if no response came, or none that can be decoded."""


@dataclass(slots=True)
class ChannelConnections:
    """The connections of one client."""

    client_id: str
    connect_timeout_us: int
    learned: Callable[[NodeAddress, object], None]
    """Called for each new connection, with the node and its ApiVersions response."""
    _channels: dict[str, _Channel] = field(default_factory=dict)

    def send(self, channel: str, request: GroupRequest) -> None:
        """Send a request. Connect first if the channel has no connection, or one to another node.

        :raises TransportError: it could not be sent.
        :raises NoDraftError: the node does not announce the draft.
        """
        assert request.to is not None, "a request to nobody"
        try:
            self._send(self._connected(channel, request.to), request)
        except TransportError:
            self.close(channel)
            raise

    def _send(self, held: _Channel, request: GroupRequest) -> None:
        assert held.sent is None, "two requests in flight on one channel"
        if not may_be_sent(request.api_key, request.api_version, held.announced):
            raise NoDraftError
        held.deadline = time.monotonic() + request.timeout_us / 1e6
        held.sent = held.connection.send(request.api_key, request.api_version, request.body, request.timeout_us)

    def _connected(self, channel: str, node: NodeAddress) -> _Channel:
        held = self._channels.get(channel)
        if held is not None and held.address == (node.host, node.port):
            return held
        self.close(channel)
        connection = Connection.open(node.host, node.port, self.connect_timeout_us, self.client_id)
        try:
            versions = connection.call(
                API_VERSIONS, API_VERSIONS_VERSION, API_VERSIONS_REQUEST, self.connect_timeout_us
            )
        except TransportError:
            connection.close()
            raise
        self.learned(node, versions)
        held = self._channels[channel] = _Channel((node.host, node.port), connection, announced_in(versions))
        return held

    def receive(self, until: float) -> list[Outcome]:
        """Return the requests that have ended. Wait for the first one until ``until`` (monotonic clock)."""
        waiting = {name: channel for name, channel in self._channels.items() if channel.sent is not None}
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

    def _received(self, name: str, held: _Channel) -> Any:
        sent, held.sent = held.sent, None
        assert sent is not None, "a response to no request"
        try:
            return held.connection.receive(sent, held.deadline).body
        except TransportError:
            self.close(name)
            return None

    def close(self, channel: str) -> None:
        """Close the channel's connection. A request in flight gets no response."""
        held = self._channels.pop(channel, None)
        if held is not None:
            held.connection.close()

    def close_all(self) -> None:
        for channel in list(self._channels):
            self.close(channel)
