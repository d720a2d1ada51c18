"""Whatever a peer sends, the outcome is a value or ProtocolError, and memory follows what arrived."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from reference_broker.wire.apis import VERSIONS, ApiKey, is_flexible
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import UnsupportedVersion, read_request_header, read_response_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request
from reference_broker.wire.primitives import tagged, uvarint
from reference_broker.wire.schema import is_flexible_entity, schema_fields
from reference_broker.wire.tests.strategies import (
    entities,
    fetch_requests,
    fetch_responses,
    kio_bytes,
    produce_requests,
    produce_responses,
)

ALL = list(HealthCheck)
SOME = (0, 1, 2, 3, 10, 18, 19, 20, 22, 23, 32, 33, 44, 52, 53, 54, 55, 56, 57, 59, 60, 62, 63, 64, 67, 75)


def attempt(key: int, version: int, request: bool, frame: bytes) -> object | None:
    """Return what was decoded, or None after a ProtocolError; nothing else may come out."""
    try:
        if request:
            return decode_request(key, version, memoryview(frame), 0)
        return decode_response(key, version, memoryview(frame))[1]
    except ProtocolError:
        return None


@pytest.mark.thorough
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(st.sampled_from(SOME), st.data(), st.booleans(), st.binary(max_size=80))
def test_random_bytes(key: int, data: st.DataObject, request: bool, frame: bytes) -> None:
    version = data.draw(st.integers(*VERSIONS[ApiKey(key)][:2]))
    attempt(key, version, request, frame)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(st.binary(max_size=60))
def test_random_headers(frame: bytes) -> None:
    try:
        header, offset = read_request_header(memoryview(frame))
        assert offset <= len(frame)
        decode_request(header.api_key, header.api_version, memoryview(frame), offset)
    except ProtocolError:
        pass  # The other outcome that is allowed.


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    frame = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(frame) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "huge"]))
        if kind == "cut":
            del frame[at:]
        elif kind == "insert":
            frame[at:at] = draw(st.binary(max_size=6))
        elif kind == "huge":
            frame[at : at + 5] = draw(st.sampled_from((b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x80\0\0\0")))
        elif at < len(frame):
            frame[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(frame)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(st.sampled_from(SOME[2:]), st.booleans(), st.data())
def test_mutated_messages_decode_to_what_kio_decodes_or_are_refused(
    key: int, request: bool, data: st.DataObject
) -> None:
    version = data.draw(st.integers(*VERSIONS[ApiKey(key)][:2]))
    schema = (load_request_schema if request else load_response_schema)(key, version)
    frame = data.draw(mutated(kio_bytes(data.draw(entities(schema)))))
    header = b"" if request else bytes(4 + (is_flexible(key, version) and key != 18))
    ours = attempt(key, version, request, header + frame)
    if ours is None:
        return
    # Accepted, so kio (which aborts the process on a huge count) can decode it safely.
    try:
        theirs, _ = entity_reader(schema)(frame, 0)
    except (KeyError, ValueError):
        return  # Unknown tagged fields and error codes, which kio refuses and we do not.
    again = attempt(key, version, request, header + kio_bytes(theirs))
    assert again == ours


@pytest.mark.thorough
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(st.booleans(), st.booleans(), st.data())
def test_mutated_fetch_and_produce(fetch: bool, request: bool, data: st.DataObject) -> None:
    key = ApiKey.FETCH if fetch else ApiKey.PRODUCE
    version = data.draw(st.integers(*VERSIONS[key][:2]))
    if request:
        value: Any = data.draw((fetch_requests if fetch else produce_requests)(version))
        frame = b"".join(encode_request(key, version, 1, None, value))[4:]
        body = frame[read_request_header(frame)[1] :]
        attempt(key, version, True, data.draw(mutated(body)))
    else:
        from reference_broker.wire.messages import encode_response

        value = data.draw((fetch_responses if fetch else produce_responses)(version))
        attempt(key, version, False, data.draw(mutated(b"".join(encode_response(key, version, 1, value))[4:])))


VALID = [
    (ApiKey.FETCH, 12, "0000000a 000001f4 00000001 00100000 00 00000007 00000002 01 01 01 00"),
    (ApiKey.FETCH, 7, "ffffffff 000001f4 00000001 00100000 00 00000007 00000002 00000000 00000000"),
    (ApiKey.PRODUCE, 9, "00 ffff 000003e8 02 0274 02 00000000 05 61626364 00 00 00"),
    (ApiKey.PRODUCE, 3, "ffff ffff 000003e8 00000001 0001 74 00000001 00000000 00000004 61626364"),
    (ApiKey.METADATA, 9, "00 01 00 00 00"),
    (ApiKey.API_VERSIONS, 3, "0261 0262 00"),
]


@pytest.mark.parametrize(("key", "version", "text"), VALID)
def test_cut_anywhere_is_refused_and_bytes_behind_the_end_are_ignored(key: ApiKey, version: int, text: str) -> None:
    body = bytes.fromhex(text)
    assert decode_request(key, version, body, 0) == decode_request(key, version, memoryview(body), 0)
    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, memoryview(body)[:length], 0)
    for left_over in (b"\0", b"whatever"):
        assert decode_request(key, version, body + left_over, 0) == decode_request(key, version, body, 0)


COUNTS = [
    (ApiKey.FETCH, 12, "0000000a 000001f4 00000001 00100000 00 00000007 00000002 ffffffff07"),
    (ApiKey.FETCH, 12, "0000000a 000001f4 00000001 00100000 00 00000007 00000002 02 0274 ffffffff07"),
    (ApiKey.FETCH, 12, "0000000a 000001f4 00000001 00100000 00 00000007 00000002 01 02 0274 ffffffff07"),
    (ApiKey.FETCH, 7, "ffffffff 000001f4 00000001 00100000 00 00000007 00000002 7fffffff"),
    (ApiKey.PRODUCE, 9, "00 ffff 000003e8 ffffffff07"),
    (ApiKey.PRODUCE, 9, "00 ffff 000003e8 02 0274 02 00000000 ffffffff07"),
    (ApiKey.PRODUCE, 3, "ffff ffff 000003e8 7fffffff"),
    (ApiKey.METADATA, 9, "ffffffff07"),
    (ApiKey.METADATA, 1, "7fffffff"),
    (ApiKey.CREATE_TOPICS, 2, "7fffffff"),
    (ApiKey.DELETE_TOPICS, 6, "ffffffff07"),
    (ApiKey.API_VERSIONS, 3, "ffffffff07"),
]


@pytest.mark.parametrize(("key", "version", "text"), COUNTS)
def test_huge_length_reserves_nothing(key: ApiKey, version: int, text: str) -> None:
    body = bytes.fromhex(text) + bytes(20)
    attempt(key, version, True, body)  # Builds the codec.
    tracemalloc.start()
    with pytest.raises(ProtocolError, match=r"20 remain|the limit is 1048576"):
        decode_request(key, version, body, 0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


@pytest.mark.parametrize(
    ("key", "version"), [(1, 3), (1, 19), (1, 1003), (59, 1001), (3, 14), (18, 99), (7, 0), (999, 0), (-1, -1)]
)
def test_unknown_api_or_version_carries_its_header(key: int, version: int) -> None:
    frame = (
        key.to_bytes(2, "big", signed=True)
        + version.to_bytes(2, "big", signed=True)
        + bytes.fromhex("00000007 0001 78")
    )
    header, offset = read_request_header(frame)
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(key, version, frame, offset)
    assert caught.value.header == header == (key, version, 7, "x")


@pytest.mark.parametrize("frame", ["", "0012", "0012 0003 00000001 0005 61", "0012 0003 00000001 fffe"])
def test_broken_header_is_refused(frame: str) -> None:
    with pytest.raises(ProtocolError):
        read_request_header(bytes.fromhex(frame))
    with pytest.raises(ProtocolError):
        read_response_header(bytes.fromhex(frame)[:3], 3, 9)


@pytest.mark.parametrize(("written", "client_id"), [("0002 e461", "\ufffda"), ("fffe", None)])
def test_client_id_is_read_as_kafka_reads_it(written: str, client_id: str | None) -> None:
    header, offset = read_request_header(bytes.fromhex("0012 0000 00000001" + written))
    assert (header.client_id, offset) == (client_id, 8 + len(bytes.fromhex(written)))


UNKNOWN_TAG = tagged(9999, b"from later") + tagged(10001, b"")


def with_unknown_tags(entity: Any) -> bytes:
    """The message with two unknown tagged fields in every struct: written apart from the encoder under test."""
    from reference_broker.wire.encoding import _field_writer

    schema: type = type(entity)
    out = bytearray()
    known = []
    for field in schema_fields(schema):
        value = getattr(entity, field.name)
        if field.struct is None:
            encoded = bytearray()
            if not (field.tag is not None and value is None):
                _field_writer(field, field, True)(encoded, value)
        elif field.is_array:
            encoded = bytearray(uvarint(0 if value is None else len(value) + 1))
            for item in value or ():
                encoded += with_unknown_tags(item)
        elif field.nullable and field.tag is None:
            encoded = bytearray(b"\xff" if value is None else b"\x01" + with_unknown_tags(value))
        else:
            encoded = bytearray(with_unknown_tags(value))
        if field.tag is None:
            out += encoded
        elif value != field.default:
            known.append((field.tag, bytes(encoded)))
    out += uvarint(len(known) + 2)
    for tag, encoded_bytes in sorted(known):
        out += tagged(tag, encoded_bytes)
    return bytes(out + UNKNOWN_TAG)


FLEXIBLE = [
    (key, VERSIONS[key][1], request)
    for key in VERSIONS
    for request in (True, False)
    if is_flexible(key, VERSIONS[key][1])
]


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version", "request_"), FLEXIBLE)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(data=st.data())
def test_unknown_tagged_fields_are_read_past_at_every_level(
    key: ApiKey, version: int, request_: bool, data: st.DataObject
) -> None:
    schema = (load_request_schema if request_ else load_response_schema)(key, version)
    assert is_flexible_entity(schema)
    entity = data.draw(entities(schema))
    header = b"" if request_ else bytes(4) + (b"" if key == ApiKey.API_VERSIONS else b"\x02" + UNKNOWN_TAG)
    plain_header = b"" if request_ else bytes(4 + (key != ApiKey.API_VERSIONS))
    tagged_value = attempt(key, version, request_, header + with_unknown_tags(entity))
    assert tagged_value is not None
    assert tagged_value == attempt(key, version, request_, plain_header + kio_bytes(entity))


def test_known_tagged_field_of_the_wrong_size_is_refused() -> None:
    start = "000001f4 00000001 00100000 00 00000007 00000002 01 01 01"
    good = bytes.fromhex(start + "01 01 0d 00000005 0000000000000009 00")
    request: Any = decode_request(ApiKey.FETCH, 15, good, 0)
    assert (request.replica_id, request.replica_epoch) == (5, 9)
    for bad in ("01 01 0e 00000005 0000000000000009 00 00", "01 01 0c 00000005 0000000000000009 00"):
        with pytest.raises(ProtocolError):
            decode_request(ApiKey.FETCH, 15, bytes.fromhex(start + bad), 0)


def test_known_tagged_field_of_the_wrong_size_is_refused_in_other_messages() -> None:
    start = "00000001 00000002 01 01 00"
    request: Any = decode_request(ApiKey.FETCH_SNAPSHOT, 0, bytes.fromhex(start + "02 0261"), 0)
    assert request.cluster_id == "a"
    with pytest.raises(ProtocolError, match="tagged field 0 has 3 bytes, but its value takes 2"):
        decode_request(ApiKey.FETCH_SNAPSHOT, 0, bytes.fromhex(start + "03 0261 00"), 0)


def test_nullable_struct_is_null_or_there() -> None:
    def cursor(text: str) -> Any:
        body: Any = decode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, bytes.fromhex("01 00000064" + text), 0)
        return body.cursor

    for marker in ("ff", "80", "fe"):
        assert cursor(marker + "00") is None
    for marker in ("01", "00", "02", "7f"):
        assert cursor(marker + "0274 00000005 00 00").partition_index == 5


def test_unknown_tagged_fields_of_a_fetch_partition() -> None:
    """The partitions of an array are read in one go unless one of them has tagged fields."""
    start = "000001f4 00000001 00100000 00 00000007 00000002 02" + "11" * 16 + "03"
    plain = "00000006 00000003 0000000000000009 00000002 0000000000000005 0000004d"
    end = "00 01 01 00"
    expected = decode_request(ApiKey.FETCH, 15, bytes.fromhex(start + (plain + "00") * 2 + end), 0)
    for first, second in (("00", "01 63 02 6162"), ("01 63 02 6162", "00"), ("02 63 00 64 00", "01 63 00")):
        body = bytes.fromhex(start + plain + first + plain + second + end)
        assert decode_request(ApiKey.FETCH, 15, body, 0) == expected
