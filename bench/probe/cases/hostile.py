"""Bytes that no client sends, and loads that no client needs.

Frames, headers and bodies lie about their sizes. Clients send more than the limits allow, come and go, and do not read.
The bad connection gets an error or is closed, and the broker goes on serving others. None of this can take a broker
over: no request here is one of a node or of a controller.
"""

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bench.probe.case import ANY, MUST, SHOULD, Level, ProbeCase, Versions, case, since_version
from bench.probe.context import TIMEOUT_MS, ProbeContext, single
from bench.probe.conversation import Closed, Conversation, Silent
from bench.probe.data import FETCH, altered, batch, produce, produce_request, send_fetch
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.messages import decode_response

API_VERSIONS, METADATA = int(ApiKey.API_VERSIONS), int(ApiKey.METADATA)
LIST, PRODUCE = int(ApiKey.LIST_OFFSETS), int(ApiKey.PRODUCE)
NEEDS = {API_VERSIONS: ANY}
GUIDE = "Kafka protocol guide"
SERVED_WITHIN_S = 5.0
ENDED_WITHIN_S = 5.0
CLOSED, SILENT, RESPONDED = "closed", "silent", "response without an error"
_LENGTH, _HEADER = struct.Struct(">i"), struct.Struct(">hhih")


def framed(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def request(api_key: int, version: int, *body: bytes, client_id: bytes = b"probe") -> bytes:
    """A request with its length. From the flexible version on, ``body`` begins with the tagged fields of the header."""
    return framed(_HEADER.pack(api_key, version, 1, len(client_id)), client_id, *body)


def serves(at: ProbeContext) -> None:
    """Another connection is accepted and served in time."""
    at.expect("others are served in time", _is_served(at), True)


def _is_served(at: ProbeContext) -> bool:
    until = time.monotonic() + SERVED_WITHIN_S
    try:
        with at.connect() as fresh:
            code = at.call(API_VERSIONS, {}, 0, fresh, SERVED_WITHIN_S).error_code
    except (Closed, Silent):
        return False
    return bool(code == ErrorCode.none) and time.monotonic() < until


def end_of(connection: Conversation, api_key: int = API_VERSIONS, version: int = 0) -> str:
    """Return the end of a connection that has sent a bad request: closed, an error, a response without one, or
    silence."""
    try:
        frame = connection.receive_frame(ENDED_WITHIN_S)
    except Closed:
        return CLOSED
    except Silent:
        return SILENT
    try:
        return "an error" if any(_errors(decode_response(api_key, version, frame)[1])) else RESPONDED
    except ProtocolError:
        return "bytes that are no response"


def _errors(body: Any) -> Iterator[int]:
    """All error codes of a response, at any depth."""
    if isinstance(body, ErrorCode):
        yield int(body)
    elif isinstance(body, list | tuple):
        for each in body:
            yield from _errors(each)
    elif is_dataclass(body):
        for field in fields(body):
            yield from _errors(getattr(body, field.name))


def refused(at: ProbeContext, data: bytes, words: str, api_key: int = API_VERSIONS, version: int = 0) -> None:
    """These bytes on a connection of their own end it, or get an error. Others are served."""
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
) -> ProbeCase:
    """A case that sends these bytes on a connection of its own."""

    def play(at: ProbeContext) -> None:
        refused(at, data, words, api_key, version)

    play.__doc__ = f"After {words} the connection is closed or gets an error, and others are served."
    needs: Mapping[int, Versions] = {API_VERSIONS: ANY, api_key: (version, version)}
    return case(f"hostile/{name}", GUIDE, needs, since="0.10.0", level=level, hostile=True)(play)


def _of(api_key: int, version: int) -> Callable[..., ProbeCase]:
    """Make cases with a request of this version."""
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


CREATE = int(ApiKey.CREATE_TOPICS)
WRITES = {PRODUCE: since_version(3), CREATE: ANY}
KIP_98 = "KIP-98, the record batch"
VALIDATOR = "Apache Kafka's LogValidator"
MIB = 1 << 20
BOMB_MIB = 32
CLIENTS = 200
GZIP = int(Compression.GZIP)
NOT_SILENT = (CLOSED, "an error", RESPONDED)


# Frames that do not end


@case("hostile/frames/half", GUIDE, NEEDS, since="0.8", hostile=True)
def half(at: ProbeContext) -> None:
    """While half a frame has arrived, others are served. It gets its response when the rest has come."""
    frame = request(API_VERSIONS, 0)
    at.main.send_bytes(frame[:3], "the beginning of ApiVersions 0")
    serves(at)
    at.main.send_bytes(frame[3:9], "a piece of it")
    serves(at)
    at.main.send_bytes(frame[9:], "the rest of it")
    at.expect("correlation ID", int.from_bytes(at.main.receive_frame(5, "ApiVersions 0")[:4], "big"), 1)


@case("hostile/frames/claimed-memory", GUIDE, NEEDS, since="0.8", hostile=True)
def claimed_memory(at: ProbeContext) -> None:
    """Frames that claim a mebibyte each, and never come, keep no other client from being served."""
    for _ in range(16):
        at.connect().send_bytes(MIB.to_bytes(4, "big") + bytes(100), "the beginning of a frame of a mebibyte")
    serves(at)


# Much in one request


@case("hostile/tags/twenty-thousand", "KIP-482", {API_VERSIONS: since_version(3)}, since="2.4", hostile=True)
def twenty_thousand_tags(at: ProbeContext) -> None:
    """Twenty thousand unknown tagged fields are skipped or refused in time."""
    count, first = 20_000, 200
    tags = b"".join(
        bytes((0x80 | tag & 0x7F, 0x80 | tag >> 7 & 0x7F, tag >> 14, 0)) for tag in range(first, first + count)
    )
    sizes = bytes((0x80 | count & 0x7F, 0x80 | count >> 7 & 0x7F, count >> 14))
    at.main.send_bytes(request(API_VERSIONS, 3, sizes, tags, b"\x06probe\x021\x00"), "20,000 tagged fields")
    came = end_of(at.main, API_VERSIONS, 3)
    serves(at)
    at.expect("what came of it", came, *NOT_SILENT)


@case("hostile/bodies/not-utf-8", GUIDE, {METADATA: (4, 4)}, since="0.11", level=SHOULD, hostile=True)
def not_utf_8(at: ProbeContext) -> None:
    """A name that is no UTF-8 is refused, or taken for one that does not exist."""
    at.main.send_bytes(request(METADATA, 4, b"\x00\x00\x00\x01\x00\x04\xff\xfe\xc3\x28\x00"), "a name of wrong bytes")
    came = end_of(at.main, METADATA, 4)
    serves(at)
    at.expect("what came of it", came, CLOSED, "an error")


@case("hostile/many/topics", GUIDE, {METADATA: since_version(4)}, since="0.11", hostile=True)
def many_topics(at: ProbeContext) -> None:
    """Ten thousand topics that do not exist are all returned as unknown, or the request is refused. Others are
    served."""
    names = [{"name": f"crucible-probe-none-{number}"} for number in range(10_000)]
    version = at.version(METADATA)
    request, _ = at.main.encoded(METADATA, version, {"topics": names, "allow_auto_topic_creation": False})
    at.main.send_bytes(request.frame, "Metadata of 10,000 topics")
    serves(at)
    at.expect("what came of it", end_of(at.main, METADATA, version), CLOSED, "an error")


@case("hostile/many/partitions", GUIDE, {LIST: since_version(1), CREATE: ANY}, since="0.10.1", hostile=True)
def many_partitions(at: ProbeContext) -> None:
    """Twenty thousand partitions that do not exist are all returned as unknown, or the request is refused. Others are
    served."""
    partitions = [{"partition_index": number, "timestamp": -1} for number in range(1, 20_001)]
    wanted = {"replica_id": -1, "topics": [{"name": at.topic().name, "partitions": partitions}]}
    version = at.version(LIST)
    request, _ = at.main.encoded(LIST, version, wanted)
    at.main.send_bytes(request.frame, "ListOffsets of 20,000 partitions")
    serves(at)
    at.expect("what came of it", end_of(at.main, LIST, version), CLOSED, "an error")


@case("hostile/many/new-partitions", "KAFKA-17870", {CREATE: ANY}, since="4.0", level=SHOULD, hostile=True)
def many_new_partitions(at: ProbeContext) -> None:
    """A request for twenty thousand new partitions is refused with POLICY_VIOLATION. It only validates."""
    wanted = {"name": at.topic_name(), "num_partitions": 20_000, "replication_factor": 1}
    result = single(at.call(CREATE, {"topics": [wanted], "timeout": TIMEOUT_MS, "validate_only": True}), "topics")
    serves(at)
    at.expect_error(result, ErrorCode.policy_violation)


# Compressed records


@case("hostile/records/bomb", KIP_98, WRITES, since="0.11", hostile=True)
def bomb(at: ProbeContext) -> None:
    """A small batch that expands to 32 MiB is taken or refused in time, and others are served."""
    data = batch(bytes(BOMB_MIB * MIB), compression=GZIP)
    version = at.version(PRODUCE)
    at.send(PRODUCE, produce_request(at.topic(), version, {0: data}), version)
    serves(at)
    at.expect("what came of it", end_of(at.main, PRODUCE, version), *NOT_SILENT)


@case("hostile/records/cut-gzip", VALIDATOR, WRITES, since="0.11", level=SHOULD, hostile=True)
def cut_gzip(at: ProbeContext) -> None:
    """Compressed records that end too early are refused, though their checksum is right."""
    data = batch(b"a" * 4_000, b"b" * 4_000, compression=GZIP)
    cut = altered(data[:-12], batch_length=len(data) - 24)
    came = _came_of(at, cut)
    serves(at)
    at.expect_that("what came of it", came, came != "NONE", "an error, or closed")


@case("hostile/records/no-gzip", VALIDATOR, WRITES, since="0.11", level=SHOULD, hostile=True)
def no_gzip(at: ProbeContext) -> None:
    """Records that claim to be compressed, and are not, are refused."""
    came = _came_of(at, altered(batch(b"plain"), attributes=GZIP))
    serves(at)
    at.expect_that("what came of it", came, came != "NONE", "an error, or closed")


@case("hostile/records/count", KIP_98, WRITES, since="0.11", hostile=True)
def count(at: ProbeContext) -> None:
    """A compressed batch that claims 2^31-1 records, and has one, is refused."""
    most = 2**31 - 1
    came = _came_of(at, altered(batch(compression=GZIP), record_count=most, last_offset_delta=most - 1))
    serves(at)
    at.expect_that("what came of it", came, came != "NONE", "an error, or closed")


def _came_of(at: ProbeContext, data: bytes) -> str:
    """The error code of a produce, in words."""
    try:
        return ErrorCode(produce(at, at.topic(), data).error_code).name.upper()
    except Closed:
        return CLOSED


# Connections


@case("hostile/connections/unread", GUIDE, NEEDS, since="0.8", hostile=True)
def unread(at: ProbeContext) -> None:
    """A client that sends five thousand requests and reads nothing keeps no other client from being served. Its
    responses are there when it reads, if it is not closed."""
    number = 5_000
    one = request(API_VERSIONS, 0)
    at.main.send_bytes(one * number, f"{number} times ApiVersions 0")
    serves(at)
    read = 0
    try:
        while read < number:
            at.main.receive_frame(5, "ApiVersions 0")
            read += 1
        came = "all"
    except Closed:
        came = CLOSED
    at.expect("responses", came, "all", CLOSED)


@case("hostile/connections/many", GUIDE, NEEDS, since="0.8", hostile=True)
def many(at: ProbeContext) -> None:
    """With two hundred connections that do nothing, another one is served."""
    for _ in range(CLIENTS):
        at.connect()
    serves(at)


@case("hostile/connections/come-and-go", GUIDE, NEEDS, since="0.8", hostile=True)
def come_and_go(at: ProbeContext) -> None:
    """Two hundred connections that end as soon as they are made leave the broker as it was."""
    for _ in range(CLIENTS):
        at.connect().close()
    serves(at)


@case("hostile/resets/in-frame", GUIDE, NEEDS, since="0.8", hostile=True)
def reset_in_frame(at: ProbeContext) -> None:
    """Connections that are reset in the middle of a request leave the broker as it was."""
    for length in range(1, 24):
        connection = at.connect()
        connection.send_bytes(request(API_VERSIONS, 0)[:length], "a part of ApiVersions 0")
        connection.reset()
    serves(at)


@case(
    "hostile/resets/waiting",
    GUIDE,
    {FETCH: since_version(4), CREATE: ANY, API_VERSIONS: ANY},
    since="0.11",
    hostile=True,
)
def reset_waiting(at: ProbeContext) -> None:
    """A connection that is reset while a fetch waits, with more requests behind it, leaves the broker as it was."""
    topic = at.topic()
    send_fetch(at, topic, max_wait_ms=3_000, min_bytes=1)
    at.main.send_bytes(request(API_VERSIONS, 0) * 50, "50 times ApiVersions 0")
    at.main.reset()
    serves(at)
