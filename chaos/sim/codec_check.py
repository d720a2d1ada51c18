"""Messages through the wire's codec: a sent message must come out of it unchanged, and damaged bytes must be read.

Values are compared instead of bytes, because a field that a version lacks is missing from the bytes of both. A receiver
in the simulator would still read such a field, which no real cluster can do. There are no exceptions: a sender sets
only the fields of its version.

``ReplyStream`` reads the bytes of a connection from its first damaged reply on.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final

from bench.fleet.behaviours.protocol import Request as ClientRequest
from reference_broker.core.events import Reply
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import FrameReader, read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response

MAX_FRAME_BYTES = 64 << 20


PLAIN: Final = frozenset({int, str, bool, bytes})
BYTES: Final = (bytes, bytearray, memoryview)
ROWS: Final = (list, tuple)
_NOT_THERE: Final = object()


class CodecMismatchError(AssertionError):
    """The codec changed a message. Either it has a bug, or the sender set a field that the version lacks."""


def request_bytes(action: ClientRequest, correlation: int) -> bytes:
    parts = encode_request(action.api_key, action.api_version, correlation, action.client_id, action.body)
    return b"".join(bytes(part) for part in parts)


def reply_bytes(reply: Reply) -> bytes:
    parts = encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
    return b"".join(bytes(part) for part in parts)


def same_after_codec_request(action: ClientRequest, correlation: int) -> object:
    """Return the decoded body, for the node. Raise CodecMismatchError if it differs from the original."""
    frame = _frame(request_bytes(action, correlation))
    header, offset = read_request_header(frame)
    if (header.correlation_id, header.client_id) != (correlation, action.client_id):
        raise CodecMismatchError(f"request header of API {action.api_key} v{action.api_version}: {header}")
    body = decode_request(action.api_key, action.api_version, frame, offset)
    _check(action.api_key, action.api_version, "request", action.body, body)
    return body


def same_after_codec_reply(reply: Reply) -> object:
    """Return the decoded body, for the client. Raise CodecMismatchError if it differs from the original."""
    frame = _frame(reply_bytes(reply))
    correlation, body = decode_response(reply.api_key, reply.api_version, frame)
    if correlation != reply.correlation_id:
        raise CodecMismatchError(f"response of API {reply.api_key} v{reply.api_version}: correlation {correlation}")
    _check(reply.api_key, reply.api_version, "response", reply.body, body)
    return body


def _check(api_key: int, api_version: int, direction: str, before: object, after: object) -> None:
    if not same(before, after):
        place, old, new = next(differences(before, after, direction))
        raise CodecMismatchError(f"{place} of API {api_key} v{api_version}: {old!r} became {new!r}")


def differences(before: Any, after: Any, place: str) -> Iterator[tuple[str, object, object]]:
    """Yield the differences of two bodies: the place, the former value and the new one."""
    if same(before, after):
        return
    names = _fields((type(before), type(after)))
    if names:
        for name in names:
            yield from differences(
                getattr(before, name, _NOT_THERE), getattr(after, name, _NOT_THERE), f"{place}.{name}"
            )
    elif isinstance(before, ROWS) and isinstance(after, ROWS) and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            yield from differences(old, new, place)
    else:
        yield place, before, after


def same(before: Any, after: Any) -> bool:
    """Return whether two bodies are equal.

    A list equals a tuple of the same items, bytes equal a view of them, and a number equals its enum. Struct classes
    are compared field by field.
    """
    kind = type(before)
    if kind is type(after) and kind in PLAIN:
        return bool(before == after)
    if isinstance(before, ROWS):
        return isinstance(after, ROWS) and len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, BYTES):
        return isinstance(after, BYTES) and bytes(before) == bytes(after)
    names = _fields((kind, type(after)))
    if not names:
        return bool(before == after)
    return all(same(getattr(before, name, _NOT_THERE), getattr(after, name, _NOT_THERE)) for name in names)


@cache
def _fields(structs: tuple[type, type]) -> tuple[str, ...]:
    """Return the names of the fields that one of two struct classes has. There are none if one is no such class."""
    if not all(map(is_dataclass, structs)):
        return ()
    return tuple(dict.fromkeys(field.name for struct in structs for field in fields(struct)))


def _frame(data: bytes) -> memoryview:
    reader = FrameReader(MAX_FRAME_BYTES)
    reader.feed(data)
    frame = reader.next_frame()
    assert frame is not None, "an encoded message is one whole frame"
    return frame


class ReplyStream:
    """Responses come in the order of their requests, so a frame is decoded as the response to the oldest pending
    request. ``serve.peers`` and the clients do the same."""

    def __init__(self) -> None:
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._awaited: deque[Reply] = deque()

    def arrived(self, reply: Reply, frame: bytes) -> Iterator[tuple[int, object]]:
        """Add the bytes that were sent for ``reply``. Yield correlation ID and body of each response that is complete
        now. Raise ProtocolError if the receiver cannot read one."""
        self._reader.feed(frame)
        self._awaited.append(reply)
        while True:
            whole = self._reader.next_frame()
            if whole is None:
                return
            if not self._awaited:
                raise ProtocolError("a response to no request")
            oldest = self._awaited.popleft()
            correlation, body = decode_response(oldest.api_key, oldest.api_version, whole)
            if correlation != oldest.correlation_id:
                raise ProtocolError(f"a response to request {correlation}, not {oldest.correlation_id}")
            yield correlation, body
