"""The only I/O of the clients: blocking connections with deadlines, one for each lane of a client.

Plain sockets, so they work in threads and, where gevent has patched the socket module, in greenlets. A request gets its
response on its own connection or fails. Each new connection of a lane sends ApiVersions first, so that drafts go only
to nodes that announce them.
"""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from reference_broker.client.api_versions import (
    API_VERSIONS,
    API_VERSIONS_REQUEST,
    API_VERSIONS_VERSION,
    announced_in,
    may_be_sent,
)
from reference_broker.client.group_requests import GroupRequest
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.messages import decode_response, encode_request

MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
_LENGTH_BYTES: Final = 4
_CHUNK_BYTES: Final = 1 << 20


class TransportError(Exception):
    """``reason`` is one word for the history."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class ConnectError(TransportError):
    """The connection was not made. The reason is refused, timeout or unreachable."""


class LostError(TransportError):
    """The connection broke. The reason is closed, reset or garbled. Nobody knows whether the request was processed."""


class DeadlineError(TransportError):
    """No response came in time. The connection is still open, but it must not be used again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The sizes are those of whole frames, with their 4-byte length."""

    body: object
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request whose response has not been read yet."""

    api_key: int
    api_version: int
    request_bytes: int


@dataclass(slots=True)
class Connection:
    """Make one with ``Connection.open``. Threads must not share it."""

    sock: socket.socket
    max_response_bytes: int = MAX_RESPONSE_BYTES
    _correlation_id: int = field(default=0)

    @classmethod
    def open(cls, host: str, port: int, timeout_us: int) -> "Connection":
        """:raises ConnectError: with reason refused, timeout or unreachable."""
        try:
            sock = socket.create_connection((host, port), timeout=timeout_us / 1e6)
        except ConnectionRefusedError as error:
            raise ConnectError("refused", str(error)) from error
        except TimeoutError as error:
            raise ConnectError("timeout", str(error)) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: the host can be no name.
            raise ConnectError("unreachable", str(error)) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    def call(self, api_key: int, api_version: int, client_id: str, body: object, timeout_us: int) -> Reply:
        """Send one request and wait for its response.

        :raises DeadlineError: no response came within ``timeout_us``.
        :raises LostError: the connection broke, or what came is not the response to this request.
        """
        deadline = time.monotonic() + timeout_us / 1e6
        return self.receive(self.send(api_key, api_version, client_id, body, timeout_us), deadline)

    def send(self, api_key: int, api_version: int, client_id: str, body: object, timeout_us: int) -> Sent:
        """Send one request, as the first half of ``call``. ``receive`` must follow. Several connections can wait so.

        :raises DeadlineError: it could not be sent within ``timeout_us``. :raises LostError: the connection broke.
        """
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        request = b"".join(encode_request(api_key, api_version, self._correlation_id, client_id, body))
        try:
            self.sock.settimeout(timeout_us / 1e6)
            self.sock.sendall(request)
        except TimeoutError as error:
            raise DeadlineError("timeout") from error
        except OSError as error:
            raise LostError("reset", str(error)) from error
        return Sent(api_key, api_version, len(request))

    def receive(self, sent: Sent, deadline: float) -> Reply:
        """Wait for the response until ``deadline`` (seconds of the monotonic clock). Raises the errors of ``call``."""
        try:
            frame = self._receive_frame(deadline)
        except TimeoutError as error:
            raise DeadlineError("timeout") from error
        except OSError as error:
            raise LostError("reset", str(error)) from error
        try:
            correlation_id, body = decode_response(sent.api_key, sent.api_version, memoryview(frame))
        except ProtocolError as error:
            raise LostError("garbled", str(error)) from error
        if correlation_id != self._correlation_id:
            raise LostError("garbled", f"answer to request {correlation_id}, not {self._correlation_id}")
        return Reply(body, sent.request_bytes, len(frame) + _LENGTH_BYTES)

    def _receive_frame(self, deadline: float) -> bytearray:
        length = int.from_bytes(self._receive(_LENGTH_BYTES, deadline), "big", signed=True)
        if not 0 <= length <= self.max_response_bytes:
            raise LostError("garbled", f"a frame of {length} bytes")
        return self._receive(length, deadline)

    def _receive(self, size: int, deadline: float) -> bytearray:
        """Allocate memory only as bytes come, so that a wrong length costs nothing."""
        buffer = bytearray(min(size, _CHUNK_BYTES))
        filled = 0
        while filled < size:
            if filled == len(buffer):
                buffer.extend(bytes(min(size - filled, len(buffer))))
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self.sock.settimeout(remaining_s)
            with memoryview(buffer) as view:
                count = self.sock.recv_into(view[filled:])
            if count == 0:
                raise LostError("closed", f"after {filled} of {size} bytes")
            filled += count
        return buffer

    def close(self) -> None:
        self.sock.close()


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
    """The end of a lane's request."""

    lane: str
    body: object | None
    """The response. None if no response came, or none that can be decoded."""


@dataclass(slots=True)
class LaneConnections:
    """The connections of one client."""

    client_id: str
    connect_timeout_us: int
    learned: Callable[[NodeAddress, object], None]
    """Called for each new connection, with the node and its ApiVersions response."""
    _lanes: dict[str, _Lane] = field(default_factory=dict)

    def send(self, lane: str, request: GroupRequest) -> None:
        """Send a request. Connect first if the lane has no connection, or one to another node.

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
        """Return the requests that have ended. Wait for the first one until ``until`` (monotonic clock)."""
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
        assert sent is not None, "a response to no request"
        try:
            return held.connection.receive(sent, held.deadline).body
        except TransportError:
            self.close(name)
            return None

    def close(self, lane: str) -> None:
        """Close the lane's connection. A request in flight gets no response."""
        held = self._lanes.pop(lane, None)
        if held is not None:
            held.connection.close()

    def close_all(self) -> None:
        for lane in list(self._lanes):
            self.close(lane)
