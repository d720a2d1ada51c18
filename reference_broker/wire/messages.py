"""Decodes and encodes the messages of every API.

Fetch and Produce bodies are the values of ``wire.fetch`` and ``wire.produce``, with codecs written by hand. Every
other body is kio's dataclass of the highest version in ``apis.VERSIONS``, whatever the version on the wire. Its codec
is built on the API's first use, when kio's module is loaded. The bodies of drafts are in ``drafts``.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from struct import Struct, calcsize
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from reference_broker.ports.slicing import Sliced
from reference_broker.wire import version_conversions
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, VERSIONS, ApiKey, api_name, is_known
from reference_broker.wire.decoding import SlicedReader, decoder, sliced_decoder
from reference_broker.wire.drafts import LAYOUTS, OWN_REQUESTS
from reference_broker.wire.encoding import SlicedWriter, Writer, counter_of, encoder, sliced_encoder
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.fetch import FetchResponse
from reference_broker.wire.fetch_drafts import (
    decode_draft_request,
    decode_draft_response,
    draft_request_in_slices,
    encode_draft_request,
    encode_draft_response,
)
from reference_broker.wire.fetch_requests import (
    decode_fetch_request,
    encode_fetch_request,
    fetch_request_in_slices,
    fetch_work,
)
from reference_broker.wire.fetch_responses import decode_fetch_response, encode_fetch_response
from reference_broker.wire.frames import (
    RequestHeader,
    UnsupportedVersion,
    read_request_header,
    read_response_header,
    write_request_header,
    write_response_header,
)
from reference_broker.wire.primitives import BAD_BYTES, Buffers, Frame, Reader, error_of_bad_bytes
from reference_broker.wire.produce import (
    decode_produce_request,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
)
from reference_broker.wire.request_limits import (
    LARGE_RESPONSE_ITEMS,
    MAX_REQUEST_BYTES,
    Decoding,
    UnitBudget,
    check_request_bytes,
)
from reference_broker.wire.schema import FIXED, schema_fields

Direction: TypeAlias = Literal["request", "response"]

_FETCH: Final = int(ApiKey.FETCH)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_FETCH_ERROR_CODE_SINCE: Final = 7
_THROTTLE_TIME_BYTES: Final = 4
_UNSUPPORTED_VERSION: Final = int(ErrorCode.unsupported_version).to_bytes(2, "big")
_RICHEST: Final[dict[tuple[int, Direction], int]] = {(int(ApiKey.UPDATE_FEATURES), "response"): 1}
"""APIs whose highest version dropped fields that older versions need. Handlers fill the class of the version given
here, so that clients of older versions get those fields too."""
_RETIRED: Final = "reference_broker.wire.retired_fields"
_OWN_BODIES: Final[dict[tuple[int, Direction], str]] = {
    (int(ApiKey.METADATA), "request"): _RETIRED,
    (int(ApiKey.METADATA), "response"): _RETIRED,
    (int(ApiKey.OFFSET_COMMIT), "request"): _RETIRED,
}
"""The modules of our own classes, where the highest version dropped a field that a handler reads."""
_LENGTH: Final = Struct(">i")
_NO_LENGTH: Final = bytes(4)


def decode_request(api_key: int, version: int, frame: Frame, offset: int) -> object:
    """Decode the body that begins at ``offset``.

    Bytes behind its end are ignored, as in Kafka: when librdkafka requests all topics in a flexible version, it writes
    four bytes for the null array where one is correct.

    Raise ProtocolError, and its subclass UnsupportedVersion for an API or version that is not known here.
    """
    if not is_known(api_key, version):
        raise UnsupportedVersion(_header_of(api_key, version, frame, offset))
    body: object
    if len(frame) > MAX_REQUEST_BYTES and api_key != _PRODUCE:
        check_request_bytes(api_key, len(frame))
    try:
        if api_key == _FETCH:
            if version >= FIRST_DRAFT_VERSION:
                body, _ = decode_draft_request(version, frame, offset)
            else:
                body, _ = decode_fetch_request(version, frame, offset)
        elif api_key == _PRODUCE:
            body, _ = decode_produce_request(version, frame, offset)
        else:
            body, _ = _codec(api_key, version, "request").read(frame, offset)
    except BAD_BYTES as failure:
        raise error_of_bad_bytes(_what(api_key, "request"), failure) from None
    return body


def decode_request_in_slices(api_key: int, version: int, frame: Frame, offset: int) -> Sliced[tuple[object, int]]:
    """As ``decode_request``, for a frame of more than LARGE_FRAME_BYTES, which takes several events. Returns the body,
    and how many items it has. Raise TooMuchError, too. Produce, whose codec is fast, takes a single event."""
    if api_key == _PRODUCE or not is_known(api_key, version):
        return decode_request(api_key, version, frame, offset), 0
    check_request_bytes(api_key, len(frame))
    decoding, work = _request_in_slices(api_key, version, frame, offset)
    try:
        body, _ = yield from decoding
    except BAD_BYTES as failure:
        raise error_of_bad_bytes(_what(api_key, "request"), failure) from None
    return body, work.items


def _request_in_slices(api_key: int, version: int, frame: Frame, offset: int) -> tuple[Decoding[Any], UnitBudget]:
    if api_key == _FETCH:
        work = fetch_work()
        if version >= FIRST_DRAFT_VERSION:
            return draft_request_in_slices(version, frame, offset, work), work
        return fetch_request_in_slices(version, frame, offset, work), work
    work = UnitBudget.of_request(api_key)
    return _codec(api_key, version, "request").read_in_slices(frame, offset, work), work


def is_large_response(api_key: int, version: int, body: Any) -> bool:
    """Return whether a response is so large that it is encoded in several events."""
    return items_of_response(api_key, version, body) > LARGE_RESPONSE_ITEMS


def items_of_response(api_key: int, version: int, body: Any) -> int:
    """Return the number of items in the outer arrays of a response. Zero for Fetch and Produce, and for a body of
    another class than its API's."""
    if api_key in (_FETCH, _PRODUCE):
        return 0
    kind, count = _counter(api_key, version)
    return count(body) if isinstance(body, kind) else 0


@cache
def _counter(api_key: int, version: int) -> tuple[type, Callable[[Any], int]]:
    kind = _body_and_wire(api_key, version, "response")[0]
    return kind, counter_of(kind)


def encode_response_in_slices(api_key: int, version: int, correlation_id: int, body: Any) -> Sliced[Buffers]:
    """As ``encode_response``, for a large response, which takes several events."""
    out = bytearray(_NO_LENGTH + write_response_header(api_key, version, correlation_id))
    yield from _codec(api_key, version, "response").write_in_slices(out, body, UnitBudget(api_key, 0))
    _LENGTH.pack_into(out, 0, len(out) - 4)
    return [memoryview(out)]


def encode_response(api_key: int, version: int, correlation_id: int, body: Any) -> Buffers:
    """The frame with its length, as buffers to be written one after the other."""
    if api_key == _FETCH:
        if version >= FIRST_DRAFT_VERSION:
            return encode_draft_response(version, correlation_id, body)
        return encode_fetch_response(version, correlation_id, body)
    if api_key == _PRODUCE:
        return encode_produce_response(version, correlation_id, body)
    start = _NO_LENGTH + write_response_header(api_key, version, correlation_id)
    return _encode(_codec(api_key, version, "response"), start, body)


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, body: Any) -> Buffers:
    """The frame with its length, as buffers to be written one after the other."""
    assert is_known(api_key, version), f"no codec for {api_name(api_key)} version {version}"
    start = _NO_LENGTH + write_request_header(RequestHeader(api_key, version, correlation_id, client_id))
    if api_key == _FETCH:
        if version >= FIRST_DRAFT_VERSION:
            return encode_draft_request(version, start, body)
        return encode_fetch_request(version, start, body)
    if api_key == _PRODUCE:
        return encode_produce_request(version, start, body)
    return _encode(_codec(api_key, version, "request"), start, body)


def decode_response(api_key: int, version: int, frame: Frame) -> tuple[int, object]:
    """Return the correlation ID and the body. ``frame`` does not include its length.

    Raise ProtocolError. A broker that does not know the version of an ApiVersions request responds in version 0 with
    error 35 (KIP-511); that response is decoded too.
    """
    assert is_known(api_key, version), f"no codec for {api_name(api_key)} version {version}"
    correlation_id, offset = read_response_header(frame, api_key, version)
    body: object
    try:
        if api_key == _FETCH:
            if version >= FIRST_DRAFT_VERSION:
                body, end = decode_draft_response(version, frame, offset)
            else:
                body, end = decode_fetch_response(version, frame, offset)
        elif api_key == _PRODUCE:
            body, end = decode_produce_response(version, frame, offset)
        else:
            if api_key == _API_VERSIONS and frame[offset : offset + 2] == _UNSUPPORTED_VERSION:
                version = 0
            body, end = _codec(api_key, version, "response").read(frame, offset)
    except BAD_BYTES as failure:
        raise error_of_bad_bytes(_what(api_key, "response"), failure) from None
    if end != len(frame):
        raise ProtocolError(f"{_what(api_key, 'response')} has {len(frame) - end} bytes behind its end")
    return correlation_id, body


def body_class(api_key: int, direction: Direction) -> type:
    """The class of the bodies of an API other than Fetch and Produce. Loads kio's module."""
    module = _OWN_BODIES.get((api_key, direction))
    if module is not None:
        return _class_in(module, api_key, direction)
    return _kio_class(api_key, _RICHEST.get((api_key, direction), VERSIONS[api_key][1]), direction)


def has_error_code(api_key: int, version: int) -> bool:
    """Return whether a response of this version has an error code of its own, beside those of single topics and the
    like.

    It must have it on the wire and in the body that handlers fill.
    """
    if api_key == _PRODUCE:
        return False
    if api_key == _FETCH:
        return version >= _FETCH_ERROR_CODE_SINCE
    return all(
        any(field.name == "error_code" for field in schema_fields(layout))
        for layout in _body_and_wire(api_key, version, "response")
    )


@cache
def error_code_offset(api_key: int, version: int) -> int | None:
    """Return the number of bytes of a response's body before its own error code. None if it has none, or if what comes
    before it has no fixed size."""
    if version >= FIRST_DRAFT_VERSION or not has_error_code(api_key, version):
        return None
    if api_key == _FETCH:
        return _THROTTLE_TIME_BYTES
    before = 0
    for field in schema_fields(_body_and_wire(api_key, version, "response")[1]):
        if field.name == "error_code":
            return before
        if field.tag is not None:
            continue
        if field.is_array or field.struct is not None or field.kind not in FIXED:
            return None
        before += calcsize(f">{FIXED[field.kind]}")
    return None


def empty_response(api_key: int, version: int, error_code: ErrorCode) -> object:
    """A response with this error code and nothing else in it. ``has_error_code`` must be true."""
    assert has_error_code(api_key, version), f"{api_name(api_key)} version {version} has no error code of its own"
    if api_key == _FETCH:
        return FetchResponse(error_code=int(error_code))
    body = _body_and_wire(api_key, version, "response")[0]
    values = {field.name: field.default for field in schema_fields(body)}
    kind = next(field.kind for field in schema_fields(body) if field.name == "error_code")
    return body(**values | {"error_code": error_code if kind == "error_code" else int(error_code)})


class _Codec(NamedTuple):
    read: Reader
    write: Writer
    read_in_slices: SlicedReader
    write_in_slices: SlicedWriter


@cache
def _codec(api_key: int, version: int, direction: Direction) -> _Codec:
    body, wire = _body_and_wire(api_key, version, direction)
    change = (version_conversions.REQUESTS if direction == "request" else version_conversions.RESPONSES).get(
        (api_key, version)
    )
    if change is None:
        return _Codec(decoder(wire, body), encoder(wire, body), sliced_decoder(wire, body), sliced_encoder(wire, body))
    read, write, (up, down) = decoder(wire, wire), encoder(wire, wire), change

    def read_old(frame: Frame, offset: int) -> tuple[Any, int]:
        old, offset = read(frame, offset)
        return version_conversions.converted(old, body, up), offset

    def write_old(out: bytearray, value: Any) -> None:
        write(out, version_conversions.converted(value, wire, down))

    read_slices, write_slices = sliced_decoder(wire, wire), sliced_encoder(wire, wire)

    def read_old_in_slices(frame: Frame, offset: int, work: UnitBudget) -> Sliced[tuple[Any, int]]:
        old, offset = yield from read_slices(frame, offset, work)
        return version_conversions.converted(old, body, up), offset

    def write_old_in_slices(out: bytearray, value: Any, work: UnitBudget) -> Sliced[None]:
        yield from write_slices(out, version_conversions.converted(value, wire, down), work)

    return _Codec(read_old, write_old, read_old_in_slices, write_old_in_slices)


def _body_and_wire(api_key: int, version: int, direction: Direction) -> tuple[type, type]:
    """The class that handlers see, and the one whose fields are the layout of this version."""
    if version < FIRST_DRAFT_VERSION:
        return body_class(api_key, direction), _kio_class(api_key, version, direction)
    request, response = LAYOUTS[(api_key, version)]
    if direction == "response":
        return response, response
    return (request if (api_key, version) in OWN_REQUESTS else body_class(api_key, direction)), request


def _what(api_key: int, direction: Direction) -> str:
    """Return the name of the decoded message, for error messages."""
    name = api_name(api_key)
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name} {direction}"


def _kio_class(api_key: int, version: int, direction: Direction) -> type:
    name = ApiKey(api_key).name.lower()
    return _class_in(f"kio.schema.{name}.v{version}.{direction}", api_key, direction)


def _class_in(module: str, api_key: int, direction: Direction) -> type:
    found = getattr(import_module(module), api_name(api_key) + direction.capitalize())
    assert isinstance(found, type)
    return found


def _encode(codec: _Codec, start: bytes, body: object) -> Buffers:
    out = bytearray(start)
    codec.write(out, body)
    _LENGTH.pack_into(out, 0, len(out) - 4)
    return [bytes(out)]


def _header_of(api_key: int, version: int, frame: Frame, offset: int) -> RequestHeader:
    """The header of a request whose body cannot be decoded. The caller may have cut the header off the frame."""
    return read_request_header(frame)[0] if offset else RequestHeader(api_key, version, -1, None)
