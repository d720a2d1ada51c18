"""Bytes that no client sends: frames, headers and bodies that lie about their sizes.

The bad connection gets an error or is closed, and the broker goes on serving others. None of this can take a broker
over: no request here is one of a node or of a controller.
"""

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bench.probe.case import ANY, MUST, SHOULD, Case, Level, Versions, case
from bench.probe.context import ProbeContext
from bench.probe.conversation import Closed, Conversation, Silent
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.messages import decode_response

API_VERSIONS, METADATA = int(ApiKey.API_VERSIONS), int(ApiKey.METADATA)
LIST, PRODUCE = int(ApiKey.LIST_OFFSETS), int(ApiKey.PRODUCE)
NEEDS = {API_VERSIONS: ANY}
GUIDE = "Kafka protocol guide"
SERVED_WITHIN_S = 5.0
ENDED_WITHIN_S = 5.0
CLOSED, SILENT, ANSWERED = "closed", "silent", "answered without an error"
_LENGTH, _HEADER = struct.Struct(">i"), struct.Struct(">hhih")


def framed(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def request(api_key: int, version: int, *body: bytes, client_id: bytes = b"probe") -> bytes:
    """A request with its length. From the flexible version on, ``body`` begins with the tagged fields of the header."""
    return framed(_HEADER.pack(api_key, version, 1, len(client_id)), client_id, *body)


def serves(at: ProbeContext) -> None:
    """Another connection is accepted and answered in time."""
    at.expect("others are served in time", _is_served(at), True)


def _is_served(at: ProbeContext) -> bool:
    until = time.monotonic() + SERVED_WITHIN_S
    try:
        with at.connect() as fresh:
            code = at.ask(API_VERSIONS, {}, 0, fresh, SERVED_WITHIN_S).error_code
    except (Closed, Silent):
        return False
    return bool(code == ErrorCode.none) and time.monotonic() < until


def end_of(connection: Conversation, api_key: int = API_VERSIONS, version: int = 0) -> str:
    """What came of a connection that has sent a bad request: closed, an error, an answer without one, or silence."""
    try:
        frame = connection.receive_frame(ENDED_WITHIN_S)
    except Closed:
        return CLOSED
    except Silent:
        return SILENT
    try:
        return "an error" if any(_errors(decode_response(api_key, version, memoryview(frame))[1])) else ANSWERED
    except ProtocolError:
        return "bytes that are no answer"


def _errors(body: Any) -> Iterator[int]:
    """All error codes of an answer, at any depth."""
    if isinstance(body, ErrorCode):
        yield int(body)
    elif isinstance(body, list | tuple):
        for each in body:
            yield from _errors(each)
    elif is_dataclass(body):
        for each in fields(body):
            yield from _errors(getattr(body, each.name))


def refused(at: ProbeContext, data: bytes, words: str, api_key: int = API_VERSIONS, version: int = 0) -> None:
    """These bytes on a connection of their own end it, or are answered with an error. Others are served."""
    with at.connect() as connection:
        try:
            connection.send_bytes(data, words)
            came = end_of(connection, api_key, version)
        except Closed:
            came = CLOSED
    serves(at)
    at.expect(f"what came of {words}", came, CLOSED, "an error")


def _bad(
    name: str, words: str, data: bytes, api_key: int = API_VERSIONS, version: int = 0, level: Level = MUST
) -> Case:
    """A case that sends these bytes on a connection of its own."""

    def play(at: ProbeContext) -> None:
        refused(at, data, words, api_key, version)

    play.__doc__ = f"After {words} the connection is closed or gets an error, and others are served."
    needs: Mapping[int, Versions] = {API_VERSIONS: ANY, api_key: (version, version)}
    return case(f"hostile/{name}", GUIDE, needs, since="0.10.0", level=level, hostile=True)(play)


def _of(api_key: int, version: int) -> Callable[..., Case]:
    """Makes cases with a request of this version."""
    return lambda name, words, *body, level=MUST: _bad(
        f"bodies/{name}", words, request(api_key, version, *body), api_key, version, level
    )


_METADATA_4, _METADATA_9, _LIST_1 = _of(METADATA, 4), _of(METADATA, 9), _of(LIST, 1)
_NO_TAGS = b"\x00"
_ONE = b"\x00\x00\x00\x01"
_HUGE = b"\x7f\xff\xff\xff"
_MINUS_ONE = b"\xff\xff\xff\xff"
_HUGE_VARINT = b"\xff\xff\xff\xff\x07"
_LONG_VARINT = b"\xff" * 9 + b"\x01"
_PRODUCE_3 = (b"\xff\xff", b"\x00\x01", b"\x00\x00\x03\xe8", _ONE, b"\x00\x01a", _ONE, b"\x00\x00\x00\x00")
"""A produce without a transaction, up to the size of its records."""

_TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)

# A broker may wait for a frame that claims to be very large, and may take null for nothing. Those are a SHOULD.
BAD_BYTES = (
    _bad("frames/negative", "a frame of -1 bytes", _MINUS_ONE),
    _bad("frames/lowest", "a frame of -2^31 bytes", b"\x80\x00\x00\x00"),
    _bad("frames/over-limit", "a frame that claims 2^31-1 bytes", _HUGE + b"abc", level=SHOULD),
    _bad("frames/empty", "a frame of 0 bytes", bytes(4)),
    _bad("frames/http", "a request of HTTP", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", level=SHOULD),
    _bad("frames/tls", "the beginning of TLS", _TLS, level=SHOULD),
    _bad("headers/one-byte", "a frame of one byte", framed(b"\x00")),
    _bad("headers/cut", "a header without a correlation ID", framed(b"\x00\x12\x00\x00\x00")),
    _bad(
        "headers/client-id", "a client ID that is longer than its frame", framed(_HEADER.pack(18, 0, 1, 0x7FFF), b"a")
    ),
    _bad("headers/negative-api", "a request of API -1", request(-1, 0)),
    _bad("headers/highest-api", "a request of API 32767", request(0x7FFF, 0)),
    _bad("headers/negative-version", "Metadata in version -1", request(METADATA, -1, bytes(4))),
    _bad("headers/garbage", "a frame of 64 bytes of 0xA5", framed(b"\xa5" * 64)),
    _bad(
        "tags/too-many", "a header that claims 2^31-1 tagged fields", request(API_VERSIONS, 3, _HUGE_VARINT, bytes(9))
    ),
    _bad("tags/too-large", "a tagged field of 2^31-1 bytes", request(API_VERSIONS, 3, b"\x01\x63", _HUGE_VARINT, b"a")),
    _bad("tags/overflow", "a number of tagged fields in ten bytes", request(API_VERSIONS, 3, _LONG_VARINT, bytes(9))),
    _METADATA_4("array-huge", "an array of 2^31-1 topics in a small frame", _HUGE),
    _METADATA_4("string-beyond", "a name that is longer than its frame", _ONE, b"\x70\x00abc"),
    _METADATA_4("cut", "a body that lacks all its fields"),
    _METADATA_9("compact-array-huge", "a compact array of 2^31-2 topics", _NO_TAGS, _HUGE_VARINT, bytes(9)),
    _METADATA_9("compact-string-beyond", "a compact name of 2^31-2 bytes", _NO_TAGS, b"\x02", _HUGE_VARINT, b"a"),
    _METADATA_9("varint-overflow", "an array length in ten bytes", _NO_TAGS, _LONG_VARINT, bytes(9)),
    _LIST_1("array-null", "null for an array that cannot be null", _MINUS_ONE, _MINUS_ONE, level=SHOULD),
    _LIST_1(
        "string-null", "null for a name that cannot be null", _MINUS_ONE, _ONE, _MINUS_ONE[:2], bytes(4), level=SHOULD
    ),
    _of(PRODUCE, 3)("records-beyond", "records that are longer than their frame", *_PRODUCE_3, _HUGE, b"abc"),
)
