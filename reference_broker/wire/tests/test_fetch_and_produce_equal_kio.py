"""The hand-written codecs against kio's, byte for byte, in every version and both ways."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.fetch import EpochEndOffset, FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.tests.strategies import (
    fetch_requests,
    fetch_responses,
    kio_bytes,
    produce_requests,
    produce_responses,
    to_kio,
)

FETCH, PRODUCE = ApiKey.FETCH, ApiKey.PRODUCE
VERSIONED = [(key, version) for key in (FETCH, PRODUCE) for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1)]
QUICK = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def body_of(buffers: list[Any], header_bytes: int) -> bytes:
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4 + header_bytes :]


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version"), VERSIONED)
@QUICK
@given(data=st.data())
def test_request(key: ApiKey, version: int, data: st.DataObject) -> None:
    value = data.draw((fetch_requests if key == FETCH else produce_requests)(version))
    schema = load_request_schema(key, version)
    expected = kio_bytes(to_kio(value, schema, produce=key == PRODUCE))
    frame = b"".join(encode_request(key, version, 7, "me", value))
    header, offset = read_request_header(memoryview(frame)[4:])
    assert header == (key, version, 7, "me")
    assert frame[4 + offset :] == expected
    assert decode_request(key, version, memoryview(expected), 0) == value
    again, read_bytes = entity_reader(schema)(expected, 0)
    assert read_bytes == len(expected)
    assert kio_bytes(again) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version"), VERSIONED)
@QUICK
@given(data=st.data())
def test_response(key: ApiKey, version: int, data: st.DataObject) -> None:
    value = data.draw((fetch_responses if key == FETCH else produce_responses)(version))
    schema = load_response_schema(key, version)
    expected = kio_bytes(to_kio(value, schema, produce=key == PRODUCE))
    buffers = encode_response(key, version, 9, value)
    header_bytes = 5 if schema.__flexible__ else 4
    assert body_of(buffers, header_bytes) == expected
    frame = memoryview(b"".join(buffers))[4:]
    assert decode_response(key, version, frame) == (9, value)


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_large_records_are_passed_on_without_a_copy(version: int) -> None:
    large, small = b"x" * 4096, b"y" * 4095
    topic = FetchTopicResponse(
        "" if version >= 13 else "t",
        bytes(range(16)),
        [PartitionData(0, 0, 5, records=large), PartitionData(1, 0, 5, records=memoryview(small))],
    )
    buffers = encode_response(FETCH, version, 1, FetchResponse(responses=[topic]))
    assert [buffer for buffer in buffers if buffer is large] == [large]
    assert len(buffers) == 3
    _, decoded = decode_response(FETCH, version, b"".join(buffers)[4:])
    assert isinstance(decoded, FetchResponse)
    assert [partition.records for partition in decoded.responses[0].partitions] == [large, small]


def test_produced_records_are_a_view_into_the_frame() -> None:
    body = bytes.fromhex("00 ffff 000003e8 02 0274 02 00000000 05 61626364 00 00 00")
    request = decode_request(PRODUCE, 9, memoryview(body), 0)
    records = request.topics[0].partitions[0].records  # type: ignore[attr-defined]
    assert isinstance(records, memoryview)
    assert records.obj is body
    assert bytes(records) == b"abcd"


def test_default_divergence_is_not_written() -> None:
    plain = PartitionData(0, 0, 5)
    explicit = PartitionData(0, 0, 5, diverging_epoch=EpochEndOffset(-1, -1))
    frames = [
        b"".join(encode_response(FETCH, 12, 1, FetchResponse(responses=[FetchTopicResponse("t", bytes(16), [each])])))
        for each in (plain, explicit)
    ]
    assert frames[0] == frames[1]
