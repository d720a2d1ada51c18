"""A blocking connection to a broker: frames, correlation IDs, deadlines and errors, for all clients with plain sockets.

It works in threads and, where gevent has patched the socket module, in greenlets. It knows the codecs and nothing else
of the broker, so that a probe or a benchmark can use it. It retries nothing: its callers do.
"""

import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.messages import decode_response, encode_request

MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
LENGTH_BYTES: Final = 4
_CORRELATION_ID_BYTES: Final = 4
_CHUNK_BYTES: Final = 1 << 20
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class TransportError(Exception):
    """``reason`` is one word for the history."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class ConnectError(TransportError):
    """The connection was not made. The reason is refused, timeout or unreachable."""


class LostError(TransportError):
    """The connection broke. The reason is closed, reset or garbled. Nobody knows whether the request was processed."""


class DeadlineError(TransportError):
    """No response came in time. The connection is still open, but it must not be used again."""


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request as it is sent. It may be sent more than once: each time the response has the same correlation ID."""

    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes  # with its length

    def __str__(self) -> str:
        return f"{api_name(self.api_key)} {self.api_version}"

    def decode(self, response: memoryview) -> Any:
        """Return the body of the response, a frame without its length. Raise LostError (garbled)."""
        try:
            correlation_id, body = decode_response(self.api_key, self.api_version, response)
        except ProtocolError as error:
            raise LostError("garbled", f"cannot be decoded: {error}") from error
        if correlation_id != self.correlation_id:
            raise LostError("garbled", f"has correlation ID {correlation_id} instead of {self.correlation_id}")
        return body


@dataclass(frozen=True, slots=True)
class Reply:
    """The sizes are those of whole frames, with their 4-byte length."""

    body: Any
    request_bytes: int
    response_bytes: int


@dataclass(slots=True)
class Connection:
    """Make one with ``Connection.open``. Threads must not share it."""

    sock: socket.socket
    client_id: str | None
    timeout_s: float  # for each send and each read to which the caller gives no limit of its own
    max_response_bytes: int = MAX_RESPONSE_BYTES
    _correlation_id: int = 0

    @classmethod
    def open(cls, host: str, port: int, timeout_us: int, client_id: str | None = None) -> "Connection":
        """:raises ConnectError: with reason refused, timeout or unreachable."""
        timeout_s = timeout_us / 1e6
        try:
            sock = socket.create_connection((host, port), timeout=timeout_s)
        except ConnectionRefusedError as error:
            raise ConnectError("refused", str(error)) from error
        except TimeoutError as error:
            raise ConnectError("timeout", str(error)) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: the host can be no name.
            raise ConnectError("unreachable", str(error)) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock, client_id, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End the connection at once with RST, whatever is in flight."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.sock.close()

    # Requests and responses

    def call(self, api_key: int, api_version: int, body: object, timeout_us: int | None = None) -> Any:
        """Send one request and return the body of its response.

        :raises DeadlineError: no response came within ``timeout_us`` (None: each read may take the connection's
            timeout).
        :raises LostError: the connection broke, or what came is not the response to this request.
        """
        deadline = None if timeout_us is None else time.monotonic() + timeout_us / 1e6
        return self.receive(self.send(api_key, api_version, body, timeout_us), deadline).body

    def send(self, api_key: int, api_version: int, body: object, timeout_us: int | None = None) -> EncodedRequest:
        """Send one request, as the first half of ``call``. ``receive`` must follow, in the order of the requests.

        :raises DeadlineError: it could not be sent within ``timeout_us``. :raises LostError: the connection broke.
        """
        request = self.encode(api_key, api_version, body)
        self.send_bytes(request.frame, timeout_us)
        return request

    def encode(self, api_key: int, api_version: int, body: object) -> EncodedRequest:
        """Return a request that is not sent yet, with the next correlation ID."""
        correlation_id = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = b"".join(encode_request(api_key, api_version, correlation_id, self.client_id, body))
        return EncodedRequest(api_key, api_version, correlation_id, frame)

    def receive(self, request: EncodedRequest, deadline: float | None = None) -> Reply:
        """Wait for the response until ``deadline`` (seconds of the monotonic clock). Raise the errors of ``call``."""
        response = self.receive_frame(deadline)
        return Reply(request.decode(response), len(request.frame), len(response) + LENGTH_BYTES)

    # Frames and bytes

    def exchange(self, frame: bytes) -> memoryview:
        """Send one encoded request and return the frame of its response. Nothing is encoded or decoded meanwhile."""
        self.send_bytes(frame)
        return self.receive_frame()

    def send_bytes(self, data: bytes, timeout_us: int | None = None) -> None:
        """Send bytes as they are: one frame, several, or none. Raise DeadlineError and LostError."""
        try:
            self._limit(self.timeout_s if timeout_us is None else timeout_us / 1e6)
            self.sock.sendall(data)
        except TimeoutError as error:
            raise DeadlineError("timeout") from error
        except OSError as error:
            raise LostError("reset", str(error)) from error

    def receive_frame(self, deadline: float | None = None) -> memoryview:
        """Return the next frame without its length. Without a ``deadline``, each read may take the connection's own
        timeout. Raise DeadlineError and LostError."""
        try:
            if deadline is None:
                self._limit(self.timeout_s)
            length = int.from_bytes(self._receive(LENGTH_BYTES, deadline), "big", signed=True)
            if not _CORRELATION_ID_BYTES <= length <= self.max_response_bytes:
                raise LostError("garbled", f"a frame of {length} bytes")
            return memoryview(self._receive(length, deadline))
        except TimeoutError as error:
            raise DeadlineError("timeout") from error
        except OSError as error:
            raise LostError("reset", str(error)) from error

    def _receive(self, size: int, deadline: float | None) -> bytearray:
        """Allocate memory only as bytes come, so that a wrong length costs nothing."""
        buffer = bytearray(min(size, _CHUNK_BYTES))
        filled = 0
        while filled < size:
            if filled == len(buffer):
                buffer.extend(bytes(min(size - filled, len(buffer))))
            if deadline is not None:
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

    def _limit(self, timeout_s: float) -> None:
        """Set the socket's timeout, which is a system call, if it is another one."""
        if self.sock.gettimeout() != timeout_s:
            self.sock.settimeout(timeout_s)
