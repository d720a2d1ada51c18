"""A client over a raw socket that writes down what it sends and what it receives, in words and bytes.

``body`` makes a request from plain values, so that a case names only the fields that matter to it.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import body_class, decode_response, encode_request
from reference_broker.wire.produce import ProduceRequest
from reference_broker.wire.schema import SchemaField, schema_fields

MOST_WORDS = 2_000
MOST_BYTES = 4_096
"""So many characters and bytes of one line are shown."""
SENT, RECEIVED, HAPPENED = ">", "<", "!"


@dataclass(frozen=True, slots=True)
class Line:
    """One message, or something else that happened on a connection. ``frame`` begins with the length. ``body`` is what
    an answer was decoded to, and ``connection`` counts the connections of a case from 1."""

    connection: int
    direction: str
    words: str
    frame: bytes = b""
    body: Any = None

    @property
    def hex(self) -> str:
        over = len(self.frame) - MOST_BYTES
        return self.frame[:MOST_BYTES].hex() + (f"... ({over} more bytes)" if over > 0 else "")


def in_words(value: object) -> str:
    """A value in one short line: ``{error_code: NONE, topics: [{...}]}``."""
    text = _words_of(value)
    over = len(text) - MOST_WORDS
    return text if over <= 0 else f"{text[:MOST_WORDS]}... ({over} more characters)"


def _words_of(value: object) -> str:
    if isinstance(value, Enum):
        return value.name.upper()
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes" if len(value) > 32 else bytes(value).hex() or "no bytes"
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{each.name}: {_words_of(getattr(value, each.name))}" for each in fields(value))
        return f"{{{inside}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_words_of(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(_words_of, value))}]"
    if isinstance(value, timedelta):
        return f"{value / timedelta(milliseconds=1):g} ms"
    if isinstance(value, str):
        return repr(value)
    return "null" if value is None else str(value)


def flattened(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each field of a response with its path (``topics[0].error_code``), down to plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from flattened(getattr(value, each.name), f"{path}.{each.name}" if path else each.name)
    elif isinstance(value, list | tuple):
        yield f"{path}.count", len(value)
        for index, each in enumerate(value):
            yield from flattened(each, f"{path}[{index}]")
    elif isinstance(value, memoryview):
        yield path, bytes(value)
    else:
        assert value is None or isinstance(value, int | float | str | bytes | Enum | UUID | datetime | timedelta), path
        yield path, value


OWN = {int(ApiKey.FETCH): FetchRequest, int(ApiKey.PRODUCE): ProduceRequest}


def body(api_key: int, values: object) -> object:
    """Makes the body of a request, in the class of the highest version. ``values`` is a mapping of the fields to plain
    values, with mappings for structs, milliseconds for times and 16 bytes for IDs. A field that is not named has its
    default. A body that is made already is returned as it is: Fetch and Produce have classes that are short to write.

    Raises KeyError for a field that the API does not have.
    """
    if not isinstance(values, Mapping):
        return values
    if api_key in OWN:
        return OWN[api_key](**values)
    return entity_of(body_class(api_key, "request"), values)


def entity_of(entity: type, values: Mapping[str, Any]) -> object:
    """Makes one from plain values, as ``body`` does."""
    known = {each.name: each for each in schema_fields(entity)}
    unknown = values.keys() - known.keys()
    if unknown:
        raise KeyError(f"{entity.__name__} has no field {', '.join(sorted(unknown))}")
    filled = {name: _value(each, values[name]) if name in values else each.default for name, each in known.items()}
    return entity(**filled)


def _value(field: SchemaField, given: Any) -> object:
    if field.is_array and given is not None:
        return tuple(_single(field, each) for each in given)
    return _single(field, given)


def _single(field: SchemaField, given: Any) -> object:
    if field.struct is not None and isinstance(given, Mapping):
        return entity_of(field.struct, given)
    if field.kind.startswith("timedelta") and isinstance(given, int):
        return timedelta(milliseconds=given)
    if field.kind.startswith("datetime") and isinstance(given, int):
        return datetime.fromtimestamp(given / 1000, UTC)
    if field.kind == "uuid" and isinstance(given, bytes):
        return UUID(bytes=given)
    return given


CLIENT_ID = "crucible-probe"
LONGEST_FRAME = 64 * 2**20
_LENGTH = struct.Struct(">i")


class Broken(Exception):  # noqa: N818  (what the broker did, not an error of ours)
    """There is no response that could be judged. The subclasses say why."""


class Silent(Broken):
    """The time limit passed without a response."""


class Closed(Broken):
    """The broker closed the connection, or accepts none."""


class Garbled(Broken):
    """The bytes that came are no response to the request."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request whose response has not been read yet."""

    api_key: int
    version: int
    correlation_id: int

    def __str__(self) -> str:
        return f"{api_name(self.api_key)} {self.version}"


@dataclass(slots=True)
class Conversation:
    """One connection."""

    address: tuple[str, int]
    lines: list[Line]  # gets each message
    left_s: Callable[[], float]  # the seconds that remain for the case
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
        """Sends a request and returns the decoded body of its response. ``values``: see ``body``.

        Raises Silent after ``limit_s`` (None: when the case's time has passed), Closed and Garbled.
        """
        return self.receive(self.send(api_key, version, values), limit_s)

    def send(self, api_key: int, version: int, values: object, correlation_id: int | None = None) -> PendingRequest:
        """Sends a request. Its response must be read with ``receive``, in the order of the requests."""
        asked, frame, words = self.encoded(api_key, version, values, correlation_id)
        self.send_bytes(frame, words)
        return asked

    def encoded(
        self, api_key: int, version: int, values: object, correlation_id: int | None = None
    ) -> tuple[PendingRequest, bytes, str]:
        """Returns a request that is not sent yet, its frame with the length, and its words."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        request = body(api_key, values)
        frame = b"".join(encode_request(api_key, version, correlation_id, self.client_id, request))
        return (
            PendingRequest(api_key, version, correlation_id),
            frame,
            f"{api_name(api_key)} {version} {in_words(request)}",
        )

    def receive(self, asked: PendingRequest, limit_s: float | None = None) -> Any:
        """Reads the next response, which must be that of ``asked``."""
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
        """Reads the next frame and returns it without its length."""
        until = time.monotonic() + self._patience(limit_s)
        (length,) = _LENGTH.unpack(self._read(4, until, what))
        if not 4 <= length <= LONGEST_FRAME:
            self._note(f"a frame that claims {length} bytes")
            raise Garbled(f"the answer to {what} claims {length} bytes")
        return self._read(length, until, what)

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the broker closes the connection within that time, without another response."""
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
