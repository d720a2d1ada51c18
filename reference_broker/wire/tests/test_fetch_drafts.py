"""Fetch 1000 and 1002, KIP-227's first revision: their bytes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    NO_TOPIC_ID,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    PartitionData,
)
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.tests.strategies import INT8, INT16, INT32, INT64, TEXT, fetch_requests, fetch_responses

QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FETCH, PAGE, DRAFT = ApiKey.FETCH, 1000, 1002
DIVERGENCES = st.builds(EpochEndOffset, INT32, INT64).filter(lambda end: (end.epoch, end.end_offset) != (-1, -1))
HEADER_V1 = "0001 03ea 00000009 0002 6d65"
HEADER_V0 = "00000009"


@pytest.mark.clause("G-12", "G-1", "G-3", "G-4", "D-1")
def test_request_written_from_the_page_and_version_6_is_read_and_written_so() -> None:
    """Each line is one line of the page's schema. replica_id comes first and max_bytes is there, as in version 6."""
    fields = [
        ("replica_id", "ffffffff"),
        ("max_wait_time", "000001f4"),
        ("min_bytes", "00000001"),
        ("max_bytes", "00100000"),
        ("isolation_level", "01"),
        ("fetch_type", "01"),
        ("fetch_session_id", "0102030405060708"),
        ("fetch_session_sequence_number", "7000000000000002"),
        ("topics", "00000001"),
        ("topic_name", "0001 74"),
        ("partitions", "00000001"),
        ("partition_id", "00000005"),
        ("fetch_offset", "0000000000000007"),
        ("start_offset", "0000000000000006"),
        ("max_bytes", "00001000"),
    ]
    text = bytes.fromhex("".join(value for _, value in fields))
    partition = FetchPartition(5, 7, 4096, log_start_offset=6)
    topics = [FetchTopic("t", NO_TOPIC_ID, [partition])]
    sent = FetchRequest(-1, 500, 1, 1 << 20, 1, 0x0102030405060708, 0x7000000000000002, topics)
    sent = replace(sent, fetch_type=INCREMENTAL_FETCH)
    assert decode_request(FETCH, PAGE, memoryview(text), 0) == sent
    frame = b"".join(encode_request(FETCH, PAGE, 9, "me", sent))
    assert frame[4:] == bytes.fromhex("0001 03e8 00000009 0002 6d65") + text


@pytest.mark.clause("G-12", "G-9", "D-1")
def test_response_is_written_as_the_page_and_version_6_have_it_and_read_so() -> None:
    fields = [
        ("throttle_time_ms", "00000001"),
        ("error_code", "2711"),
        ("error_string", "0003 616263"),
        ("fetch_session_id", "0102030405060708"),
        ("response_flags", "03"),
        ("topics", "00000001"),
        ("topic_name", "0001 74"),
        ("partitions", "00000001"),
        ("partition_id", "00000005"),
        ("error_code", "0000"),
        ("high_watermark", "0000000000000009"),
        ("last_stable_offset", "0000000000000008"),
        ("log_start_offset", "0000000000000001"),
        ("aborted_transactions", "00000001"),
        ("producer_id", "0000000000000004"),
        ("first_offset", "0000000000000002"),
        ("records", "00000002 7879"),
    ]
    text = bytes.fromhex(HEADER_V0 + "".join(value for _, value in fields))
    data = PartitionData(5, 0, 9, 8, 1, [AbortedTransaction(4, 2)], records=b"xy")
    flags = INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK
    topics = [FetchTopicResponse("t", NO_TOPIC_ID, [data])]
    response = FetchResponse(10001, 0x0102030405060708, topics, 1, error_string="abc", response_flags=flags)
    assert b"".join(encode_response(FETCH, PAGE, 9, response))[4:] == text
    assert decode_response(FETCH, PAGE, memoryview(text)) == (9, response)


@pytest.mark.clause("G-12", "G-1", "G-3", "G-4", "D-1")
def test_follower_request_has_fields_of_draft_and_followers() -> None:
    text = (
        "00000003 000001f4 00000001 00100000 00 01 0102030405060708 7000000000000002"
        "00000001 0001 74 69696969696969696969696969696969 00000001"
        "00000005 0000000000000007 0000000000000006 00001000 00000004 00000003"
        "0000000000000011"
    )
    body = FetchRequest(
        3,
        500,
        1,
        1 << 20,
        0,
        0x0102030405060708,
        0x7000000000000002,
        [FetchTopic("t", b"i" * 16, [FetchPartition(5, 7, 4096, 4, 3, 6)])],
        replica_epoch=0x11,
        fetch_type=INCREMENTAL_FETCH,
    )
    assert decode_request(FETCH, DRAFT, memoryview(bytes.fromhex(text)), 0) == body
    frame = b"".join(encode_request(FETCH, DRAFT, 9, "me", body))
    assert frame[4:].hex(" ", 1) == bytes.fromhex(HEADER_V1 + text).hex(" ", 1)


@pytest.mark.clause("G-12", "G-9", "D-1")
def test_follower_s_response_has_header_0_an_error_string_and_flags() -> None:
    text = (
        "00000009 00000001 2711 0003 616263 0102030405060708 03"
        "00000001 0001 74 00000001 00000005 0000 0000000000000009 0000000000000008 0000000000000001"
        "00000001 0000000000000004 0000000000000002 00000002 7879 ffffffff ffffffffffffffff"
    )
    data = PartitionData(5, 0, 9, 8, 1, [AbortedTransaction(4, 2)], records=b"xy")
    body = FetchResponse(
        10001,
        0x0102030405060708,
        [FetchTopicResponse("t", NO_TOPIC_ID, [data])],
        1,
        error_string="abc",
        response_flags=INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK,
    )
    frame = b"".join(encode_response(FETCH, DRAFT, 9, body))
    assert frame[4:].hex(" ", 1) == bytes.fromhex(text).hex(" ", 1)
    assert decode_response(FETCH, DRAFT, memoryview(frame)[4:]) == (9, body)


@pytest.mark.clause("G-12", "D-1")
def test_follower_s_response_reports_where_the_logs_part_behind_the_fields_of_version_6() -> None:
    text = (
        "00000009 00000000 0000 ffff 0000000000000007 03 00000001 0001 74 00000001"
        "00000005 0000 0000000000000009 ffffffffffffffff 0000000000000000 ffffffff 00000000 00000003 0000000000000004"
    )
    data = PartitionData(5, 0, 9, -1, 0, diverging_epoch=EpochEndOffset(3, 4))
    body = FetchResponse(
        0,
        7,
        [FetchTopicResponse("t", NO_TOPIC_ID, [data])],
        response_flags=INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK,
    )
    frame = b"".join(encode_response(FETCH, DRAFT, 9, body))
    assert frame[4:].hex(" ", 1) == bytes.fromhex(text).hex(" ", 1)
    assert decode_response(FETCH, DRAFT, memoryview(frame)[4:]) == (9, body)


@pytest.mark.thorough
@QUICK
@given(st.data())
def test_both_round_trip(data: st.DataObject) -> None:
    sent: Any = data.draw(fetch_requests(6))  # Only mypy takes the fields as frozen.
    sent.session_id, sent.session_epoch, sent.fetch_type = data.draw(st.tuples(INT64, INT64, INT8))
    sent.replica_epoch = data.draw(INT64)
    for topic in sent.topics:
        topic.topic_id = data.draw(st.binary(min_size=16, max_size=16))
    for each in (partition for topic in sent.topics for partition in topic.partitions):
        each.current_leader_epoch, each.last_fetched_epoch = data.draw(st.tuples(INT32, INT32))
    frame = b"".join(encode_request(FETCH, DRAFT, 9, "me", sent))
    assert decode_request(FETCH, DRAFT, memoryview(frame)[4:], 12) == sent
    response: Any = data.draw(fetch_responses(6))
    response.session_id, response.error_code = data.draw(st.tuples(INT64, INT16))
    response.error_string, response.response_flags = data.draw(st.tuples(st.none() | TEXT, INT8))
    for part in (partition for topic in response.responses for partition in topic.partitions):
        part.diverging_epoch = data.draw(st.none() | DIVERGENCES)
    frame = b"".join(encode_response(FETCH, DRAFT, 9, response))
    assert decode_response(FETCH, DRAFT, memoryview(frame)[4:]) == (9, response)


@QUICK
@given(st.booleans(), st.sampled_from([PAGE, DRAFT]), st.binary(max_size=80))
def test_any_bytes_are_a_fetch_or_a_protocol_error(is_request: bool, version: int, frame: bytes) -> None:
    try:
        if is_request:
            decode_request(FETCH, version, memoryview(frame), 0)
        else:
            decode_response(FETCH, version, memoryview(frame))
    except ProtocolError:
        pass  # The other outcome that is allowed.


@pytest.mark.parametrize("version", [PAGE, DRAFT])
def test_truncated_request_is_refused_but_trailing_bytes_are_not(version: int) -> None:
    sent = FetchRequest(topics=[FetchTopic("t", NO_TOPIC_ID, [FetchPartition(0, 1, 2)])])
    body = b"".join(encode_request(FETCH, version, 9, "me", sent))[4 + 12 :]
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(FETCH, version, memoryview(body[:size]), 0)
    assert decode_request(FETCH, version, memoryview(body + b"x"), 0) == decode_request(FETCH, version, body, 0)
