"""The only I/O of the client: one blocking connection with deadlines, one request at a time.

Plain sockets, so it works in threads and, where gevent has patched the socket module, in greenlets.
"""

import socket
import time
from dataclasses import dataclass, field
from typing import Final

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
    """No answer came in time. The connection still stands, but it must not be used again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The sizes are those of whole frames, with their 4-byte length."""

    body: object
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request whose answer has not been read yet."""

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
        """Sends one request and waits for its answer.

        :raises DeadlineError: no answer came within ``timeout_us``.
        :raises LostError: the connection broke, or what came is not the answer to this request.
        """
        deadline = time.monotonic() + timeout_us / 1e6
        return self.receive(self.send(api_key, api_version, client_id, body, timeout_us), deadline)

    def send(self, api_key: int, api_version: int, client_id: str, body: object, timeout_us: int) -> Sent:
        """Sends one request, as the first half of ``call``. ``receive`` must follow. Several connections can wait so.

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
        """Waits for the answer until ``deadline``, in seconds of the monotonic clock. Raises the errors of ``call``."""
        try:
            frame = self._receive_frame(deadline)
        except TimeoutError as error:
            raise DeadlineError("timeout") from error
        except OSError as error:
            raise LostError("reset", str(error)) from error
        try:
            correlation_id, answer = decode_response(sent.api_key, sent.api_version, memoryview(frame))
        except ProtocolError as error:
            raise LostError("garbled", str(error)) from error
        if correlation_id != self._correlation_id:
            raise LostError("garbled", f"answer to request {correlation_id}, not {self._correlation_id}")
        return Reply(answer, sent.request_bytes, len(frame) + _LENGTH_BYTES)

    def _receive_frame(self, deadline: float) -> bytearray:
        length = int.from_bytes(self._receive(_LENGTH_BYTES, deadline), "big", signed=True)
        if not 0 <= length <= self.max_response_bytes:
            raise LostError("garbled", f"a frame of {length} bytes")
        return self._receive(length, deadline)

    def _receive(self, size: int, deadline: float) -> bytearray:
        """Takes memory only as bytes come, so that a wrong length costs nothing."""
        buffer = bytearray(min(size, _CHUNK_BYTES))
        filled = 0
        while filled < size:
            if filled == len(buffer):
                buffer.extend(bytes(min(size - filled, len(buffer))))
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            with memoryview(buffer) as view:
                count = self.sock.recv_into(view[filled:])
            if count == 0:
                raise LostError("closed", f"after {filled} of {size} bytes")
            filled += count
        return buffer

    def close(self) -> None:
        self.sock.close()
