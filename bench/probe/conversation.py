"""A client over a raw socket. It records its conversation in words and bytes.

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

from reference_broker.blocking.transport import ConnectError, Connection, DeadlineError, EncodedRequest, LostError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import body_class
from reference_broker.wire.produce import ProduceRequest
from reference_broker.wire.schema import SchemaField, schema_fields

MAX_WORDS = 2_000
MAX_BYTES = 4_096
"""Numbers of characters and bytes of one line that are shown."""
SENT, RECEIVED, HAPPENED = ">", "<", "!"


@dataclass(frozen=True, slots=True)
class Line:
    """One message, or something else that happened on a connection."""

    connection: int  # number of the connection in the case, from 1
    direction: str
    words: str
    frame: bytes = b""  # begins with the length
    body: Any = None  # the decoded response

    @property
    def hex(self) -> str:
        over = len(self.frame) - MAX_BYTES
        return self.frame[:MAX_BYTES].hex() + (f"... ({over} more bytes)" if over > 0 else "")


def in_words(value: object) -> str:
    """A value in one short line: ``{error_code: NONE, topics: [{...}]}``."""
    text = _words_of(value)
    over = len(text) - MAX_WORDS
    return text if over <= 0 else f"{text[:MAX_WORDS]}... ({over} more characters)"


def _words_of(value: object) -> str:
    if isinstance(value, Enum):
        return value.name.upper()
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes" if len(value) > 32 else bytes(value).hex() or "no bytes"
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{field_.name}: {_words_of(getattr(value, field_.name))}" for field_ in fields(value))
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
    """Make the body of a request, in the class of the highest version. ``values`` is a mapping of the fields to plain
    values, with mappings for structs, milliseconds for times and 16 bytes for IDs. A field that is not named has its
    default. A body that is made already is returned as it is: Fetch and Produce have classes that are short to write.

    Raise KeyError for a field that the API does not have.
    """
    if not isinstance(values, Mapping):
        return values
    if api_key in OWN:
        return OWN[api_key](**values)
    return entity_of(body_class(api_key, "request"), values)


def entity_of(entity: type, values: Mapping[str, Any]) -> object:
    """Make one from plain values, as ``body`` does."""
    known = {field_.name: field_ for field_ in schema_fields(entity)}
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


@dataclass(slots=True)
class Conversation:
    """One connection."""

    address: tuple[str, int]
    lines: list[Line]  # gets each message
    left_s: Callable[[], float]  # the seconds that remain for the case
    number: int = 1
    client_id: str | None = CLIENT_ID
    _connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        host, port = self.address
        try:
            self._connection = Connection.open(host, port, self._limit_us(None), self.client_id)
        except ConnectError as error:
            self._note(f"cannot connect to {host}:{port}: {error.detail}")
            raise Closed(f"{host}:{port} accepts no connection: {error.detail}") from None
        self._connection.max_response_bytes = LONGEST_FRAME

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def reset(self) -> None:
        """End the connection at once with RST, whatever is in flight."""
        self._note("we reset the connection")
        self._connection.reset()

    # Whole requests

    def call(self, api_key: int, version: int, values: object, limit_s: float | None = None) -> Any:
        """Send a request and return the decoded body of its response. ``values``: see ``body``.

        Raise Silent after ``limit_s`` (None: when the case's time has passed), Closed and Garbled.
        """
        return self.receive(self.send(api_key, version, values), limit_s)

    def send(self, api_key: int, version: int, values: object) -> EncodedRequest:
        """Send a request. Its response must be read with ``receive``, in the order of the requests."""
        request, words = self.encoded(api_key, version, values)
        self.send_bytes(request.frame, words)
        return request

    def encoded(self, api_key: int, version: int, values: object) -> tuple[EncodedRequest, str]:
        """Return a request that is not sent yet, and its words."""
        sent = body(api_key, values)
        request = self._connection.encode(api_key, version, sent)
        return request, f"{request} {in_words(sent)}"

    def receive(self, request: EncodedRequest, limit_s: float | None = None) -> Any:
        """Read the next response, which must be that of ``request``."""
        frame = self.receive_frame(limit_s, str(request))
        try:
            response = request.decode(frame)
        except LostError as error:
            self._write_down(RECEIVED, f"{request}, which {error.detail}", frame)
            raise Garbled(f"the response to {request} {error.detail}") from None
        self._write_down(RECEIVED, f"{request} {in_words(response)}", frame, response)
        return response

    # Bytes

    def send_bytes(self, frame: bytes, words: str) -> None:
        """Send bytes as they are. ``words`` say what they are."""
        self.lines.append(Line(self.number, SENT, words, frame))
        try:
            self._connection.send_bytes(frame, self._limit_us(None))
        except DeadlineError:
            raise Silent("the broker reads no further") from None
        except LostError as error:
            self._note(f"the broker closed the connection: {error.detail}")
            raise Closed("the broker closed the connection while it was sent a request") from None

    def receive_frame(self, limit_s: float | None = None, what: str = "the request") -> memoryview:
        """Read the next frame and return it without its length."""
        try:
            return self._connection.receive_frame(time.monotonic() + self._limit_us(limit_s) / 1e6)
        except DeadlineError:
            self._note(f"no response to {what} in time")
            raise Silent(f"the broker does not respond to {what}") from None
        except LostError as error:
            if error.reason == "garbled":
                self._note(error.detail)
                raise Garbled(f"the response to {what} is {error.detail}") from None
            self._note("the broker closed the connection")
            raise Closed(f"the broker closed the connection instead of responding to {what}") from None

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Return whether the broker closes the connection within that time, without another response."""
        self._connection.sock.settimeout(self._limit_us(within_s) / 1e6)
        try:
            came = self._connection.sock.recv(1)
        except TimeoutError:
            self._note("the connection stays open")
            return False
        except OSError:
            came = b""
        self._note("a response came" if came else "the broker closed the connection")
        return not came

    def end_sending(self) -> None:
        """Close our half of the connection."""
        self._note("we close our half of the connection")
        self._connection.sock.shutdown(socket.SHUT_WR)

    def _limit_us(self, limit_s: float | None) -> int:
        """Return the smaller of this limit and what the case has left, at least a millisecond."""
        left_s = max(0.001, self.left_s())
        return int((left_s if limit_s is None else min(limit_s, left_s)) * 1e6)

    def _write_down(self, direction: str, words: str, frame: memoryview, body: Any = None) -> None:
        self.lines.append(Line(self.number, direction, words, _LENGTH.pack(len(frame)) + frame, body))

    def _note(self, words: str) -> None:
        self.lines.append(Line(self.number, HAPPENED, words))
