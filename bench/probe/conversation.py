"""A client over a raw socket that writes down what it sends and what it gets."""

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from bench.probe.bodies import body
from bench.probe.transcript import HAPPENED, RECEIVED, SENT, Line, in_words
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.messages import decode_response, encode_request

CLIENT_ID = "crucible-probe"
LONGEST_FRAME = 64 * 2**20
_LENGTH = struct.Struct(">i")


class Broken(Exception):  # noqa: N818  (what the broker did, not an error of ours)
    """There is no answer that could be judged. The subclasses say why."""


class Silent(Broken):
    """The time is over, and no answer came."""


class Closed(Broken):
    """The broker closed the connection, or accepts none."""


class Garbled(Broken):
    """The bytes that came are no answer to what was asked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose answer has not been read yet."""

    api_key: int
    version: int
    correlation_id: int

    def __str__(self) -> str:
        return f"{api_name(self.api_key)} {self.version}"


@dataclass(slots=True)
class Conversation:
    """One connection. ``left_s`` tells how many seconds the case has left. ``lines`` gets each message."""

    address: tuple[str, int]
    lines: list[Line]
    left_s: Callable[[], float]
    number: int = 1
    client_id: str | None = CLIENT_ID
    _socket: socket.socket = field(init=False)
    _correlation_id: int = 0

    def __post_init__(self) -> None:
        host, port = self.address
        try:
            self._socket = socket.create_connection(self.address, timeout=self._patience(None))
        except (OSError, UnicodeError) as error:  # UnicodeError: the host can be no name.
            self._note(f"cannot connect to {host}:{port}: {error}")
            raise Closed(f"{host}:{port} accepts no connection: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Ends the connection at once with RST, whatever is on its way."""
        self._note("we reset the connection")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    # Whole requests

    def ask(self, api_key: int, version: int, values: object, limit_s: float | None = None) -> Any:
        """Sends a request and returns the decoded body of its answer. ``values``: see ``bodies.body``.

        Raises Silent after ``limit_s`` (None: when the case's time is over), Closed and Garbled.
        """
        return self.receive(self.send(api_key, version, values), limit_s)

    def send(self, api_key: int, version: int, values: object, correlation_id: int | None = None) -> Asked:
        """Sends a request. Its answer must be taken with ``receive``, in the order of the requests."""
        asked, frame, words = self.encoded(api_key, version, values, correlation_id)
        self.send_bytes(frame, words)
        return asked

    def encoded(
        self, api_key: int, version: int, values: object, correlation_id: int | None = None
    ) -> tuple[Asked, bytes, str]:
        """Returns a request that is not sent yet, its frame with the length, and its words."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        request = body(api_key, values)
        frame = b"".join(encode_request(api_key, version, correlation_id, self.client_id, request))
        return Asked(api_key, version, correlation_id), frame, f"{api_name(api_key)} {version} {in_words(request)}"

    def receive(self, asked: Asked, limit_s: float | None = None) -> Any:
        """Takes the next answer, which must be that of ``asked``."""
        frame = self.receive_frame(limit_s, str(asked))
        try:
            correlation_id, body = decode_response(asked.api_key, asked.version, memoryview(frame))
        except ProtocolError as error:
            self._write_down(RECEIVED, f"{asked}, which cannot be decoded: {error}", frame)
            raise Garbled(f"the answer to {asked} cannot be decoded: {error}") from None
        self._write_down(RECEIVED, f"{asked} {in_words(body)}", frame, body)
        if correlation_id != asked.correlation_id:
            problem = f"correlation ID {correlation_id} instead of {asked.correlation_id}"
            raise Garbled(f"the answer to {asked} has {problem}")
        return body

    # Bytes

    def send_bytes(self, frame: bytes, words: str) -> None:
        """Sends bytes as they are. ``words`` say what they are."""
        self.lines.append(Line(self.number, SENT, words, frame))
        self._socket.settimeout(self._patience(None))
        try:
            self._socket.sendall(frame)
        except TimeoutError:
            raise Silent("the broker reads no further") from None
        except OSError as error:
            self._note(f"the broker closed the connection: {error}")
            raise Closed("the broker closed the connection while it was sent a request") from None

    def receive_frame(self, limit_s: float | None = None, what: str = "the request") -> bytes:
        """Takes the next frame and returns it without its length."""
        until = time.monotonic() + self._patience(limit_s)
        (length,) = _LENGTH.unpack(self._read(4, until, what))
        if not 4 <= length <= LONGEST_FRAME:
            self._note(f"a frame that claims {length} bytes")
            raise Garbled(f"the answer to {what} claims {length} bytes")
        return self._read(length, until, what)

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the broker closes the connection within that time, without another answer."""
        self._socket.settimeout(min(within_s, self._patience(None)))
        try:
            came = self._socket.recv(1)
        except TimeoutError:
            self._note("the connection stays open")
            return False
        except OSError:
            came = b""
        self._note("an answer came" if came else "the broker closed the connection")
        return not came

    def end_sending(self) -> None:
        """Closes our half of the connection."""
        self._note("we close our half of the connection")
        self._socket.shutdown(socket.SHUT_WR)

    def _read(self, length: int, until: float, what: str) -> bytes:
        buffer = bytearray()
        while len(buffer) < length:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                part = self._socket.recv(min(1 << 20, length - len(buffer)))
            except TimeoutError:
                self._note(f"no answer to {what} in time")
                raise Silent(f"the broker does not answer {what}") from None
            except OSError:
                part = b""
            if not part:
                self._note("the broker closed the connection")
                raise Closed(f"the broker closed the connection instead of answering {what}")
            buffer += part
        return bytes(buffer)

    def _patience(self, limit_s: float | None) -> float:
        left_s = max(0.001, self.left_s())
        return left_s if limit_s is None else min(limit_s, left_s)

    def _write_down(self, direction: str, words: str, frame: bytes, body: Any = None) -> None:
        self.lines.append(Line(self.number, direction, words, _LENGTH.pack(len(frame)) + frame, body))

    def _note(self, words: str) -> None:
        self.lines.append(Line(self.number, HAPPENED, words))
