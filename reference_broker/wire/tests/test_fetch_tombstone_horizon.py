"""Fetch 1001, which carries the tombstone horizon marker: its bytes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.tests.strategies import INT64, fetch_requests, fetch_responses

QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
VERSION = 1001
TOPIC_ID = bytes(range(16))


@pytest.mark.clause("H-1", "D-1")
def test_request_has_these_bytes() -> None:
    fields = [
        ("replica_id", "00000002"),
        ("max_wait_ms", "000001f4"),
        ("min_bytes", "00000001"),
        ("max_bytes", "00100000"),
        ("isolation_level", "01"),
        ("session_id", "01020304"),
        ("session_epoch", "00000005"),
        ("replica_epoch", "0000000000000009"),
        ("topics", "00000001"),
        ("topic_id", TOPIC_ID.hex()),
        ("partitions", "00000001"),
        ("partition", "00000006"),
        ("current_leader_epoch", "00000003"),
        ("fetch_offset", "0000000000000007"),
        ("last_fetched_epoch", "00000002"),
        ("log_start_offset", "0000000000000004"),
        ("partition_max_bytes", "00001000"),
        ("forgotten topics", "00000001"),
        ("topic_id", TOPIC_ID.hex()),
        ("partitions", "00000002 00000001 00000008"),
    ]
    text = bytes.fromhex("".join(value for _, value in fields))
    partition = FetchPartition(6, 7, 4096, 3, 2, 4)
    sent = FetchRequest(2, 500, 1, 1 << 20, 1, 0x01020304, 5, [FetchTopic("", TOPIC_ID, [partition])])
    sent = replace(sent, forgotten=[ForgottenTopic("", TOPIC_ID, [1, 8])], replica_epoch=9)
    assert decode_request(ApiKey.FETCH, VERSION, memoryview(text), 0) == sent
    frame = b"".join(encode_request(ApiKey.FETCH, VERSION, 9, "me", sent))
    assert frame[4:] == bytes.fromhex("0001 03e9 00000009 0002 6d65") + text


@pytest.mark.clause("H-1", "D-1")
def test_response_has_these_bytes() -> None:
    fields = [
        ("throttle_time_ms", "00000001"),
        ("error_code", "0000"),
        ("session_id", "01020304"),
        ("topics", "00000001"),
        ("topic_id", TOPIC_ID.hex()),
        ("partitions", "00000001"),
        ("partition", "00000006"),
        ("error_code", "0000"),
        ("high_watermark", "0000000000000009"),
        ("last_stable_offset", "0000000000000008"),
        ("log_start_offset", "0000000000000002"),
        ("aborted transactions", "ffffffff"),
        ("preferred_read_replica", "ffffffff"),
        ("records", "00000000"),
        ("diverging_epoch", "00000003"),
        ("its end", "0000000000000005"),
        ("tombstone_horizon", "0000000000000007"),
    ]
    text = bytes.fromhex("".join(value for _, value in fields))
    data = PartitionData(6, 0, 9, 8, 2, diverging_epoch=EpochEndOffset(3, 5), tombstone_horizon=7)
    response = FetchResponse(0, 0x01020304, [FetchTopicResponse("", TOPIC_ID, [data])], 1)
    frame = b"".join(encode_response(ApiKey.FETCH, VERSION, 9, response))
    assert frame[4:] == bytes.fromhex("00000009") + text
    assert decode_response(ApiKey.FETCH, VERSION, memoryview(frame)[4:]) == (9, response)


@pytest.mark.clause("D-1")
@QUICK
@given(fetch_requests(17))
def test_any_request_round_trips(sent: FetchRequest) -> None:
    sent = replace(
        sent,
        rack_id="",
        cluster_id=None,
        topics=[
            replace(
                topic, partitions=[replace(partition, replica_directory_id=bytes(16)) for partition in topic.partitions]
            )
            for topic in sent.topics
        ],
    )
    frame = b"".join(encode_request(ApiKey.FETCH, VERSION, 9, None, sent))
    body_at = 4 + 2 + 2 + 4 + 2
    assert decode_request(ApiKey.FETCH, VERSION, memoryview(frame), body_at) == sent


@pytest.mark.clause("H-1")
@QUICK
@given(fetch_responses(11), INT64)
def test_any_response_round_trips(response: FetchResponse, horizon: int) -> None:
    topics = [
        FetchTopicResponse("", TOPIC_ID, [replace(data, tombstone_horizon=horizon) for data in topic.partitions])
        for topic in response.responses
    ]
    response = replace(response, responses=topics)
    frame = b"".join(encode_response(ApiKey.FETCH, VERSION, 9, response))
    assert decode_response(ApiKey.FETCH, VERSION, memoryview(frame)[4:]) == (9, response)


@QUICK
@given(st.integers(0, 90))
def test_truncated_request_is_refused(length: int) -> None:
    partition = FetchPartition(6, 7, 4096, 3, 2, 4)
    sent = FetchRequest(topics=[FetchTopic("", TOPIC_ID, [partition])], forgotten=[ForgottenTopic("", TOPIC_ID, [1])])
    frame = b"".join(encode_request(ApiKey.FETCH, VERSION, 9, None, sent))[14:]
    with pytest.raises(ProtocolError):
        decode_request(ApiKey.FETCH, VERSION, memoryview(frame)[: min(length, len(frame) - 1)], 0)


def test_count_beyond_the_frame_is_refused() -> None:
    sent = b"".join(encode_request(ApiKey.FETCH, VERSION, 9, None, FetchRequest()))[14:]
    for at in (len(sent) - 8, len(sent) - 4):
        frame = sent[:at] + bytes.fromhex("7fffffff") + sent[at + 4 :]
        with pytest.raises(ProtocolError):
            decode_request(ApiKey.FETCH, VERSION, memoryview(frame), 0)
