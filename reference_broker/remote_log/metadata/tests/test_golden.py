"""Bytes and partitions of remote metadata from Apache Kafka 4.1.1 itself (its RemoteLogMetadataSerde and
RemoteLogMetadataTopicPartitioner, called from jshell)."""

import pytest

from reference_broker.metadata.identifiers import uuid_from_text
from reference_broker.remote_log.metadata.events import (
    RemoteLogEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    decode,
    encode,
)
from reference_broker.remote_log.metadata.topic import metadata_partition_of

TOPIC_ID = bytes(7) + b"\x01" + bytes(7) + b"\x02"
SEGMENT_ID = bytes(7) + b"\x03" + bytes(7) + b"\x04"
SEGMENT = RemoteLogSegmentMetadata(
    topic_id=TOPIC_ID,
    topic="events",
    partition=5,
    segment_id=SEGMENT_ID,
    start_offset=100,
    end_offset=199,
    max_timestamp_ms=1234,
    broker_id=1,
    event_timestamp_ms=5678,
    size_bytes=1000,
    leader_epochs=((2, 100), (4, 150)),
    uploader_epoch=4,
    has_transaction_index=False,
    attempt=3,
    metadata_offset=9,
)
UPDATE = RemoteLogSegmentMetadataUpdate(
    topic_id=TOPIC_ID,
    topic="events",
    partition=5,
    segment_id=SEGMENT_ID,
    broker_id=1,
    event_timestamp_ms=5679,
    uploader_epoch=4,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
DELETE = RemotePartitionDeleteMetadata(
    topic_id=TOPIC_ID,
    topic="events",
    partition=5,
    broker_id=1,
    event_timestamp_ms=5680,
    state=RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
)
PLACE = "076576656e7473" + TOPIC_ID.hex() + "0000000500"
SEGMENT_HEX = (
    "010000" + PLACE + SEGMENT_ID.hex() + "00"
    "000000000000006400000000000000c70000000100000000000004d2000000000000162e"
    "030000000200000000000000640000000004000000000000009600"
    "000003e811000000040000000300000000000000090001000101"
)
UPDATE_HEX = "010100" + PLACE + SEGMENT_ID.hex() + "00" + "00000001000000000000162f0600000004ff0100"
DELETE_HEX = "010200" + PLACE + "00000001000000000000163001" + "00"


@pytest.mark.parametrize(
    ("event", "text"),
    [(SEGMENT, SEGMENT_HEX), (UPDATE, UPDATE_HEX), (DELETE, DELETE_HEX)],
    ids=["copy", "update", "end"],
)
def test_events_have_kafka_bytes(event: RemoteLogEvent, text: str) -> None:
    assert encode(event).hex() == text
    assert decode(bytes.fromhex(text)) == event


@pytest.mark.parametrize(
    ("topic_id", "of_50", "of_3"),
    [
        ("AAAAAAAAAAAAAAAAAAAABw", (2, 41, 35, 30, 27), (0, 2, 2, 1, 2)),
        ("AAAAAAAAAAEAAAAAAAAAAA", (20, 46, 45, 10, 12), (0, 2, 0, 0, 2)),
        ("_____________________w", (6, 30, 28, 20, 40), (0, 1, 1, 0, 1)),
        ("ASNFZ4mrze_-3LqYdlQyEA", (11, 2, 38, 9, 10), (2, 1, 0, 2, 0)),
        ("gAAAAAAAAAAAAAAAAAAAAQ", (4, 8, 3, 20, 3), (1, 1, 1, 1, 2)),
    ],
)
def test_metadata_partition_is_that_of_kafka(topic_id: str, of_50: tuple[int, ...], of_3: tuple[int, ...]) -> None:
    key, partitions = uuid_from_text(topic_id), (0, 1, 2, 31, 100_000)
    assert tuple(metadata_partition_of(key, partition, 50) for partition in partitions) == of_50
    assert tuple(metadata_partition_of(key, partition, 3) for partition in partitions) == of_3
