"""Codec of Produce requests, versions 3-13. Source: ProduceRequest.json."""

from struct import Struct
from typing import Final

from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.fetch_requests import read_topic
from reference_broker.wire.fetch_responses import read_records
from reference_broker.wire.items import TooMuchError
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.reading import (
    Frame,
    read_compact_count,
    read_compact_length,
    read_compact_nullable_string,
    read_legacy_count,
    read_legacy_length32,
    read_legacy_nullable_string,
    read_legacy_string,
    skip_tagged_fields,
)
from reference_broker.wire.writing import Buffers, Output, compact_string, legacy_string, uvarint

MOST_TOPICS_AND_PARTITIONS: Final = 14_000
"""A request that holds more is refused, since a request is decoded in one slice, and so many take some 10 ms. Kafka's
Java producer sends a megabyte at most by default, which has room for 13,000 batches of one record."""
_INT32: Final = Struct(">i")
_HEAD: Final = Struct(">hi")


def decode_produce_request(version: int, frame: Frame, offset: int) -> tuple[ProduceRequest, int]:
    """Returns the body and the offset behind it. The body's records are views into the frame. Raises ProtocolError, or
    one of BAD_BYTES."""
    return _decode_flexible(version, frame, offset) if version >= 9 else _decode_legacy(frame, offset)


def _decode_legacy(frame: Frame, offset: int) -> tuple[ProduceRequest, int]:
    transactional_id, offset = read_legacy_nullable_string(frame, offset)
    acks, timeout_ms = _HEAD.unpack_from(frame, offset)
    count, offset = read_legacy_count(frame, offset + 6, 6)
    held = count
    if held > MOST_TOPICS_AND_PARTITIONS:
        raise _too_much(held)
    topics = []
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        partition_count, offset = read_legacy_count(frame, offset, 8)
        held += partition_count
        if held > MOST_TOPICS_AND_PARTITIONS:
            raise _too_much(held)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(frame, offset)
            size, offset = read_legacy_length32(frame, offset + 4)
            records, offset = read_records(frame, offset, size)
            partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(topic, NO_TOPIC_ID, partitions))
    return ProduceRequest(acks, timeout_ms, topics, transactional_id), offset


def _too_much(held: int) -> TooMuchError:
    limit = MOST_TOPICS_AND_PARTITIONS
    return TooMuchError(f"a Produce request holds {held} topics and partitions or more; the limit is {limit}")


def _decode_flexible(version: int, frame: Frame, offset: int) -> tuple[ProduceRequest, int]:
    by_id = version >= 13
    transactional_id, offset = read_compact_nullable_string(frame, offset)
    acks, timeout_ms = _HEAD.unpack_from(frame, offset)
    count, offset = read_compact_count(frame, offset + 6, 18 if by_id else 3)
    held = count
    if held > MOST_TOPICS_AND_PARTITIONS:
        raise _too_much(held)
    topics = []
    for _ in range(count):
        topic, topic_id, offset = read_topic(by_id, frame, offset)
        partition_count, offset = read_compact_count(frame, offset, 6)
        held += partition_count
        if held > MOST_TOPICS_AND_PARTITIONS:
            raise _too_much(held)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(frame, offset)
            size, offset = read_compact_length(frame, offset + 4)
            records, offset = read_records(frame, offset, size)
            offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
            partitions.append(ProducePartition(index, records))
        offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
        topics.append(ProduceTopic(topic, topic_id, partitions))
    offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
    return ProduceRequest(acks, timeout_ms, topics, transactional_id), offset


def encode_produce_request(version: int, start: bytes, request: ProduceRequest) -> Buffers:
    """Returns the whole frame. ``start`` is four bytes for the length, and the header. Records of 4 KiB or more become
    buffers of their own and are not copied."""
    output = Output(start)
    if version >= 9:
        _encode_flexible(version, output, request)
    else:
        _encode_legacy(output, request)
    return output.finish()


def _encode_legacy(output: Output, request: ProduceRequest) -> None:
    output.small += legacy_string(request.transactional_id) + _HEAD.pack(request.acks, request.timeout_ms)
    output.small += _INT32.pack(len(request.topics))
    for topic in request.topics:
        output.small += legacy_string(topic.topic) + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            records = partition.records
            output.small += _INT32.pack(partition.partition) + _INT32.pack(-1 if records is None else len(records))
            if records is not None:
                output.add_large(records)


def _encode_flexible(version: int, output: Output, request: ProduceRequest) -> None:
    by_id = version >= 13
    output.small += compact_string(request.transactional_id) + _HEAD.pack(request.acks, request.timeout_ms)
    output.small += uvarint(len(request.topics) + 1)
    for topic in request.topics:
        output.small += topic.topic_id if by_id else compact_string(topic.topic)
        output.small += uvarint(len(topic.partitions) + 1)
        for partition in topic.partitions:
            records = partition.records
            output.small += _INT32.pack(partition.partition) + uvarint(0 if records is None else len(records) + 1)
            if records is not None:
                output.add_large(records)
            output.small.append(0)
        output.small.append(0)
    output.small.append(0)
