"""A few frames written out by hand from the schemas: what must never change."""

from datetime import timedelta
from typing import Any

import pytest

from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import DraftError, ErrorCode, error_name
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.messages import body_class, decode_response, encode_request, encode_response
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)


def sent(buffers: list[Any], text: str) -> None:
    assert b"".join(buffers).hex(" ", 1) == bytes.fromhex(text).hex(" ", 1)


def test_empty_incremental_fetch_12() -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, session_id=7, session_epoch=2)
    sent(
        encode_request(ApiKey.FETCH, 12, 5, "me", request),
        "0000002a 0001 000c 00000005 0002 6d65 00ffffffff 000001f4 00000001 00100000 00 00000007 00000002 01 01 01 00",
    )
    sent(
        encode_response(ApiKey.FETCH, 12, 5, FetchResponse(session_id=7)),
        "00000011 00000005 00 00000000 0000 00000007 01 00",
    )


def test_fetch_4() -> None:
    request = FetchRequest(max_wait_ms=1, topics=[FetchTopic("t", bytes(16), [FetchPartition(2, 3, 4)])])
    sent(
        encode_request(ApiKey.FETCH, 4, 5, None, request),
        "00000036 0001 0004 00000005 ffff ffffffff 00000001 00000001 7fffffff 00"
        "00000001 0001 74 00000001 00000002 0000000000000003 00000004",
    )
    partition = PartitionData(2, 1, 9, last_stable_offset=8, records=b"ab")
    response = FetchResponse(responses=[FetchTopicResponse("t", bytes(16), [partition])])
    sent(
        encode_response(ApiKey.FETCH, 4, 5, response),
        "00000033 00000005 00000000 00000001 0001 74 00000001"
        "00000002 0001 0000000000000009 0000000000000008 ffffffff 00000002 6162",
    )


def test_produce_9() -> None:
    request = ProduceRequest(-1, 1000, [ProduceTopic("t", bytes(16), [ProducePartition(0, b"abcd")])])
    sent(
        encode_request(ApiKey.PRODUCE, 9, 5, "me", request),
        "00000024 0000 0009 00000005 0002 6d65 00 00 ffff 000003e8 02 0274 02 00000000 05 61626364 00 00 00",
    )
    partition = ProducePartitionResponse(0, 0, base_offset=6, log_start_offset=1)
    response = ProduceResponse([ProduceTopicResponse("t", bytes(16), [partition])])
    sent(
        encode_response(ApiKey.PRODUCE, 9, 5, response),
        "00000030 00000005 00 02 0274 02 00000000 0000 0000000000000006 ffffffffffffffff 0000000000000001 01 00 00 00"
        "00000000 00",
    )


def api_versions(error: int) -> Any:
    from kio.schema.api_versions.v4.response import ApiVersion

    key: Any = ApiVersion(api_key=18, min_version=0, max_version=4)  # type: ignore[arg-type]
    return body_class(18, "response")(error_code=error, api_keys=(key,), throttle_time=timedelta(0))


def test_response_to_an_unknown_api_versions_is_version_0() -> None:
    """KIP-511: layout and header of version 0, error 35, ApiVersions' own range."""
    buffers = encode_response(18, 0, 5, api_versions(35))
    sent(buffers, "00000010 00000005 0023 00000001 0012 0000 0004")
    for version in range(5):
        assert decode_response(18, version, b"".join(buffers)[4:]) == (5, api_versions(35))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_responses_have_header_0(version: int) -> None:
    frame = b"".join(encode_response(18, version, 5, api_versions(0)))[4:]
    assert frame[4:6] == bytes(2)
    assert decode_response(18, version, frame) == (5, api_versions(0))


def test_names() -> None:
    assert [api_name(key) for key in (1, 19, 23, 99)] == ["Fetch", "CreateTopics", "OffsetForLeaderEpoch", "Api(99)"]
    assert [error_name(code) for code in (70, -1, 10004)] == [
        "FETCH_SESSION_ID_NOT_FOUND",
        "UNKNOWN_SERVER_ERROR",
        "ERROR_10004",
    ]


@pytest.mark.clause("D-2")
def test_drafts_have_error_codes_of_their_own() -> None:
    assert not {int(each) for each in DraftError} & {int(code) for code in ErrorCode}
    assert [(each.name, int(each)) for each in DraftError] == [
        ("INVALID_FETCH_SESSION", 10001),
        ("INCREMENTAL_FETCH_DENIED", 10002),
        ("INVALID_METADATA_EPOCH", 10003),
    ]
