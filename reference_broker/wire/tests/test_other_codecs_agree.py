"""Messages that kafka-python and aiokafka write and read, beside kio: three independent readings of the schemas."""

import warnings
from typing import Any
from uuid import UUID

import pytest

from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, encode_request, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka.protocol import fetch as aiokafka_fetch
    from kafka.protocol.consumer import FetchRequest as TheirFetchRequest
    from kafka.protocol.consumer import FetchResponse as TheirFetchResponse
    from kafka.protocol.metadata import MetadataRequest as TheirMetadataRequest
    from kafka.protocol.producer import ProduceRequest as TheirProduceRequest

TOPIC_ID = bytes(range(16))


def name_of(version: int) -> tuple[str, bytes]:
    return ("", TOPIC_ID) if version >= 13 else ("topic", bytes(16))


def fetch_of(version: int) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=2,
        max_bytes=3000,
        isolation_level=1,
        session_id=9 if version >= 7 else 0,
        session_epoch=4 if version >= 7 else -1,
        topics=[
            FetchTopic(
                *name_of(version),
                [
                    FetchPartition(
                        partition=6,
                        fetch_offset=1 << 40,
                        partition_max_bytes=77,
                        current_leader_epoch=3 if version >= 9 else -1,
                        last_fetched_epoch=2 if version >= 12 else -1,
                        log_start_offset=5 if version >= 5 else -1,
                    )
                ],
            )
        ],
        forgotten=[ForgottenTopic(*name_of(version), [1, 2])] if version >= 7 else [],
        rack_id="rack" if version >= 11 else "",
    )


@pytest.mark.parametrize("version", range(4, 18))
def test_kafka_python_fetch_requests(version: int) -> None:
    ours = fetch_of(version)
    kinds: Any = TheirFetchRequest
    topic: Any = {"topic_id": UUID(bytes=TOPIC_ID)} if version >= 13 else {"topic": "topic"}
    partition = kinds.FetchTopic.FetchPartition(
        version=version,
        partition=6,
        current_leader_epoch=3,
        fetch_offset=1 << 40,
        last_fetched_epoch=2,
        log_start_offset=5,
        partition_max_bytes=77,
    )
    forgotten = [kinds.ForgottenTopic(version=version, partitions=[1, 2], **topic)] if version >= 7 else []
    theirs = kinds(
        version=version,
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=2,
        max_bytes=3000,
        isolation_level=1,
        session_id=9,
        session_epoch=4,
        topics=[kinds.FetchTopic(version=version, partitions=[partition], **topic)],
        forgotten_topics_data=forgotten,
        rack_id="rack",
    )
    theirs.with_header(correlation_id=5, client_id="me")
    frame = theirs.encode(header=True, framed=True)
    assert frame == b"".join(encode_request(ApiKey.FETCH, version, 5, "me", ours))
    header, offset = read_request_header(frame[4:])
    assert (header.correlation_id, header.client_id) == (5, "me")
    assert decode_request(ApiKey.FETCH, version, frame[4:], offset) == ours


@pytest.mark.parametrize("version", range(4, 12))
def test_aiokafka_fetch_requests(version: int) -> None:
    ours = fetch_of(version)
    schema: Any = getattr(aiokafka_fetch, f"FetchRequest_v{version}")
    partition: tuple[int, ...] = (6, 1 << 40, 77)
    if version >= 5:
        partition = (6, 1 << 40, 5, 77)
    if version >= 9:
        partition = (6, 3, 1 << 40, 5, 77)
    values: list[Any] = [-1, 100, 2, 3000, 1, [("topic", [partition])]]
    if version >= 7:
        values[5:5] = [9, 4]
        values.append([("topic", [1, 2])])
    if version >= 11:
        values.append("rack")
    frame = schema(*values).encode()
    assert decode_request(ApiKey.FETCH, version, frame, 0) == ours


@pytest.mark.parametrize("version", range(3, 14))
def test_kafka_python_produce_requests(version: int) -> None:
    kinds: Any = TheirProduceRequest
    topic: Any = {"topic_id": UUID(bytes=TOPIC_ID)} if version >= 13 else {"name": "topic"}
    theirs = kinds(
        version=version,
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            kinds.TopicProduceData(
                version=version,
                partition_data=[
                    kinds.TopicProduceData.PartitionProduceData(version=version, index=3, records=b"records")
                ],
                **topic,
            )
        ],
    )
    theirs.with_header(correlation_id=5, client_id="me")
    frame = theirs.encode(header=True, framed=True)
    ours = ProduceRequest(-1, 1000, [ProduceTopic(*name_of(version), [ProducePartition(3, b"records")])])
    _, offset = read_request_header(frame[4:])
    assert decode_request(ApiKey.PRODUCE, version, frame[4:], offset) == ours
    assert frame == b"".join(encode_request(ApiKey.PRODUCE, version, 5, "me", ours))


@pytest.mark.parametrize("version", range(4, 18))
def test_kafka_python_reads_fetch_responses(version: int) -> None:
    data = PartitionData(6, 1, 50, last_stable_offset=49, log_start_offset=2, records=b"records")
    response = FetchResponse(responses=[FetchTopicResponse(*name_of(version), [data])], throttle_time_ms=8)
    frame = b"".join(encode_response(ApiKey.FETCH, version, 5, response))
    kinds: Any = TheirFetchResponse
    theirs = kinds.decode(frame[4:], version=version, header=True)
    (topic,) = theirs.responses
    (partition,) = topic.partitions
    assert theirs.throttle_time_ms == 8
    assert topic.topic_id == UUID(bytes=TOPIC_ID) if version >= 13 else topic.topic == "topic"
    assert (partition.partition_index, partition.error_code, partition.high_watermark) == (
        6,
        ErrorCode.offset_out_of_range,
        50,
    )
    assert (partition.last_stable_offset, bytes(partition.records)) == (49, b"records")


@pytest.mark.parametrize("version", range(14))
def test_kafka_python_metadata_requests(version: int) -> None:
    kinds: Any = TheirMetadataRequest
    theirs = kinds(version=version, topics=[kinds.MetadataRequestTopic(version=version, name="topic")])
    theirs.with_header(correlation_id=5, client_id="me")
    frame = theirs.encode(header=True, framed=True)
    _, offset = read_request_header(frame[4:])
    body: Any = decode_request(ApiKey.METADATA, version, frame[4:], offset)
    assert [(topic.name, topic.topic_id) for topic in body.topics] == [("topic", None)]
